"""Write the status line of every page in docs/hosts, from what the tests recorded: `python scripts/host_pages.py`.

Tests record what they saw when QAE_RECORD_HOSTS=1 is set: `QAE_RECORD_HOSTS=1 make test-hosts`.
"""

import re
from pathlib import Path

from qae.integrations.checks import PEERS
from qae.integrations.status import status_line

PAGES = Path(__file__).parent.parent / "docs" / "hosts"
HOSTS = ("trl", *PEERS)
BLOCK = re.compile(r"^\*\*Status\*\*: .*$", re.MULTILINE)


def with_status(host: str, text: str) -> str:
    """A page with its status line brought up to date.

    Args:
        host: name of the adapter.
        text: of the page.

    Raises:
        ValueError: the page has no status line, or more than one.
    """
    if len(BLOCK.findall(text)) != 1:
        raise ValueError(f"docs/hosts/{host}.md needs one line that starts with **Status**:")
    return BLOCK.sub(lambda _: status_line(host), text)


def main() -> None:
    """Rewrite the pages."""
    for host in HOSTS:
        page = PAGES / f"{host}.md"
        page.write_text(with_status(host, page.read_text()))


if __name__ == "__main__":
    main()
