"""`data`: problems of the user's own, from a JSONL or Parquet file or the Hub."""

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from qae.rewards import Grade
from qae.rewards.function import PREFIX, FunctionGrader
from qae.rewards.grader import Grader
from qae.rewards.text import ExactGrader, LastNumberGrader
from qae.tasks.generated import is_heldout
from qae.tasks.prompts import encode_prompt
from qae.tasks.rows import Row, column, read_rows
from qae.tasks.task import Item

GRADERS: dict[str, Callable[[], Grader]] = {"exact": ExactGrader, "last_number": LastNumberGrader}

_Prompt = str | tuple[dict[str, str], ...]


class DataTask:
    """A user's data with mapped columns, a held-out part and a grader by name.

    A row's id is a hash of its prompt, so a prompt that occurs twice is on one side of the split. A gold answer
    that the grader cannot use gives None, never a reward; if no gold can be used, the data is refused.

    Args:
        seed: of the run; each pass over the training rows is shuffled by (seed, pass).
        path: a .jsonl or .parquet file, or a Hub id.
        prompt: column of the prompt: text, or a list of messages with role and content.
        answer: column of the gold answer; dots go into nested columns.
        grader: `exact`, `last_number`, or `python:module.function`.
        heldout: share of the rows that is held out by a hash of the prompt, if there is no `eval_path`.
        eval_path: data of its own to hold out; training rows with the same prompt are left out.
        split: of a Hub data set.
        eval_split: of the Hub data set at `eval_path`.
        subset: configuration of a Hub data set.
        level: column of a difficulty label, for the tables.
        chat: whether a text prompt becomes a user message in the tokenizer's chat template; None: if it has one.
        system: system message in front of chat prompts that have none.
        suffix: text appended to a text prompt, such as how to write the answer.
        chat_template_kwargs: further arguments of the chat template, such as `enable_thinking`.
        stop: strings that end a completion.

    Raises:
        ValueError: unreadable data, a missing column, a prompt that is none, an empty side of the split, an
            unknown grader, or no usable gold.
    """

    name = "data"

    def __init__(
        self,
        seed: int = 0,
        *,
        path: str,
        prompt: str = "prompt",
        answer: str = "answer",
        grader: str = "exact",
        heldout: float = 0.1,
        eval_path: str | None = None,
        split: str = "train",
        eval_split: str = "test",
        subset: str | None = None,
        level: str | None = None,
        chat: bool | None = None,
        system: str | None = None,
        suffix: str = "",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        stop: tuple[str, ...] | list[str] = (),
    ):
        self.stop = tuple(stop)
        self._seed, self._chat, self._system = seed, chat, system
        self._template_kwargs = dict(chat_template_kwargs or {})
        self._grader = make_grader(grader)
        self._rows: dict[str, Row] = {}
        read = functools.partial(self._read, columns=(prompt, answer, level), suffix=suffix)
        items = read(path, read_rows(path, split=split, subset=subset))
        if eval_path is not None:
            self._heldout = read(eval_path, read_rows(eval_path, split=eval_split, subset=subset))
            ids = {item.id for item in self._heldout}
        else:
            ids = {item.id for item in items if is_heldout(item.id, heldout)}
            self._heldout = [item for item in items if item.id in ids]
        self._train = [item for item in items if item.id not in ids]
        self._heldout = sorted({item.id: item for item in self._heldout}.values(), key=lambda item: item.id)
        self._check(path, len(items), heldout, grader)
        self.size: int | None = len(self._train)

    def train_item(self, i: int) -> Item:
        """Training item i: each pass goes through all rows once, in an order of its own."""
        turn, position = divmod(i, len(self._train))
        return self._train[self._order(turn)[position]]

    def heldout_items(self, count: int) -> list[Item]:
        """The first `count` held-out items, distinct, in an order that no seed moves; fewer if there are no more."""
        return self._heldout[:count]

    def grade(self, pairs: list[tuple[Item, str]]) -> list[Grade]:
        """The grader's verdicts; a reward function also sees the prompts and all columns of the row."""
        rows = [self._rows[item.id] for item, _ in pairs]
        names = dict.fromkeys(name for row in rows for name in row)
        return self._grader.grade(
            [(completion, item.answer) for item, completion in pairs],
            prompts=[item.prompt for item, _ in pairs],
            columns={name: [row.get(name) for row in rows] for name in names},
        )

    def encode(self, item: Item, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Token ids of the prompt, through the chat template unless it is raw text."""
        prompt = item.prompt
        if isinstance(prompt, str):
            if not (bool(tokenizer.chat_template) if self._chat is None else self._chat):
                return encode_prompt(prompt, tokenizer)
            prompt = ({"role": "user", "content": prompt},)
        if self._system is not None and prompt[0]["role"] != "system":
            prompt = ({"role": "system", "content": self._system}, *prompt)
        return encode_prompt(prompt, tokenizer, template_kwargs=self._template_kwargs)

    def _read(self, path: str, rows: list[Row], *, columns: tuple[str, str, str | None], suffix: str) -> list[Item]:
        prompt_column, answer_column, level_column = columns
        items: list[Item] = []
        for number, row in enumerate(rows, start=1):
            prompt = _prompt(column(row, prompt_column, path), suffix, f"{path}, row {number}: {prompt_column}")
            gold = column(row, answer_column, path)
            level = "" if level_column is None else str(column(row, level_column, path))
            item_id = hashlib.sha256(repr(prompt).encode()).hexdigest()[:16]
            items.append(Item(item_id, prompt, "" if gold is None else str(gold), level))
            self._rows[item_id] = row
        return items

    def _check(self, path: str, rows: int, heldout: float, grader: str) -> None:
        if not self._train:
            raise ValueError(f"{path}: all {rows} rows are held out; lower task.heldout or give more rows")
        if not self._heldout and heldout > 0:
            raise ValueError(
                f"{path}: task.heldout={heldout} of {rows} rows holds none out; raise it, give task.eval_path, or set "
                "task.heldout=0 to train without evaluation"
            )
        if isinstance(self._grader, FunctionGrader):
            return
        items = self._train + self._heldout
        reasons = Counter(grade.reason for grade in self.grade([(item, "") for item in items]))
        if reasons["unusable_gold"] == len(items):
            raise ValueError(
                f"{path}: the grader {grader} can use none of the {len(items)} answers (first: {items[0].answer!r}); "
                "choose another task.grader or task.answer column"
            )

    @functools.lru_cache(maxsize=2)  # noqa: B019  # a step may span two passes; a task lives as long as the run
    def _order(self, turn: int) -> list[int]:
        order = list(range(len(self._train)))
        Random(f"data/{self._seed}/{turn}").shuffle(order)
        return order


def make_grader(name: str) -> Grader:
    """The grader of a name in `GRADERS`, or the reward function `python:module.function`.

    Args:
        name: the name.

    Returns:
        The grader.

    Raises:
        ValueError: an unknown name, or a function that cannot be found or called.

    Example:
        >>> make_grader("last_number").grade([("it is 4", "4")])[0].reason
        'correct'
    """
    if name.startswith(PREFIX):
        return FunctionGrader(name)
    if name not in GRADERS:
        raise ValueError(f"task.grader={name}: must be {', '.join(GRADERS)} or {PREFIX}module.function")
    return GRADERS[name]()


def _prompt(value: object, suffix: str, where: str) -> _Prompt:
    if isinstance(value, str) and value.strip():
        return value + suffix
    if isinstance(value, list) and value:
        messages = [cast(Mapping[str, object], m) for m in cast(list[object], value) if isinstance(m, Mapping)]
        texts = [(m.get("role"), m.get("content")) for m in messages]
        found = tuple(
            {"role": role, "content": content}
            for role, content in texts
            if isinstance(role, str) and isinstance(content, str)
        )
        if len(found) == len(cast(list[object], value)):
            return found
    raise ValueError(f"{where} must be text or a list of messages with role and content, got {str(value)[:60]!r}")
