"""The page that follows a run, and the picture of a page."""

import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_runs import fake_run
from qae.records import RunWriter
from qae.report import write_png, write_report
from qae.report.watch import make_server


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return fake_run(tmp_path / "run", steps=3, rows=8)


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with make_server([run], port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def get(address: str, host: str | None = None) -> str:
    request = urllib.request.Request(address, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode("utf-8")


def test_the_served_page_changes_with_the_run(run: Path, address: str) -> None:
    page, state = get(address), get(address + "state")
    assert f'"live": "{state}"' in page and "connect-src 'self'" in page
    assert get(address) == page
    RunWriter(run).append_metrics({"step": 4, "entropy": 0.1})
    assert get(address + "state") != state
    assert "4 steps of 32 prompts" in get(address)


def test_other_paths_and_other_names_are_refused(address: str) -> None:
    for wrong, host, code in [("config.yaml", None, 404), ("../etc/passwd", None, 404), ("", "evil.example:80", 403)]:
        with pytest.raises(urllib.error.HTTPError) as error:
            get(address + wrong, host)
        assert error.value.code == code
        error.value.close()


def test_a_written_page_does_not_call_home(run: Path, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "r.html").read_text("utf-8")
    assert "connect-src" not in text and "fetch(" not in text and '"live": null' in text


def test_no_browser_is_said(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr(shutil, "which", nothing)
    with pytest.raises(FileNotFoundError, match="no browser to take a picture with: looked for chromium"):
        write_png(tmp_path / "r.html", tmp_path / "r.png")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium on this machine")
def test_a_picture(run: Path, tmp_path: Path) -> None:
    picture = write_png(write_report([run], tmp_path / "r.html"), tmp_path / "pictures" / "r.png")
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 50_000
