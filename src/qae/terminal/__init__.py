"""What a run shows while it goes: a live panel in a terminal, plain lines elsewhere. Never imports torch."""

from rich.console import Console

from qae.terminal.live import LiveView
from qae.terminal.plain import PlainView
from qae.terminal.progress import Progress
from qae.terminal.summary import latest_checkpoint, print_summary

__all__ = ["LiveView", "PlainView", "Progress", "View", "latest_checkpoint", "open_view", "print_summary"]

# Observers of the trainer that can say a line and be closed.
View = LiveView | PlainView


def open_view(console: Console, *, plain: bool = False) -> View:
    """The live panel where the console is a terminal that can show it, else plain lines.

    Args:
        console: where to.
        plain: plain lines in any case.
    """
    able = console.is_terminal and not console.is_dumb_terminal and console.encoding.lower().startswith("utf")
    return PlainView(console) if plain or not able else LiveView(console)
