"""`arithmetic`: the task of the shipped tiny policy, `a*b+c?` answered after a `#`."""

from random import Random

from transformers import PreTrainedTokenizerBase

from qae.rewards import Grade
from qae.tasks.generated import Levels, draw_heldout_items, draw_train_item, level_weights
from qae.tasks.prompts import encode_prompt
from qae.tasks.task import Item

LEVELS = ("1x1", "2x1", "2x2", "3x2")
HELDOUT_FRAC = 0.1

_FACTORS = {1: (2, 9), 2: (10, 99), 3: (100, 999)}
_ADDENDS = (1, 99)


def draw_problem(rng: Random, level: str) -> Item:
    """A problem of the level `<digits of a>x<digits of b>`; `a*b+c` and `b*a+c` have one id.

    Args:
        rng: where the factors and the addend come from.
        level: one of `LEVELS`.

    Returns:
        An item, held out or not.

    Example:
        >>> draw_problem(Random(1), "2x1")
        Item(id='arithmetic/27*3+33', prompt='27*3+33?', answer='114', level='2x1')
    """
    a, b = (rng.randint(*_FACTORS[int(digits)]) for digits in level.split("x"))
    c = rng.randint(*_ADDENDS)
    return Item(f"arithmetic/{max(a, b)}*{min(a, b)}+{c}", f"{a}*{b}+{c}?", str(a * b + c), level)


class ArithmeticTask:
    """Endless problems `a*b+c?` by digits of a and b, graded by the exact text after the last `#`.

    A tenth of all problems, by a hash of the canonical problem, is held out for every seed and from the
    teaching of the shipped policy too.

    Args:
        seed: of the run; training item i is a pure function of (seed, i).
        levels: level -> weight, or a list of levels.

    Example:
        >>> task = ArithmeticTask(seed=0, levels=["2x1"])
        >>> item = task.train_item(0)
        >>> [grade.outcome for grade in task.grade([(item, f"hm,1+1=2#{item.answer}"), (item, item.answer)])]
        [1.0, 0.0]
    """

    name = "arithmetic"
    stop: tuple[str, ...] = ()
    size: int | None = None

    def __init__(self, seed: int = 0, levels: Levels = ("2x1", "2x2")):
        self._seed = seed
        self._shares = level_weights(self.name, levels, LEVELS)

    def train_item(self, i: int) -> Item:
        """Training item i, never a held-out problem."""
        return draw_train_item(self.name, draw_problem, self._shares, HELDOUT_FRAC, self._seed, i)

    def heldout_items(self, count: int) -> list[Item]:
        """The first `count` held-out items, the same for every seed; fewer if there are no more."""
        return draw_heldout_items(self.name, draw_problem, self._shares, HELDOUT_FRAC, count)

    def grade(self, pairs: list[tuple[Item, str]]) -> list[Grade]:
        """1 if the text after the last `#` is the answer, character for character; else 0."""
        return [grade_final(completion, item.answer) for item, completion in pairs]

    def encode(self, item: Item, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Token ids of the prompt."""
        return encode_prompt(item.prompt, tokenizer)


def grade_final(completion: str, answer: str) -> Grade:
    """Exact match of the text after the last `#`: a cut-off, padded or repeated answer is wrong.

    Args:
        completion: the text that was sampled.
        answer: the gold answer.

    Returns:
        Outcome 1 or 0; "unparseable" if there is no `#`.

    Example:
        >>> [grade_final(text, "97").reason for text in ("92+5=97#97", "92+5=97#9", "92+5=97#97 ok", "97")]
        ['correct', 'wrong', 'wrong', 'unparseable']
    """
    _, mark, final = completion.rpartition("#")
    if not mark:
        return Grade(0.0, 0.0, "unparseable")
    return Grade(1.0, 1.0, "correct") if final == answer else Grade(0.0, 0.0, "wrong")
