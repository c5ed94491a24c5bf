"""The token view: what carries the entropy, how alike it is, words of doubt, Clip-Cov's terms; all checked by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qae.audit import audit_paths, audit_text
from qae.audit.tokens import TokenStore, visible


def recorded(pieces: list[str], entropies: list[float], **more: Any) -> dict[str, Any]:
    return {"token_texts": pieces, "entropies_nats": entropies, **more}


def test_the_fifth_with_the_highest_entropy_by_hand() -> None:
    store = TokenStore()
    store.add(recorded(["so", "1", "2", "3", "wait"], [2.0, 0.0, 0.0, 0.0, 1.0]), 1, None, None)
    store.add(recorded(["so", "1", "2", "3", "4"], [1.5, 0.25, 0.25, 0.0, 0.0]), 1, None, None)
    found = store.record()
    assert found is not None
    assert (found["tokens"], found["completions"], found["distinct"]) == (10, 2, 6)
    assert found["top_share"] == pytest.approx(3.5 / 5.0) and found["threshold_nats"] == 1.5
    assert found["carriers"][0] == {
        "text": "so", "count": 2, "mean_nats": 1.75, "share": pytest.approx(0.7), "top_frac": 1.0, "covariance": None,
    }  # fmt: skip
    assert found["carriers"][1]["text"] == "wait" and found["carriers"][1]["top_frac"] == 0.0
    (span,) = found["spans"]
    assert (span["step"], span["tokens"], span["covariance"]) == (1, 10, None)
    assert (span["effective"], span["two_most_frac"]) == (pytest.approx(1.0), 1.0)


@pytest.mark.parametrize(("different", "effective", "two_most"), [(1, 1.0, 1.0), (2, 2.0, 1.0), (4, 4.0, 0.5)])
def test_diversity_of_the_high_entropy_tokens(different: int, effective: float, two_most: float) -> None:
    pieces = [f"t{i % different}" for i in range(8)] + ["x"] * 32
    store = TokenStore()
    store.add(recorded(pieces, [1.0] * 8 + [0.1] * 32), 1, None, None)
    found = store.record()
    assert found is not None
    assert found["spans"][0]["effective"] == pytest.approx(effective)
    assert found["spans"][0]["two_most_frac"] == two_most


def test_covariance_of_log_prob_and_advantage_by_hand() -> None:
    store = TokenStore()
    store.add(recorded(["a", "b"], [0.1, 0.1], logprobs=[-1.0, -3.0], advantage=1.0), 1, None, None)
    store.add(recorded(["a", "c"], [0.1, 0.1], logprobs=[-2.0, -2.0], advantage=-1.0), 1, None, None)
    store.add(recorded(["d"], [0.1]), 1, None, None)
    found = store.record()
    assert found is not None
    # mean log-prob -2, mean advantage 0: terms are 1, -1, 0, 0, and d has none
    assert found["spans"][0]["covariance"] == 0.0
    by_token = {line["text"]: (line["count"], line["mean"]) for line in found["covariances"]}
    assert by_token == {"a": (2, 0.5), "b": (1, -1.0), "c": (1, 0.0)}
    store.add(recorded(["a"], [0.1], logprobs=[0.0], advantage=3.0), 2, None, None)
    assert [span["covariance"] for span in (store.record() or {})["spans"]] == [0.0, 0.0]


def test_words_of_doubt_are_whole_words_in_any_case() -> None:
    store = TokenStore(["wait", "so on"])
    texts = [("Wait, no", 1.0), ("waiter", 0.0), ("and so on.", 0.0), ("so", None), ("await", 1.0)]
    for text, outcome in texts:
        store.add({}, 3, text, outcome)
    found = store.record()
    assert found is not None
    (span,) = found["spans"]
    assert (span["words_frac"], span["pass_rate"], span["tokens"]) == (2 / 5, 0.5, 0)
    assert "carriers" not in found and span["top_share"] is None


def test_many_steps_become_few_spans_and_rows_without_a_step_none() -> None:
    store = TokenStore()
    store.add({}, None, "wait", 1.0)
    assert store.record() is None
    for step in range(1, 201):
        store.add({}, step, "wait" if step > 100 else "so", float(step > 100))
    spans = (store.record() or {})["spans"]
    assert len(spans) == 25 and [s["step"] for s in spans[:2]] == [8, 16] and spans[-1]["step"] == 200
    assert [s["words_frac"] for s in spans] == [0.0] * 12 + [0.5] + [1.0] * 12 == [s["pass_rate"] for s in spans]


def test_long_dumps_are_looked_at_ever_more_sparsely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qae.audit.tokens.CHARACTERS", 1000)
    store = TokenStore()
    for i in range(10_000):
        store.add({}, i // 1000, "wait a bit", 1.0)
    looked = [step.texts for step in store._steps.values()]
    assert 300 < sum(looked) < 1000 and len(looked) == 10 and min(looked) > 0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.text(max_size=3), st.floats(0, 5)), min_size=1, max_size=60))
def test_shares_are_shares(tokens: list[tuple[str, float]]) -> None:
    store = TokenStore()
    store.add(recorded([t for t, _ in tokens], [e for _, e in tokens]), 1, "x", None)
    found = store.record()
    assert found is not None
    (span,) = found["spans"]
    top = max(1, round(0.2 * len(tokens)))
    assert 1 - 1e-6 <= span["effective"] <= top + 1e-6
    assert span["top_share"] is None or top / len(tokens) - 1e-6 <= span["top_share"] <= 1 + 1e-6
    assert sum(line["share"] for line in found["carriers"]) <= 1 + 1e-6
    json.dumps(found, allow_nan=False)


def test_tokens_are_shown_so_that_they_can_be_seen() -> None:
    assert visible(" a\n") == "␣a\\n"
    assert visible("\x00|\u202e\ud800") == "\\x00¦\\u202e\\ud800"
    assert visible("这") == "这"


def test_the_audit_of_a_run_holds_the_view(tmp_path: Path) -> None:
    rows = [
        {"step": s, "prompt_id": "p", "completion": "wait, so", "reward": r, "outcome": r, "advantage": 2 * r - 1}
        | recorded(["wait", ",", " so"], [1.0, 0.0, 0.5], logprobs=[-1.0, -0.1, -2.0])
        for s in (1, 2)
        for r in (0.0, 1.0)
    ]  # fmt: skip
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = audit_paths([tmp_path / "d.jsonl"], words=["so"])
    assert found["tokens"]["tokens"] == 12 and found["tokens"]["words"] == ["so"]
    assert found["tokens"]["top_share"] == pytest.approx(2 / 6)
    text = audit_text(found)
    assert "| ␣so " in text and "Of 12 recorded tokens (3 different)" in text
    assert "Tokens over time" in text and not math.isnan(found["tokens"]["spans"][0]["covariance"])


def test_a_dump_without_recorded_tokens_still_has_words(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"step": 1, "prompt": "q", "reward": 1, "acc": 1, "output": "hm, 3"}\n' * 2)
    found = audit_paths([tmp_path / "d.jsonl"])
    assert found["tokens"]["spans"][0]["words_frac"] == 1.0
    assert "Words of doubt over time (no tokens were recorded)" in audit_text(found)
