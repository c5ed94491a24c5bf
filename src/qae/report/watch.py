"""Serve a report on this machine while its runs go on."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from qae.report.page import render_report
from qae.report.runs import read_run

_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")


def serve_report(
    run_dirs: list[Path],
    *,
    port: int = 8765,
    title: str | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the report of runs on 127.0.0.1 until Ctrl-C. The page reloads itself when a run has gone on.

    Args:
        run_dirs: run directories.
        port: where to listen; 0 takes any free port.
        title: heading; default the runs' names.
        ready: called once with the address.

    Raises:
        FileNotFoundError: a directory is no run's.
        ValueError: the port is taken.
    """
    for run_dir in run_dirs:
        read_run(Path(run_dir))  # a wrong directory is said now, not to the browser
    with make_server(run_dirs, port=port, title=title) as server:
        ready(f"http://127.0.0.1:{server.server_address[1]}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def make_server(run_dirs: list[Path], *, port: int = 8765, title: str | None = None) -> ThreadingHTTPServer:
    """The server of `serve_report`, listening but not yet answering.

    Only requests that name this machine are answered, so that no page elsewhere can read the runs through a name
    that it points here.
    """
    lock, made = Lock(), dict[str, bytes]()

    def page() -> bytes:
        with lock:
            state = state_of(run_dirs)
            if state not in made:
                made.clear()
                made[state] = render_report(run_dirs, title=title, live=state).encode("utf-8", "replace")
            return made[state]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
            if host not in _OWN_NAMES:
                self.send_error(403)
            elif self.path == "/":
                self._answer("text/html; charset=utf-8", page())
            elif self.path == "/state":
                self._answer("text/plain", state_of(run_dirs).encode())
            else:
                self.send_error(404)

        def _answer(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal belongs to the caller."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ValueError(
            f"port {port} cannot be used ({error.strerror}); give another with --port; 0 takes any free one"
        ) from None


def state_of(run_dirs: list[Path]) -> str:
    """Changes whenever a run has written a step."""
    sizes: list[str] = []
    for run_dir in run_dirs:
        path = Path(run_dir) / "metrics.jsonl"
        sizes.append(str(path.stat().st_size) if path.exists() else "-")
    return " ".join(sizes)
