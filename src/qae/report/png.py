"""A picture of a report, taken by a Chromium that is on this machine."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class NoPicture(RuntimeError):
    """There is a browser, but it took no picture."""


_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")


def write_png(page: Path, out: Path, *, width: int = 1280, height: int = 2400, seconds: float = 120) -> Path:
    """Take a picture of the top of a report.

    Args:
        page: the HTML file.
        out: the PNG to write.
        width: of the window in pixels.
        height: of the window in pixels.
        seconds: longest wait for the browser.

    Returns:
        The picture written.

    Raises:
        FileNotFoundError: no Chromium or Chrome was found.
        NoPicture: the browser took no picture in that time.
    """
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise FileNotFoundError(
            f"no browser to take a picture with: looked for {', '.join(_BROWSERS)}; install one, or open {page}"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        flags = (
            "--headless --disable-gpu --disable-quic --no-first-run --hide-scrollbars --disable-background-networking "
            "--disable-component-update --disable-sync --virtual-time-budget=15000"
        ).split()
        flags += [f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={out.resolve()}"]
        command = [browser, *flags, *(["--no-sandbox"] if _is_root() else []), page.resolve().as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise NoPicture(f"{browser} took no picture of {page} in {seconds:g} s; the page itself is whole") from None
    if not out.exists():
        raise NoPicture(f"{browser} took no picture of {page}: {done.stderr.strip()[-300:]}")
    return out


def _is_root() -> bool:
    """Chromium refuses its sandbox to the root user, as in containers."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
