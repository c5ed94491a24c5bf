"""`reasoning_gym`: any of reasoning-gym's generated tasks, by its name there."""

import hashlib
import importlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerBase

from qae.rewards import Grade
from qae.rewards.extract import extract_answer
from qae.rewards.gym import UNPARSEABLE, GymScorer, make_dataset
from qae.tasks.generated import is_heldout
from qae.tasks.prompts import encode_prompt, stop_strings
from qae.tasks.task import Item

SUFFIX = "\nGive the final answer between <answer> and </answer>."

_REMEMBERED = 100_000
_TRIES = 1_000


class ReasoningGymTask:
    """Problems of a reasoning-gym task, scored by the task itself in processes that are killed at a deadline.

    A problem's id is a hash of its question; a share of all questions, by that hash, is held out for every seed. Scores
    between 0 and 1 are partial credit: they are the reward, and only a full score counts as correct. Questions are
    drawn with repetition from the first `problems` of the task; some tasks make all of them when they are loaded.

    Args:
        seed: of the run; training item i is a pure function of (seed, i).
        dataset: name in reasoning-gym, such as `chain_sum`.
        settings: of that task, such as `{min_terms: 2, max_terms: 3}`.
        problems: size of the task.
        heldout: share of the questions that is held out.
        suffix: text after the question; None asks for `<answer>` tags.
        extract: where the answer is found, in order of preference (`qae.rewards.extract`).
        chat: whether the question becomes a user message; None: if the tokenizer has a chat template.
        system: system message of chat prompts.
        chat_template_kwargs: further arguments of the chat template.
        stop: strings that end a completion.

    Raises:
        ValueError: reasoning-gym is missing, or the task or a setting is unknown.
    """

    name = "reasoning_gym"
    size: int | None = None

    def __init__(
        self,
        seed: int = 0,
        *,
        dataset: str,
        settings: Mapping[str, Any] | None = None,
        problems: int = 10_000,
        heldout: float = 0.1,
        suffix: str | None = None,
        extract: Sequence[str] = ("tag", "boxed", "answer_line", "last_number"),
        chat: bool | None = None,
        system: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        stop: str | Sequence[str] = (),
    ):
        if not 0 < heldout < 1:
            raise ValueError(f"task.heldout={heldout} must lie between 0 and 1")
        if problems < 2:
            raise ValueError(f"task.problems={problems} must be at least 2")
        extract_answer("", extract)
        self.stop = stop_strings(stop)
        self._seed, self._heldout, self._extract = seed, heldout, tuple(extract)
        self._suffix = SUFFIX if suffix is None else suffix
        self._chat, self._system = chat, system
        self._template_kwargs = dict(chat_template_kwargs or {})
        self._name, self._problems = dataset, problems
        self._dataset = _create(dataset, dict(settings or {}), problems)
        self._scorer = GymScorer(dataset, dict(settings or {}), problems)
        self._places: OrderedDict[str, int] = OrderedDict()

    def train_item(self, i: int) -> Item:
        """Training item i, never a held-out question."""
        draw = Random(f"{self.name}/{self._name}/{self._seed}/{i}")
        for _ in range(_TRIES):
            item = self._item(draw.randrange(self._problems))
            if not is_heldout(item.id, self._heldout):
                return item
        raise ValueError(f"task.dataset={self._name}: {_TRIES} questions drawn and all held out; lower task.heldout")

    def heldout_items(self, count: int) -> list[Item]:
        """The first `count` held-out questions, distinct, the same for every seed; fewer if there are no more."""
        draw = Random(f"{self.name}/{self._name}/heldout")
        found: dict[str, Item] = {}
        for _ in range(_TRIES + 100 * count):
            if len(found) == count:
                break
            item = self._item(draw.randrange(self._problems))
            if is_heldout(item.id, self._heldout):
                found.setdefault(item.id, item)
        return list(found.values())

    def grade(self, pairs: list[tuple[Item, str]]) -> list[Grade]:
        """The task's own score of the extracted answer."""
        answers = [extract_answer(completion, self._extract) for _, completion in pairs]
        places = [self._places[item.id.rpartition("/")[2]] for item, _ in pairs]
        given = zip(places, answers, strict=True)
        asked = list(dict.fromkeys((place, answer) for place, answer in given if answer is not None))
        found = self._scorer.scores([(self._dataset[place], answer) for place, answer in asked])
        scores = dict(zip(asked, found, strict=True))
        return [
            _grade(UNPARSEABLE if answer is None else scores[place, answer])
            for place, answer in zip(places, answers, strict=True)
        ]

    def encode(self, item: Item, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Token ids of the question, through the chat template unless it is raw text."""
        if not (bool(tokenizer.chat_template) if self._chat is None else self._chat):
            return encode_prompt(str(item.prompt), tokenizer)
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        messages = [*system, {"role": "user", "content": str(item.prompt)}]
        return encode_prompt(messages, tokenizer, template_kwargs=self._template_kwargs)

    def _item(self, place: int) -> Item:
        entry = self._dataset[place]
        question = str(entry["question"])
        item_id = hashlib.sha256(f"{self._name}/{question}".encode()).hexdigest()[:16]
        self._places[item_id] = place
        if len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)
        answer = "" if entry["answer"] is None else str(entry["answer"])
        return Item(f"{self._name}/{item_id}", question + self._suffix, answer)


def _grade(score: float | str) -> Grade:
    if isinstance(score, str):
        return Grade(0.0, 0.0, score)
    correct = score >= 1.0
    return Grade(float(correct), score, "correct" if correct else "wrong")


def _create(name: str, settings: dict[str, Any], problems: int) -> Any:
    try:
        known = importlib.import_module("reasoning_gym.factory").DATASETS
    except ImportError:
        raise ValueError("task reasoning_gym needs its library: pip install 'qae[tasks]'") from None
    if name not in known:
        raise ValueError(f"task.dataset={name}: reasoning-gym has no such task; it has {', '.join(sorted(known))}")
    try:
        return make_dataset(name, json.dumps(settings), problems)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"task.dataset={name} with settings {settings}: {error}") from error
