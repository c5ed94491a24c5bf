"""`data`: problems of the user's own, from a JSONL or Parquet file or the Hub."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerBase

from qae.rewards import Grade, make_grader
from qae.rewards.golds import none_usable
from qae.rewards.table import GraderSpec
from qae.tasks.columns import ANSWER_COLUMNS, PROMPT_COLUMNS, gold_text, guess_column
from qae.tasks.copies import merge_copies, problem_id
from qae.tasks.generated import is_heldout
from qae.tasks.prompts import encode_prompt, read_prompt, stop_strings
from qae.tasks.rows import Row, column, iter_rows
from qae.tasks.task import Item


class DataTask:
    """A user's data with mapped columns, a held-out part and a grader by name.

    The columns of verl's rows (prompt messages, reward_model.ground_truth) and TRL's (prompt, answer or solution)
    are found by themselves. Copies of a prompt are one problem, and a prompt whose copies have different answers
    is dropped; `notes` says how many. A gold answer that the grader cannot use gives None, never a reward; if none
    can be used, the data is refused.

    Args:
        seed: of the run; each pass over the training rows is shuffled by (seed, pass).
        path: a .jsonl or .parquet file, or a Hub id.
        prompt: column of the prompt: text, or a list of messages with role and content; None finds it.
        answer: column of the gold answer; dots go into nested columns; None finds it.
        grader: a grader of `qae.rewards` by name, one with settings, `python:module.function`, or a list of such.
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
        merge_copies: whether copies of a prompt are one problem; False keeps each row.
        long_prompts: what `fit_prompts` does with prompts that are too long: refuse or drop.

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
        prompt: str | None = None,
        answer: str | None = None,
        grader: GraderSpec = "math",
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
        stop: str | Sequence[str] = (),
        merge_copies: bool = True,
        long_prompts: str = "refuse",
    ):
        if long_prompts not in ("refuse", "drop"):
            raise ValueError(f"task.long_prompts={long_prompts!r} must be 'refuse' or 'drop'")
        if not 0 <= heldout <= 1:
            raise ValueError(f"task.heldout={heldout} must lie between 0 (hold nothing out) and 1")
        self.stop = stop_strings(stop)
        self.notes: tuple[str, ...] = ()
        self._seed, self._chat, self._system = seed, chat, system
        self._path, self._merge, self._long_prompts = path, merge_copies, long_prompts
        self._template_kwargs = dict(chat_template_kwargs or {})
        try:
            self._grader = make_grader(grader)
        except ValueError as error:
            raise ValueError(f"task.grader: {error}") from error
        self._rows: dict[tuple[str, str], Row] = {}
        read = functools.partial(self._read, columns=(prompt, answer, level), suffix=suffix)
        items = read(path, iter_rows(path, split=split, subset=subset))
        if eval_path is not None:
            self._heldout = read(eval_path, iter_rows(eval_path, split=eval_split, subset=subset))
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
        rows = [self._rows[item.id, item.answer] for item, _ in pairs]
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

    def fit_prompts(self, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> None:
        """Refuse or drop prompts longer than `max_tokens`, training and held-out ones; `notes` says how many.

        Args:
            tokenizer: of the policy.
            max_tokens: longest prompt that leaves room for a completion.

        Raises:
            ValueError: there are such prompts and they are to be refused, or none is left.
        """
        lengths = {item.id: len(self.encode(item, tokenizer)) for item in self._train + self._heldout}
        long = {item_id for item_id, length in lengths.items() if length > max_tokens}
        if not long:
            return
        found = (
            f"{len(long):,} of {len(lengths):,} prompts have more than {max_tokens:,} tokens (the longest "
            f"{max(lengths.values()):,})"
        )
        if self._long_prompts == "refuse":
            raise ValueError(
                f"{self._path}: {found}; set task.long_prompts=drop to leave them out, or lower rollout.max_tokens"
            )
        self._train = [item for item in self._train if item.id not in long]
        self._heldout = [item for item in self._heldout if item.id not in long]
        if not self._train:
            raise ValueError(f"{self._path}: {found}; no training prompt is left")
        self.size = len(self._train)
        self._order.cache_clear()
        self.notes += (f"{self._path}: {found} and are left out",)

    def _read(
        self, path: str, rows: Iterator[Row], *, columns: tuple[str | None, str | None, str | None], suffix: str
    ) -> list[Item]:
        items = self._items(path, rows, columns, suffix)
        if not self._merge:
            return list(items)
        kept, copies = merge_copies(items)
        self.notes += (f"{path}: {copies}",) if str(copies) else ()
        return kept

    def _items(
        self, path: str, rows: Iterator[Row], columns: tuple[str | None, str | None, str | None], suffix: str
    ) -> Iterator[Item]:
        prompt_column, answer_column, level_column = columns
        for number, row in enumerate(rows, start=1):
            prompt_column = prompt_column or guess_column(row, PROMPT_COLUMNS, "prompt", path)
            answer_column = answer_column or guess_column(row, ANSWER_COLUMNS, "answer", path)
            place = f"{path}, row {number}"
            prompt = read_prompt(column(row, prompt_column, place), f"{place}: {prompt_column}")
            gold = gold_text(column(row, answer_column, place))
            level = "" if level_column is None else str(column(row, level_column, place))
            item_id = problem_id(prompt)
            self._rows.setdefault((item_id, gold), row)
            yield Item(item_id, prompt + suffix if isinstance(prompt, str) else prompt, gold, level)

    def _check(self, path: str, rows: int, heldout: float, grader: GraderSpec) -> None:
        if not self._train:
            raise ValueError(f"{path}: all {rows} rows are held out; lower task.heldout or give more rows")
        if not self._heldout and heldout > 0:
            raise ValueError(
                f"{path}: task.heldout={heldout} of {rows} rows holds none out; raise it, give task.eval_path, or set "
                "task.heldout=0 to train without evaluation"
            )
        golds = [item.answer for item in self._train + self._heldout]
        if none_usable(self._grader, golds):
            raise ValueError(
                f"{path}: the grader {grader} can use none of the {len(golds)} answers (first: {golds[0]!r}); "
                "choose another task.grader or task.answer column"
            )

    @functools.lru_cache(maxsize=2)  # noqa: B019  # a step may span two passes; a task lives as long as the run
    def _order(self, turn: int) -> list[int]:
        order = list(range(len(self._train)))
        Random(f"data/{self._seed}/{turn}").shuffle(order)
        return order
