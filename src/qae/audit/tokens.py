"""What logged completions say about tokens: which carry the entropy, how diverse they are, words of doubt.

The paper's Figures 2, 3, 7 and 8: words of doubt beside the pass rate over time, and the tokens of highest entropy,
which become few and alike while entropy explodes. Tokens are looked at where they were recorded (a few completions a
step), words in the texts of a sample of all completions. Per token there is also Clip-Cov's term, (log-prob - its mean)
times (advantage - its mean): its mean is the covariance that drives the entropy in the paper's identity.
"""

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import exp, log
from typing import Any

TOP_FRAC = 0.2
WORDS = ("wait", "hm", "hmm", "perhaps", "maybe", "alternatively", "actually", "but", "check", "recheck", "verify")
SPANS = 25
SHOWN = 15
# texts are looked through until so many characters have been read, then every second, every fourth, ...
CHARACTERS = 8_000_000
KEPT_TOKENS = 2_000_000


@dataclass
class _Step:
    """One step's recorded tokens, and what its texts hold."""

    texts: int = 0
    with_words: int = 0
    scored: int = 0
    right: int = 0
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    entropies: "array[float]" = field(default_factory=lambda: array("f"))
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    advantages: "array[float]" = field(default_factory=lambda: array("f"))


@dataclass(frozen=True)
class Span:
    """Some steps in a row.

    Attributes:
        step: the last of them.
        pass_rate: of the completions looked through, like the next one; None without outcomes.
        words_frac: share of completions with at least one of the words.
        tokens: recorded tokens, on which all that follows rests; None where there are none.
        top_share: share of the entropy that the fifth of the tokens with the highest entropy carries.
        effective: number of different tokens among that fifth, as the exponential of their distribution's entropy.
        two_most_frac: share of that fifth that is one of its two most frequent tokens.
        covariance: of log-prob and advantage over the tokens.
    """

    step: int
    pass_rate: float | None
    words_frac: float | None
    tokens: int
    top_share: float | None
    effective: float | None
    two_most_frac: float | None
    covariance: float | None


class TokenStore:
    """Tokens and words of the completions seen so far."""

    def __init__(self, words: Sequence[str] = WORDS) -> None:
        """Look for `words`, whole and in any case."""
        self.words = tuple(words)
        self._find = re.compile(r"\b(?:" + "|".join(map(re.escape, words)) + r")\b", re.IGNORECASE).search
        self._steps: dict[int, _Step] = {}
        self._ids: dict[str, int] = {}
        self._completions = self._kept = self._read = self._seen = 0
        self._stride = 1

    def add(self, record: dict[str, Any], step: int | None, text: str | None, outcome: float | None) -> None:
        """Take one completion in.

        Args:
            record: of the dump; read for entropies_nats, token_texts, logprobs and advantage.
            step: of the completion; without it there is no time to lay it along, and it is passed over.
            text: of the completion.
            outcome: 1, 0, or None.
        """
        if step is None:
            return
        if text is not None:
            self._seen += 1
            if self._seen % self._stride == 0:
                self._look(self._step(step), text, outcome)
        entropies, pieces = record.get("entropies_nats"), record.get("token_texts")
        if entropies and pieces and len(entropies) == len(pieces) and self._kept < KEPT_TOKENS:
            self._keep(self._step(step), record, entropies, pieces)

    def record(self) -> dict[str, Any] | None:
        """What was found, as plain numbers; None if no completion had a step."""
        if not self._steps:
            return None
        steps = sorted(self._steps)
        count = min(SPANS, len(steps))
        edges = [i * len(steps) // count for i in range(count + 1)]
        spans = [self._span(steps[a:b]) for a, b in pairwise(edges)]
        found: dict[str, Any] = {"words": list(self.words), "spans": [asdict(span) for span in spans]}
        found |= {"completions": self._completions, "tokens": self._kept, "top_frac": TOP_FRAC}
        return found | (self._carriers() if self._kept else {})

    def _step(self, step: int) -> _Step:
        return self._steps.setdefault(step, _Step())

    def _look(self, at: _Step, text: str, outcome: float | None) -> None:
        self._read += len(text)
        if self._read > CHARACTERS:
            self._stride, self._read = 2 * self._stride, 0
        at.texts += 1
        at.with_words += self._find(text) is not None
        if outcome is not None:
            at.scored += 1
            at.right += outcome >= 1

    def _keep(self, at: _Step, record: dict[str, Any], entropies: list[float], pieces: list[str]) -> None:
        self._completions += 1
        self._kept += len(pieces)
        at.tokens.extend(self._ids.setdefault(piece, len(self._ids)) for piece in pieces)
        at.entropies.extend(entropies)
        logprobs, advantage = record.get("logprobs"), record.get("advantage")
        if advantage is not None and logprobs and len(logprobs) == len(pieces):
            at.logprobs.extend(logprobs)
            at.advantages.extend([advantage] * len(pieces))
        else:
            at.logprobs.extend([float("nan")] * len(pieces))
            at.advantages.extend([float("nan")] * len(pieces))

    def _span(self, steps: list[int]) -> Span:
        parts = [self._steps[step] for step in steps]
        texts, scored = sum(p.texts for p in parts), sum(p.scored for p in parts)
        entropies = [x for p in parts for x in p.entropies]
        tokens = [x for p in parts for x in p.tokens]
        top = _top(entropies)
        counts = Counter(tokens[i] for i in top)
        terms = [x for p in parts for x in _covariances(p) if x == x]
        return Span(
            step=steps[-1],
            pass_rate=sum(p.right for p in parts) / scored if scored else None,
            words_frac=sum(p.with_words for p in parts) / texts if texts else None,
            tokens=len(tokens),
            top_share=_share(entropies, top),
            effective=_effective(counts),
            two_most_frac=sum(n for _, n in counts.most_common(2)) / len(top) if top else None,
            covariance=sum(terms) / len(terms) if terms else None,
        )

    def _carriers(self) -> dict[str, Any]:
        """The tokens that carry most of the entropy, and those with the largest covariance."""
        texts = list(self._ids)
        parts = list(self._steps.values())
        entropies = [x for p in parts for x in p.entropies]
        tokens = [x for p in parts for x in p.tokens]
        top = _top(entropies)
        among_top = Counter(tokens[i] for i in top)
        counts = Counter(tokens)
        known = Counter[int]()
        sums, covariance = defaultdict[int, float](float), defaultdict[int, float](float)
        for p in parts:
            for token, entropy, term in zip(p.tokens, p.entropies, _covariances(p), strict=True):
                sums[token] += entropy
                if term == term:
                    covariance[token] += term
                    known[token] += 1
        total = sum(sums.values())
        carriers = [
            {
                "text": visible(texts[token]),
                "count": counts[token],
                "mean_nats": entropy / counts[token],
                "share": entropy / total if total else 0.0,
                "top_frac": among_top[token] / counts[token],
                "covariance": covariance[token] / known[token] if known[token] else None,
            }
            for token, entropy in sorted(sums.items(), key=lambda item: -item[1])[:SHOWN]
        ]
        moving = sorted(known, key=lambda token: -abs(covariance[token]))[:SHOWN]
        return {
            "top_share": _share(entropies, top),
            "threshold_nats": min((entropies[i] for i in top), default=None),
            "distinct": len(counts),
            "carriers": carriers,
            "covariances": [
                {"text": visible(texts[token]), "count": known[token], "mean": covariance[token] / known[token]}
                for token in moving
            ],
        }


def visible(text: str) -> str:
    r"""A token so that blanks, line ends and control characters can be seen, and no table is broken.

    Example:
        >>> print(visible(" so\n|"), visible("\x00"))
        ␣so\n¦ \x00
    """
    shown = ("␣" if c == " " else c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(shown).replace("|", "¦")


def _top(entropies: Sequence[float]) -> list[int]:
    """Positions of the fifth of the tokens with the highest entropy."""
    order = sorted(range(len(entropies)), key=lambda i: -entropies[i])
    return order[: max(1, round(TOP_FRAC * len(order)))] if order else []


def _share(entropies: Sequence[float], top: list[int]) -> float | None:
    total = sum(entropies)
    return sum(entropies[i] for i in top) / total if total > 0 else None


def _effective(counts: Counter[int]) -> float | None:
    total = counts.total()
    return exp(-sum(n / total * log(n / total) for n in counts.values())) if total else None


def _covariances(step: _Step) -> list[float]:
    """(log-prob - mean) (advantage - mean) of each token of a step; NaN where one of them was not recorded."""
    known = [i for i, x in enumerate(step.logprobs) if x == x]
    if not known:
        return [float("nan")] * len(step.logprobs)
    mean_logprob = sum(step.logprobs[i] for i in known) / len(known)
    mean_advantage = sum(step.advantages[i] for i in known) / len(known)
    return [(x - mean_logprob) * (a - mean_advantage) for x, a in zip(step.logprobs, step.advantages, strict=True)]
