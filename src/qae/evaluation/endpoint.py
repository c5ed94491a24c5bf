"""Samples from a server with OpenAI's interface: vLLM, SGLang, `transformers serve` and others."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, cast
from urllib.parse import urlsplit

from qae.evaluation.local import DEFAULT_MAX_TOKENS, chat_messages
from qae.evaluation.samples import EvalSettings, Request, Sample, random_stream
from qae.sampling.rng import row_key

_PASSING = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
_LONGEST_WAIT_SECONDS = 60.0


class EndpointError(RuntimeError):
    """The server refused a request, or could not be reached after all retries."""


@dataclass
class EndpointSampler:
    """Draws one completion a request, several requests at a time, each tried again after a passing failure.

    Chat is used unless the settings say raw text. Every request carries a seed of its own. If some requests
    fail for good, the others are finished first, so that a second run has only those left.

    Args:
        base_url: of the server, up to and with `/v1`.
        model: as the server calls it.
        concurrency: requests under way at once.
        retries: further tries after the first.
        timeout_seconds: for one try.
        api_key_env: environment variable with the key; no key is sent if it is not set.
        backoff_seconds: before the first retry; doubled each time, at most a minute.
        extra: further fields of each request, such as `{"top_k": -1}`. `transformers serve` samples only if
            `{"generation_config": '{"do_sample": true, "top_k": 0}'}` says so; without it temperature is ignored.
    """

    base_url: str
    model: str
    concurrency: int = 16
    retries: int = 5
    timeout_seconds: float = 600.0
    api_key_env: str = "OPENAI_API_KEY"
    backoff_seconds: float = 1.0
    extra: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check the address and the numbers."""
        address = urlsplit(self.base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(f"endpoint {self.base_url!r} must be an address such as http://localhost:8000/v1")
        if self.concurrency < 1 or self.retries < 0:
            raise ValueError(f"concurrency={self.concurrency} must be at least 1 and retries={self.retries} at least 0")
        self.name = self.model
        self.about = {"engine": "endpoint", "extra": self.extra}
        self.requests_sent = 0
        # a proxy of the environment cannot reach this machine
        near = address.hostname == "localhost" or address.hostname.startswith("127.") or address.hostname == "::1"
        self._opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if near else []))

    def sample(self, requests: Sequence[Request], settings: EvalSettings, suffix: str) -> Iterator[list[Sample]]:
        """The samples as they arrive.

        Raises:
            EndpointError: the server refuses, or requests failed for good; the finished ones came first.
        """
        failures: list[EndpointError] = []
        waiting = iter(requests)
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="qae-endpoint")
        running: set[Future[Sample]] = set()
        try:
            while True:
                # no more than twice the concurrency is handed out: stopping then leaves little to wait for
                while len(running) < 2 * self.concurrency and not failures:
                    request = next(waiting, None)
                    if request is None:
                        break
                    running.add(pool.submit(self._one, request, settings, suffix))
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                errors = [future.exception() for future in done]
                failures += [error for error in errors if isinstance(error, EndpointError)]
                yield [f.result() for f in done if not isinstance(f.exception(), EndpointError)]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        if failures:
            raise EndpointError(
                f"{len(failures)} requests failed; the first: {failures[0]}. What was finished is kept: run the same "
                "command again for the rest"
            ) from failures[0]

    def _one(self, request: Request, settings: EvalSettings, suffix: str) -> Sample:
        messages = chat_messages(request, settings, suffix, default_chat=True)
        key = row_key(settings.seed, random_stream(request.item.id), request.sample)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": settings.max_tokens or DEFAULT_MAX_TOKENS,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": key & 0x7FFFFFFF,
            **(self.extra or {}),
        }
        if settings.stop:
            body["stop"] = list(settings.stop)
        if messages is None:
            answer = self._post("completions", body | {"prompt": f"{request.item.prompt}{suffix}"})
        else:
            answer = self._post("chat/completions", body | {"messages": list(messages)})
        return _read(answer, request, settings.stop)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"{self.base_url.rstrip('/')}/{path}"
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.api_key_env):
            headers["Authorization"] = f"Bearer {key}"
        data = json.dumps(body).encode()
        for attempt in range(self.retries + 1):
            pause = min(self.backoff_seconds * 2**attempt, _LONGEST_WAIT_SECONDS)
            try:
                self.requests_sent += 1
                request = urllib.request.Request(url, data=data, headers=headers, method="POST")
                with self._opener.open(request, timeout=self.timeout_seconds) as response:
                    return cast(dict[str, Any], json.loads(response.read()))
            except urllib.error.HTTPError as error:
                said = error.read()[:500].decode("utf-8", "replace")
                failure = f"{url} answered {error.code}: {said}"
                if error.code not in _PASSING:
                    raise EndpointError(failure) from error
                pause = _retry_after(error.headers.get("Retry-After"), pause)
            except (OSError, ValueError, HTTPException) as error:
                failure = f"{url}: {type(error).__name__}: {error}"
            if attempt == self.retries:
                raise EndpointError(f"{failure} (after {self.retries + 1} tries)")
            time.sleep(pause)
        raise AssertionError("unreachable")


def _retry_after(header: str | None, otherwise: float) -> float:
    try:
        return min(float(header or otherwise), _LONGEST_WAIT_SECONDS)
    except ValueError:
        return otherwise


def _read(answer: dict[str, Any], request: Request, stop: Sequence[str]) -> Sample:
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        usage = answer.get("usage") or {}
        # some servers leave the stop string in the text
        for mark in stop:
            text = (text or "").partition(mark)[0]
        return Sample(
            request.item.id,
            request.sample,
            text or "",
            usage.get("completion_tokens"),
            choice.get("finish_reason") == "length",
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EndpointError(f"the server's answer has no completion: {json.dumps(answer)[:300]}") from error
