"""A small OpenAI-compatible server in this process, for the tests of the endpoint engine."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeServer:
    """Answers additions; `failures` lists statuses to give first, `broken` makes it die after that many answers."""

    def __init__(self, failures=(), answers=None):
        self.failures = list(failures)
        self.answers_left = answers
        self.requests = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self.gate = threading.Semaphore(10_000)

    def answer(self, path, body):
        with self._lock:
            self.requests.append((path, body))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            if self.failures:
                self._now -= 1
                return self.failures.pop(0), {"error": {"message": "not now"}}
            if self.answers_left is not None:
                self.answers_left -= 1
                if self.answers_left < 0:
                    self._now -= 1
                    return 400, {"error": {"message": "the server is gone"}}
        threading.Event().wait(0.005)
        text = body.get("prompt") or body["messages"][-1]["content"]
        a, b = (int(x) for x in text.split("=")[0].split("+"))
        # as some servers do, the stop string stays in the text
        completion = f"{a + b + body['seed'] % 2}" + "".join(body.get("stop", []))
        with self._lock:
            self._now -= 1
        choice = {"index": 0, "finish_reason": "length" if a == b else "stop"}
        choice |= (
            {"text": completion} if "prompt" in body else {"message": {"role": "assistant", "content": completion}}
        )
        return 200, {"choices": [choice], "usage": {"completion_tokens": len(completion)}}


@contextmanager
def serve(server):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body["authorization"] = self.headers.get("Authorization")
            status, answer = server.answer(self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if status == 429:
                self.send_header("Retry-After", "0.01")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    http = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/v1"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
