"""`few_shot_arithmetic` and `worded_arithmetic`: sums and products for a small pretrained model."""

import re
from random import Random

from transformers import PreTrainedTokenizerBase

from qae.rewards import Grade
from qae.tasks.generated import Levels, draw_heldout_items, draw_train_item, level_weights
from qae.tasks.prompts import encode_prompt
from qae.tasks.task import Item

HELDOUT_FRAC = 0.2

_KINDS = {
    "add1": ("+", (0, 9), (0, 9)),
    "add2": ("+", (10, 99), (10, 99)),
    "add2x1": ("+", (10, 99), (1, 9)),
    "add3": ("+", (100, 999), (100, 999)),
    "mul1": ("*", (1, 9), (1, 9)),
    "mul2x1": ("*", (10, 99), (2, 9)),
}
LEVELS = tuple(_KINDS)
# The spaces matter: without them a small model is right ten times less often.
_SOLVED = {
    "+": "3 + 5 = 8\n12 + 7 = 19\n48 + 36 = 84\n125 + 310 = 435\n",
    "*": "3 * 5 = 15\n12 * 7 = 84\n8 * 6 = 48\n25 * 4 = 100\n",
}
_SHOWN = frozenset({"+3+5", "+7+12", "+36+48", "+125+310", "*3*5", "*7*12", "*6*8", "*4*25"})
_LINE = re.compile(r"\s*(-?\d+(?:\.\d+)?)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def _problem(rng: Random, level: str) -> tuple[str, str, str]:
    """(canonical id, text, answer) of a problem that the solved lines do not show."""
    sign, first, second = _KINDS[level]
    while True:
        a, b = rng.randint(*first), rng.randint(*second)
        canonical = f"{sign}{min(a, b)}{sign}{max(a, b)}"
        if canonical not in _SHOWN:
            return canonical, f"{a} {sign} {b}", str(a + b if sign == "+" else a * b)


def draw_line(rng: Random, level: str) -> Item:
    """Four solved lines and an open one, as raw text; `3 + 4` and `4 + 3` have one id.

    Args:
        rng: where the numbers come from.
        level: one of `LEVELS`.

    Returns:
        An item, held out or not.

    Example:
        >>> item = draw_line(Random(1), "add2")
        >>> item.prompt.splitlines()[-2:], item.answer, item.id
        (['125 + 310 = 435', '27 + 82 ='], '109', 'sum_or_product/+27+82')
    """
    canonical, text, answer = _problem(rng, level)
    sign = _KINDS[level][0]
    return Item(f"sum_or_product/{canonical}", f"{_SOLVED[sign]}{text} =", answer, level)


def draw_question(rng: Random, level: str) -> Item:
    """The same problems as a question in chat.

    Args:
        rng: where the numbers come from.
        level: one of `LEVELS`.

    Returns:
        An item, held out or not.

    Example:
        >>> draw_question(Random(1), "add2").prompt
        ({'role': 'user', 'content': 'What is 27 + 82? Answer with the number only.'},)
    """
    canonical, text, answer = _problem(rng, level)
    content = f"What is {text}? Answer with the number only."
    return Item(f"sum_or_product/{canonical}", ({"role": "user", "content": content},), answer, level)


class FewShotArithmeticTask:
    """Sums and products after four solved lines, as raw text; a newline ends the completion.

    A fifth of all problems, by a hash of the canonical problem, is held out for every seed.

    Args:
        seed: of the run; training item i is a pure function of (seed, i).
        levels: level -> weight, or a list of levels.

    Example:
        >>> task = FewShotArithmeticTask(seed=0, levels=["add2"])
        >>> item = task.train_item(0)
        >>> [grade.outcome for grade in task.grade([(item, f" {item.answer}"), (item, " 7")])]
        [1.0, 0.0]
    """

    name = "few_shot_arithmetic"
    stop: tuple[str, ...] = ("\n",)
    size: int | None = None
    _draw = staticmethod(draw_line)

    def __init__(self, seed: int = 0, levels: Levels = ("add1", "add2", "mul1", "mul2x1")):
        self._seed = seed
        self._shares = level_weights(self.name, levels, LEVELS)

    def train_item(self, i: int) -> Item:
        """Training item i, never a held-out problem."""
        return draw_train_item(self.name, self._draw, self._shares, HELDOUT_FRAC, self._seed, i)

    def heldout_items(self, count: int) -> list[Item]:
        """The first `count` held-out items, the same for every seed; fewer if there are no more."""
        return draw_heldout_items(self.name, self._draw, self._shares, HELDOUT_FRAC, count)

    def grade(self, pairs: list[tuple[Item, str]]) -> list[Grade]:
        """1 if the first number of the completed line is the answer; else 0."""
        return [_grade(_LINE.match(completion), item.answer) for item, completion in pairs]

    def encode(self, item: Item, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Token ids of the prompt."""
        return encode_prompt(item.prompt, tokenizer)


class WordedArithmeticTask(FewShotArithmeticTask):
    """The same problems asked in words, without examples, through the chat template.

    Args:
        seed: of the run; training item i is a pure function of (seed, i).
        levels: level -> weight, or a list of levels.

    Example:
        >>> task = WordedArithmeticTask(seed=0, levels=["add2"])
        >>> item = task.train_item(0)
        >>> [grade.outcome for grade in task.grade([(item, f"The sum is {item.answer}."), (item, "42")])]
        [1.0, 0.0]
    """

    name = "worded_arithmetic"
    stop: tuple[str, ...] = ()
    _draw = staticmethod(draw_question)

    def grade(self, pairs: list[tuple[Item, str]]) -> list[Grade]:
        """1 if the last number of the completion is the answer; else 0."""
        found = [(item, list(_NUMBER.finditer(completion))[-1:]) for item, completion in pairs]
        return [_grade(numbers[0] if numbers else None, item.answer) for item, numbers in found]


def _grade(number: re.Match[str] | None, answer: str) -> Grade:
    if number is None:
        return Grade(0.0, 0.0, "unparseable")
    # 84.0 is not a cut-off 84, and 84.5 is not 84
    written = number[number.lastindex or 0].removesuffix(".0")
    return Grade(1.0, 1.0, "correct") if written == answer else Grade(0.0, 0.0, "wrong")
