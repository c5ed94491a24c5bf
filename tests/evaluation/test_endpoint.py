from http.client import HTTPResponse, IncompleteRead

import pytest

from fake_server import FakeServer, serve
from qae.evaluation.endpoint import EndpointError, EndpointSampler
from qae.evaluation.samples import EvalSettings, Request
from qae.tasks.task import Item

ITEMS = [Item(f"{a}+{b}", f"{a}+{b}=", str(a + b)) for a in range(3) for b in range(4)]
REQUESTS = [Request(item, i) for item in ITEMS for i in range(2)]
SETTINGS = EvalSettings(samples=2, max_tokens=8, stop=("\n",))


def draw(server, settings=SETTINGS, requests=REQUESTS, **options):
    with serve(server) as url:
        sampler = EndpointSampler(url, "adder", backoff_seconds=0.01, **options)
        return [s for some in sampler.sample(requests, settings, "") for s in some]


def test_every_request_is_answered_once_and_concurrency_is_bounded():
    server = FakeServer()
    samples = draw(server, concurrency=3)
    assert {(s.problem, s.sample) for s in samples} == {(r.item.id, r.sample) for r in REQUESTS}
    assert len(samples) == len(server.requests) == len(REQUESTS)
    assert 1 < server.most_at_once <= 3
    assert all(s.truncated == (s.problem[0] == s.problem[2]) for s in samples)
    assert all(s.completion.isdigit() and s.tokens == len(s.completion) + 1 for s in samples)


def test_what_is_sent(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    server = FakeServer()
    draw(server, api_key_env="MY_KEY", extra={"top_k": -1})
    path, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["messages"][-1]["role"] == "user"
    assert body["authorization"] == "Bearer secret"
    expected = {"model": "adder", "max_tokens": 8, "temperature": 0.7, "top_p": 1.0, "stop": ["\n"], "top_k": -1}
    assert expected.items() <= body.items()
    assert len({body["seed"] for _, body in server.requests}) == len(REQUESTS)


def test_seeds_do_not_depend_on_the_order_of_requests():
    first, second = FakeServer(), FakeServer()
    draw(first)
    draw(second, requests=REQUESTS[::-1])
    key = lambda call: (call[1]["messages"][0]["content"], call[1]["seed"])  # noqa: E731
    assert sorted(map(key, first.requests)) == sorted(map(key, second.requests))


def test_raw_text_and_system_message():
    server = FakeServer()
    draw(server, EvalSettings(samples=2, chat=False))
    assert {path for path, _ in server.requests} == {"/v1/completions"}
    server = FakeServer()
    draw(server, EvalSettings(samples=2, system="Add."))
    assert all(body["messages"][0] == {"role": "system", "content": "Add."} for _, body in server.requests)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_failures_are_tried_again(status):
    server = FakeServer(failures=[status] * 5)
    assert len(draw(server, concurrency=2)) == len(REQUESTS)
    assert len(server.requests) == len(REQUESTS) + 5


def test_a_refusal_is_an_error_and_the_finished_ones_come_first():
    server = FakeServer(answers=7)
    kept = []
    with serve(server) as url:
        sampler = EndpointSampler(url, "adder", concurrency=2, backoff_seconds=0.01)
        with pytest.raises(EndpointError, match=r"answered 400: .*the server is gone.*run the same command again"):
            for some in sampler.sample(REQUESTS, SETTINGS, ""):
                kept += some
    assert len(kept) == 7
    assert len(server.requests) <= 7 + 2 * 2, "a refusal is final"


def test_a_server_that_is_not_there():
    sampler = EndpointSampler("http://127.0.0.1:9/v1", "adder", retries=1, backoff_seconds=0.01)
    with pytest.raises(EndpointError, match=r"URLError.*\(after 2 tries\)"):
        list(sampler.sample(REQUESTS[:1], SETTINGS, ""))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("localhost:8000", "m"), "must be an address such as http://localhost:8000/v1"),
        (("http://x/v1", "m", 0), "concurrency=0 must be at least 1"),
    ],
)
def test_arguments_are_checked(arguments, text):
    with pytest.raises(ValueError, match=text):
        EndpointSampler(*arguments)


def test_an_answer_cut_off_on_the_way_is_asked_for_again(monkeypatch):
    server, cut = FakeServer(), []
    read = HTTPResponse.read

    def cut_the_first(self, *arguments):
        cut.append(self)
        if len(cut) == 1:
            raise IncompleteRead(b"{", 100)
        return read(self, *arguments)

    monkeypatch.setattr(HTTPResponse, "read", cut_the_first)
    assert len(draw(server, concurrency=1)) == len(REQUESTS)
    assert len(server.requests) == len(REQUESTS) + 1
