r"""Whether an answer is the gold answer: everything but the equality of two formulas, which is passed in.

The decisions are listed in docs/grading.md, one line each, and in the tests' grading table.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal

from qae.rewards.clean import clean
from qae.rewards.extract import extract_answer
from qae.rewards.guard import refusal
from qae.rewards.number import Number, read_number, same_number
from qae.rewards.values import Choice, Formula, Group, Value, Words, is_prose, read_value, words_of

Verdict = Literal["correct", "wrong", "unparseable"]
SameFormula = Callable[[Formula | Number, Formula | Number], bool]

PLACEHOLDERS = frozenset(
    "none null nan n/a na unknown tbd todo proof see answer solution - -- ? ... [] {} () <na>".split()
)
_PHRASES = frozenset((
    "no solution", "no real solution", "does not exist", "infinitely many", "not possible", "not enough information",
    "cannot be determined", "all real numbers", "empty set", "right triangle", "two", "none of above",
))  # fmt: skip
_WHOLE_TEXT = re.compile(r"\\text\s?\{[^{}]*\}")
_RELATION = re.compile(r"[<>=]|\\(?:le|ge|ne|in)(?![a-zA-Z])")
_MATRIX = re.compile(r"\\begin(?![a-zA-Z])")
_CHOSEN = re.compile(
    r"(?:\\text\s?\{)?\s*(?:(?:option|choice|answer)\s)?\s*(?:\(\s?([A-Za-z])\s?\)|([A-Za-z])(?=\s*(?:$|[).:}])))\s*\}?\s*[).:]?"
    r"(?:$|\s|\\).*",
    re.IGNORECASE | re.DOTALL,
)
_SIGN_WORDS = {
    "no solution": r"\emptyset",
    "empty set": r"\emptyset",
    "infinity": r"\infty",
    "all real numbers": r"\mathbb{R}",
}


class NeedsAlgebra(Exception):
    """Two formulas have to be compared; raised where no computer algebra is at hand."""


def gold_answer(gold: str) -> str:
    r"""The answer in a gold solution: what follows the last `####` (GSM8K), the last box (MATH), else all of it.

    Example:
        >>> gold_answer("48 + 24 = <<72>>\n#### 72"), gold_answer(r"so $x=\boxed{\frac{1}{2}}$"), gold_answer("7")
        ('72', '\\frac{1}{2}', '7')
    """
    if "####" in gold or "\\boxed" in gold:
        return extract_answer(gold, ("hash", "boxed")) or ""
    return gold


def gold_problem(gold: str | None) -> str | None:
    r"""Why a gold answer cannot be used, as far as can be told without parsing formulas; None if it may be.

    Example:
        >>> gold_problem("see solution"), gold_problem(" "), gold_problem(r"\text{New York}")
        ('prose', 'empty', None)
    """
    if gold is None or not gold.strip():
        return "empty"
    if gold.strip().lower() in PLACEHOLDERS:
        return "placeholder"
    text = clean(gold)
    if text.lower() in PLACEHOLDERS:
        return "placeholder"
    if reason := refusal(text, allowed=text):
        return reason
    value = read_value(gold)
    if value is None:
        return "unreadable"
    return _prose_in(value, text)


def _prose_in(value: Value, text: str) -> str | None:
    if isinstance(value, Words):
        phrase = value.text.count(" ") and value.text not in _PHRASES and not _WHOLE_TEXT.fullmatch(text)
        return "prose" if phrase else None
    if isinstance(value, Group):
        if any(isinstance(item, Words) and item.text.count(" ") > 1 for item in value.items) and is_prose(text):
            return "prose"
    return None


def judge(gold: str, answer: str, same_formula: SameFormula) -> Verdict:
    """The verdict on an extracted answer, for a gold answer that can be used.

    Args:
        gold: the gold answer.
        answer: the extracted answer.
        same_formula: equality of two formulas, or of a formula and a number; may raise NeedsAlgebra.

    Returns:
        "correct", "wrong", or "unparseable" if nothing can be made of the answer.
    """
    expected = read_value(gold)
    if expected is None:
        return "unparseable"
    text = clean(answer)
    if not text:
        return "unparseable"
    if isinstance(expected, Choice):
        return _judge_choice(expected, text)
    if isinstance(expected, Words):
        return "correct" if _same_words(expected, text) else "wrong"
    if refusal(text, allowed=clean(gold)):
        return "unparseable"
    given = read_value(answer)
    if given is None or (_talks(given) and not _holds_words(expected)):
        return "correct" if isinstance(given, Words) and _means(given, expected) else "unparseable"
    return "correct" if _same(expected, given, same_formula) else "wrong"


def formulas_in(value: Value | None) -> list[Formula]:
    """The formulas of a value that only computer algebra can read."""
    if isinstance(value, Formula):
        return [value]
    return [f for item in value.items for f in formulas_in(item)] if isinstance(value, Group) else []


def _judge_choice(gold: Choice, text: str) -> Verdict:
    match = _CHOSEN.fullmatch(text)
    if match is None:
        return "wrong"
    letter = match[1] or match[2]
    # a small letter may name a choice, but n is not N
    same = letter == gold.letter or (letter.upper() == gold.letter and gold.letter <= "J")
    return "correct" if same else "wrong"


def _same_words(gold: Words, text: str) -> bool:
    return words_of(text) == gold.text or _SIGN_WORDS.get(gold.text) == text.strip()


def _means(words: Words, gold: Value) -> bool:
    return isinstance(gold, Formula) and _SIGN_WORDS.get(words.text) == gold.latex.strip()


def _talks(value: Value) -> bool:
    """Whether an answer is words, or a list ("this and that") with a phrase in it."""
    if isinstance(value, Group):
        return any(isinstance(item, Words) and " " in item.text for item in value.items)
    return isinstance(value, Words)


def _holds_words(value: Value) -> bool:
    return isinstance(value, Words) or (isinstance(value, Group) and any(_holds_words(i) for i in value.items))


def _same(gold: Value, given: Value, same_formula: SameFormula) -> bool:
    if isinstance(gold, Group) or isinstance(given, Group):
        return _same_group(gold, given, same_formula)
    if isinstance(gold, Words | Choice) or isinstance(given, Words | Choice):
        return _letters(gold) == _letters(given) != ""
    if gold.name and given.name and gold.name != given.name:
        return False
    if isinstance(gold, Number) and isinstance(given, Number):
        return same_number(gold, given)
    if gold.unit and given.unit and gold.unit != given.unit:
        return False
    first, second = _latex(gold), _latex(given)
    if isinstance(gold, Formula) and isinstance(given, Formula):
        if "".join(first.split()) == "".join(second.split()):
            return True
    if any(bool(sort.search(first)) != bool(sort.search(second)) for sort in (_RELATION, _MATRIX)):
        return False
    return same_formula(gold, given)


def _letters(value: Value) -> str:
    match value:
        case Words(text):
            return text
        case Choice(letter):
            return letter
        case Formula(latex=latex):
            return latex.strip()
        case _:
            return ""


def _latex(value: Formula | Number) -> str:
    return value.latex if isinstance(value, Formula) else ""


def _same_group(gold: Value, given: Value, same_formula: SameFormula) -> bool:
    if not isinstance(gold, Group) or not isinstance(given, Group):
        return _group_and_single(gold, given, same_formula)
    if gold.names and given.names:
        if sorted(gold.names) != sorted(given.names):
            return False
        order = [given.names.index(name) for name in gold.names]
        return _in_order(gold.items, [given.items[i] for i in order], same_formula)
    kinds = (gold.kind, given.kind)
    if gold.names or given.names:
        names = gold.names or given.names
        named_first = list(names) == sorted(names) and {"()", "list"} >= set(kinds)
        return named_first and _in_order(gold.items, given.items, same_formula)
    if kinds in _UNORDERED:
        return _in_any_order(gold.items, given.items, same_formula)
    if gold.kind == given.kind or kinds in _ORDERED:
        return _in_order(gold.items, given.items, same_formula)
    return False


_UNORDERED = {("list", "list"), ("list", "{}"), ("{}", "{}"), ("{}", "list"), ("union", "union")}
_ORDERED = {("()", "list"), ("list", "()"), ("[]", "list"), ("list", "[]")}


def _group_and_single(gold: Value, given: Value, same_formula: SameFormula) -> bool:
    group, single = (gold, given) if isinstance(gold, Group) else (given, gold)
    if not isinstance(group, Group):
        return False
    if len(group.items) == 1:
        return (
            _same(group.items[0], given, same_formula) if group is gold else _same(gold, group.items[0], same_formula)
        )
    if group.kind == ":" and len(group.items) == 2 and isinstance(single, Number):
        above, below = group.items
        if isinstance(above, Number) and isinstance(below, Number) and below.value:
            return above.value / below.value == single.value
    if isinstance(single, Formula) and "".join(single.latex.split()) in _REALS:
        return "".join(group.latex.split()) in _REALS
    if isinstance(single, Formula) and _RELATION.search(single.latex) and group.kind in _INTERVALS:
        sides = (Formula(group.latex), single)
        return same_formula(*(sides if group is gold else sides[::-1]))
    return False


_REALS = (r"\mathbb{R}", r"\R", r"(-\infty,\infty)", r"(-\infty,+\infty)")
_INTERVALS = ("()", "[]", "[)", "(]", "union")


def _in_order(gold: Sequence[Value], given: Sequence[Value], same_formula: SameFormula) -> bool:
    return len(gold) == len(given) and all(_same(g, a, same_formula) for g, a in zip(gold, given, strict=True))


def _in_any_order(gold: Sequence[Value], given: Sequence[Value], same_formula: SameFormula) -> bool:
    if len(gold) != len(given):
        return False
    left = list(given)
    for expected in gold:
        # plain numbers first: they are decided without computer algebra
        left.sort(key=lambda item: not isinstance(item, Number))
        found = next((i for i, item in enumerate(left) if _same(expected, item, same_formula)), None)
        if found is None:
            return False
        left.pop(found)
    return True


def without_algebra(gold: Formula | Number, answer: Formula | Number) -> bool:
    """Stands in for the equality of formulas where there is no computer algebra: refuses."""
    raise NeedsAlgebra


def latex_of(value: Formula | Number) -> str:
    r"""LaTeX of a formula, or of a number's exact value."""
    if isinstance(value, Formula):
        return value.latex
    return rf"\frac{{{value.value.numerator}}}{{{value.value.denominator}}}"


def canonical(answer: str) -> str:
    r"""One spelling for votes: exact value of a number, otherwise the cleaned text without blanks.

    Example:
        >>> canonical("$0.50$"), canonical(r"\frac{1}{2}"), canonical("x + 1")
        ('1/2', '1/2', 'x+1')
    """
    text = clean(answer)
    value = read_number(text) or read_value(answer)
    return str(value.value) if isinstance(value, Number) else "".join(text.split())
