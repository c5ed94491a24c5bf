"""The run's problems as verl reads them: Parquet rows of chat messages, and what the reward function must know."""

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from qae.engines.verl.overrides import Place, Prompts
from qae.engines.verl.refusals import refuse_task
from qae.policies.source import resolve_source
from qae.records import atomic_write
from qae.tasks import Item, Task, make_task
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError

MOST_ROWS = 50_000
# Dynamic sampling uses more prompts than a step has.
SPARE = 4


def prepare(config: TrainConfig, place: Place) -> Prompts:
    """Write the prompts and the task's settings.

    Returns:
        What verl must be told of the prompts.

    Raises:
        ConfigError: the task or its prompts do not fit verl or the policy.
    """
    task = load_task(config)
    refuse_task(task, config)
    tokenizer = AutoTokenizer.from_pretrained(resolve_source(config.policy.path))
    fit_prompts(config, task, tokenizer)
    train = [task.train_item(i) for i in range(train_rows(config, task))]
    heldout = task.heldout_items(max(config.eval.problems, 1)) or train[:1]
    prompts = prompts_of(config, task, tokenizer, [*train, *heldout])
    place.root.mkdir(parents=True, exist_ok=True)
    for path, items in ((place.train, train), (place.heldout, heldout)):
        table = pa.Table.from_pylist([row(config, item, i) for i, item in enumerate(items)])
        pq.write_table(table, path)
    atomic_write(place.task, json.dumps({"task": config.task.model_dump(mode="json"), "seed": config.seed}))
    return prompts


def load_task(config: TrainConfig) -> Task:
    """The run's task.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        return make_task(config.task.model_dump(), config.seed)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def train_rows(config: TrainConfig, task: Task) -> int:
    """Rows to write: the whole of a finite set, or as many of an endless one as the run may use."""
    if task.size is not None:
        return task.size
    needed = config.steps * config.rollout.prompts
    return min(needed * (SPARE if config.algorithm.dynamic_sampling.enabled else 1), max(MOST_ROWS, needed))


def row(config: TrainConfig, item: Item, index: int) -> dict[str, Any]:
    """A problem in verl's columns."""
    return {
        "data_source": config.task.name,
        "prompt": messages(config, item),
        "ability": config.task.name,
        "reward_model": {"style": "rule", "ground_truth": item.answer},
        "extra_info": {"index": index, "id": item.id, "level": item.level, "prompt": json.dumps(item.prompt)},
    }


def messages(config: TrainConfig, item: Item) -> list[dict[str, str]]:
    """A prompt as chat messages, with the task's system message in front."""
    listed = [{"role": "user", "content": item.prompt}] if isinstance(item.prompt, str) else list(item.prompt)
    system = (config.task.model_extra or {}).get("system")
    if system and listed[0]["role"] != "system":
        listed = [{"role": "system", "content": system}, *listed]
    return listed


def prompts_of(config: TrainConfig, task: Task, tokenizer: PreTrainedTokenizerBase, items: Iterable[Item]) -> Prompts:
    """What the prompts are like; each is encoded as the local engine would, to know the longest.

    Raises:
        ConfigError: a raw prompt's special tokens have no text, or a prompt leaves no room for a completion.
    """
    items = list(items)
    encoded = [task.encode(item, tokenizer) for item in items]
    raw = is_raw(config, items[0], bool(tokenizer.chat_template))
    prefix = ""
    if raw:
        plain = tokenizer.encode(str(items[0].prompt), add_special_tokens=False)
        front = encoded[0][: len(encoded[0]) - len(plain)]
        if encoded[0][len(front) :] != plain:
            raise ConfigError(
                f"the tokenizer of {config.policy.path} changes a raw prompt; use chat prompts (task.chat)"
            )
        prefix = str(tokenizer.decode(front)) if front else ""
    longest, most = max(map(len, encoded)), room(config, tokenizer)
    if longest > most:
        raise ConfigError(
            f"the longest prompt has {longest} tokens, and only {most} leave room for rollout.max_tokens="
            f"{config.rollout.max_tokens} (or are allowed by engine.max_prompt_tokens): lower one or raise the other"
        )
    kwargs = (config.task.model_extra or {}).get("chat_template_kwargs")
    return Prompts(
        raw=raw,
        tokens=config.engine.max_prompt_tokens or longest,
        prefix=prefix,
        template_kwargs=None if raw else kwargs,
        notes=getattr(task, "notes", ()),
    )


def room(config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Longest prompt that leaves room for a completion, and that the configuration allows."""
    left = tokenizer.model_max_length - config.rollout.max_tokens
    return min(left, config.engine.max_prompt_tokens or left)


def fit_prompts(config: TrainConfig, task: Task, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a task that knows all its prompts refuse or leave out the long ones.

    Raises:
        ConfigError: there are some, and they are to be refused.
    """
    fit: Any = getattr(task, "fit_prompts", None)
    if fit is None:
        return
    try:
        fit(tokenizer, room(config, tokenizer))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def is_raw(config: TrainConfig, item: Item, has_template: bool) -> bool:
    """Whether prompts go to the model as plain text."""
    if not isinstance(item.prompt, str):
        return False
    if config.task.name != "data":
        return True
    chat = (config.task.model_extra or {}).get("chat")
    return not (has_template if chat is None else chat)


def assumed_prompts(config: TrainConfig) -> Prompts:
    """For a dry run: the prompts of the data where they can be read, else what the configuration says of them."""
    extra = config.task.model_extra or {}
    if config.task.name == "data" and extra.get("chat") and config.engine.max_prompt_tokens:
        return Prompts(
            raw=False, tokens=config.engine.max_prompt_tokens, template_kwargs=extra.get("chat_template_kwargs")
        )
    task = load_task(config)
    refuse_task(task, config)
    tokenizer = AutoTokenizer.from_pretrained(resolve_source(config.policy.path))
    fit_prompts(config, task, tokenizer)
    count = min(256, train_rows(config, task))
    return prompts_of(config, task, tokenizer, [task.train_item(i) for i in range(count)])
