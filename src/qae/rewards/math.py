r"""Grading mathematical answers: exact and fast where it can be, computer algebra in killable processes where not."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from qae.rewards.compare import NeedsAlgebra, canonical, formulas_in, gold_answer, gold_problem, judge, without_algebra
from qae.rewards.extract import DEFAULT_METHODS, extract_answer
from qae.rewards.grade import Grade
from qae.rewards.grader import Prompt
from qae.rewards.guard import MAX_ANSWER_CHARS
from qae.rewards.pool import KillablePool
from qae.rewards.values import read_value
from qae.rewards.worker import check_answer, check_gold

UNUSABLE_GOLD = "unusable_gold"
_SCORES = {"correct": 1.0, "wrong": 0.0, "unparseable": 0.0, "timeout": 0.0, UNUSABLE_GOLD: None}
_REMEMBERED = 20_000
_Question = tuple[str, str | None]


class MathGrader:
    r"""Grades the final answer of each completion against a gold answer.

    The answer is extracted (`qae.rewards.extract.extract_answer`), then decided exactly if it is an integer,
    decimal, fraction, choice, word or a tuple, set, interval or list of such; a formula goes to a worker
    process, which is killed at `timeout_seconds` of CPU time. What could take for ever is turned away before
    that. Equal questions are asked once. No answer can hang the caller, from any thread. The decisions are
    listed in docs/grading.md.

    Verdicts (`Grade.reason`): "correct" 1; "wrong", "unparseable", "timeout" 0; "unusable_gold" None, never a
    reward.

    Args:
        timeout_seconds: CPU time for one answer; the wall-clock backstop is twelve times that.
        workers: worker processes, started at the first formula.
        memory_mb: memory of a worker beyond what it needs to start (Linux).
        extract: methods of extraction, in order of preference.

    Raises:
        ValueError: if a number is not positive or a method unknown.

    Example:
        >>> with MathGrader() as grader:
        ...     grades = grader.grade([(r"So \boxed{0.5}.", r"\frac{1}{2}"), ("Answer: 3", "4"), ("5", "see solution")])
        >>> [(grade.outcome, grade.reason) for grade in grades]
        [(1.0, 'correct'), (0.0, 'wrong'), (None, 'unusable_gold')]
    """

    def __init__(
        self,
        timeout_seconds: float = 5.0,
        workers: int = 2,
        *,
        memory_mb: int = 1_024,
        extract: Sequence[str] = DEFAULT_METHODS,
    ):
        for name, value in (("timeout_seconds", timeout_seconds), ("workers", workers), ("memory_mb", memory_mb)):
            if value <= 0:
                raise ValueError(f"{name}={value} must be positive")
        extract_answer("", extract)
        self.counts: Counter[str] = Counter()
        self._extract = tuple(extract)
        self._pool = KillablePool(workers, timeout_seconds, memory_mb)
        self._lock = threading.Lock()
        self._known: OrderedDict[_Question, str] = OrderedDict()
        self._golds: OrderedDict[str, bool] = OrderedDict()

    def grade(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompts: Sequence[Prompt] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Grade]:
        """One verdict per (completion, gold), in order. `prompts` and `columns` are not looked at."""
        asked = [(gold_answer(gold), self.extract(completion)) for completion, gold in pairs]
        verdicts = self._verdicts(list(dict.fromkeys(asked)))
        reasons = [verdicts[question] for question in asked]
        with self._lock:
            self.counts.update(reasons)
        return [Grade(_SCORES[reason], _SCORES[reason], reason) for reason in reasons]

    def extract(self, completion: str) -> str | None:
        """The final answer of a completion as written, or None."""
        return extract_answer(completion, self._extract)

    def vote(self, completion: str) -> str | None:
        """The final answer in one spelling, for counting votes (maj@k), or None."""
        answer = self.extract(completion)
        return None if answer is None else canonical(answer[: 2 * MAX_ANSWER_CHARS])

    def close(self) -> None:
        """End the worker processes; the next formula starts new ones."""
        self._pool.close()

    def __enter__(self) -> "MathGrader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _verdicts(self, questions: list[_Question]) -> dict[_Question, str]:
        with self._lock:
            verdicts = {q: self._known[q] for q in questions if q in self._known}
        fresh = [q for q in questions if q not in verdicts]
        usable = self._usable(list(dict.fromkeys(gold for gold, _ in fresh)))
        hard: list[tuple[str, str]] = []
        for gold, answer in fresh:
            if not usable[gold]:
                verdicts[gold, answer] = UNUSABLE_GOLD
            elif answer is None or len(answer) > 2 * MAX_ANSWER_CHARS:
                verdicts[gold, answer] = "unparseable"
            else:
                try:
                    verdicts[gold, answer] = judge(gold, answer, without_algebra)
                except NeedsAlgebra:
                    hard.append((gold, answer))
        verdicts.update(zip(hard, self._pool.run(check_answer, hard), strict=True))
        self._remember(self._known, {question: verdicts[question] for question in fresh})
        return verdicts

    def _usable(self, golds: list[str]) -> dict[str, bool]:
        """Which golds can be used; those with formulas are parsed in a worker, once."""
        with self._lock:
            usable = {gold: self._golds[gold] for gold in golds if gold in self._golds}
        fresh = [gold for gold in golds if gold not in usable]
        usable.update((gold, gold_problem(gold) is None) for gold in fresh)
        formulas = [(gold,) for gold in fresh if usable[gold] and formulas_in(read_value(gold))]
        parsed = self._pool.run(check_gold, formulas)
        usable.update((gold, result is True) for (gold,), result in zip(formulas, parsed, strict=True))
        self._remember(self._golds, {gold: usable[gold] for gold in fresh})
        return usable

    def _remember(self, memory: OrderedDict[Any, Any], news: Mapping[Any, Any]) -> None:
        with self._lock:
            memory.update(news)
            while len(memory) > _REMEMBERED:
                memory.popitem(last=False)
