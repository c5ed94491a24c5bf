"""One rollout batch: sample, grade, and with dynamic sampling replace the groups that teach nothing."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter

from qae.policies.policy import Policy
from qae.rewards import Grade
from qae.rewards.overlong import overlong_penalty
from qae.sampling import Completion, Engine, SamplingParams
from qae.sampling.rng import row_key
from qae.tasks import Item, Task
from qae.trainer.config import TrainConfig

TRAIN_STREAM = 1


@dataclass(frozen=True)
class Group:
    """A prompt and its graded completions.

    Attributes:
        item: the problem.
        prompt: its token ids.
        completions: G of them.
        grades: one verdict each.
        penalties: overlong penalty of each, 0 or negative.
    """

    item: Item
    prompt: list[int]
    completions: list[Completion]
    grades: list[Grade]
    penalties: list[float]

    @property
    def rewards(self) -> list[float]:
        """The shaped reward of each completion; NaN where it was not scored."""
        return [
            math.nan if grade.reward is None else grade.reward + penalty
            for grade, penalty in zip(self.grades, self.penalties, strict=True)
        ]

    @property
    def outcomes(self) -> list[float]:
        """The verifier's outcome of each completion; NaN where it was not scored."""
        return [math.nan if grade.outcome is None else grade.outcome for grade in self.grades]

    @property
    def is_mixed(self) -> bool:
        """Whether its scored outcomes differ; decided before shaping, so that lengths cannot hide a flat group."""
        return len({outcome for outcome in self.outcomes if not math.isnan(outcome)}) > 1


@dataclass
class Batch:
    """The groups of one step and what it took to get them.

    Attributes:
        groups: those that the step trains on.
        sampled: all groups that were sampled, kept or not.
        cursor: index of the next training item.
        refills: sampling rounds after the first.
        sample_seconds: time spent sampling.
        grade_seconds: time spent grading.
    """

    groups: list[Group] = field(default_factory=list)
    sampled: list[Group] = field(default_factory=list)
    cursor: int = 0
    refills: int = 0
    sample_seconds: float = 0.0
    grade_seconds: float = 0.0

    @property
    def reasons(self) -> Counter[str]:
        """How often the grader gave each reason, over all sampled completions."""
        return Counter(grade.reason for group in self.sampled for grade in group.grades if grade.reason)


def collect(
    config: TrainConfig,
    policy: Policy,
    task: Task,
    engine: Engine,
    *,
    step: int,
    cursor: int,
    phase: Callable[..., None],
) -> Batch:
    """Sample and grade `rollout.prompts` groups; with dynamic sampling, until so many are mixed or refills run out.

    A refill asks for as many prompts as the mixed share so far says are needed, at most a full batch. Groups already
    accepted are always kept (DAPO's code starts from three full batches and cuts; the objective is the same).

    Args:
        config: the run's configuration.
        policy: for its tokenizer.
        task: the source of problems.
        engine: the sampler, with current weights.
        step: number of the step; part of the random streams.
        cursor: index of the first training item to use.
        phase: told of progress: phase(name, done, total, tokens).
    """
    rollout, dynamic = config.rollout, config.algorithm.dynamic_sampling
    batch = Batch(cursor=cursor)
    wanted = rollout.prompts
    for round_ in range(1 + (dynamic.max_refills if dynamic.enabled else 0)):
        batch.refills = round_
        items = [task.train_item(i) for i in range(batch.cursor, batch.cursor + wanted)]
        keys = [
            row_key(config.seed, TRAIN_STREAM, step, i, sample)
            for i in range(batch.cursor, batch.cursor + wanted)
            for sample in range(rollout.group_size)
        ]
        batch.cursor += wanted
        groups = _sample_groups(config, policy, task, engine, items, keys, batch, phase)
        batch.sampled += groups
        batch.groups += [group for group in groups if group.is_mixed or not dynamic.enabled]
        missing = rollout.prompts - len(batch.groups)
        if missing <= 0:
            break
        mixed_frac = max(len(batch.groups), 1) / len(batch.sampled)
        wanted = min(rollout.prompts, math.ceil(missing / mixed_frac))
    batch.groups = batch.groups[: rollout.prompts]
    return batch


def _sample_groups(
    config: TrainConfig,
    policy: Policy,
    task: Task,
    engine: Engine,
    items: list[Item],
    keys: list[int],
    batch: Batch,
    phase: Callable[..., None],
) -> list[Group]:
    size, overlong = config.rollout.group_size, config.algorithm.overlong
    started = perf_counter()
    prompts = [task.encode(item, policy.tokenizer) for item in items]
    completions = engine.generate(
        prompts,
        [i for i in range(len(items)) for _ in range(size)],
        keys,
        train_params(config, task),
        lambda done, total, tokens: phase("sample", done, total, tokens),
    )
    batch.sample_seconds += perf_counter() - started
    started = perf_counter()
    phase("grade", 0, len(completions), 0)
    grades = task.grade([(items[c.prompt_index], c.text) for c in completions])
    batch.grade_seconds += perf_counter() - started
    penalties = overlong_penalty(
        [len(c.token_ids) for c in completions],
        max_tokens=overlong.max_tokens or config.rollout.max_tokens,
        buffer_tokens=overlong.buffer_tokens,
        factor=overlong.factor,
    )
    if overlong.filter:
        grades = [
            Grade(None, None, "truncated") if c.truncated else g for c, g in zip(completions, grades, strict=True)
        ]
    groups: list[Group] = []
    for i, item in enumerate(items):
        own = slice(i * size, (i + 1) * size)
        groups.append(Group(item, prompts[i], completions[own], grades[own], penalties[own]))
    return groups


def train_params(config: TrainConfig, task: Task) -> SamplingParams:
    """How training samples: the full distribution at the rollout temperature."""
    return SamplingParams(
        max_tokens=config.rollout.max_tokens,
        temperature=config.rollout.temperature,
        stop=tuple(dict.fromkeys((*config.rollout.stop, *task.stop))),
    )


def difficulty_report(groups: Iterable[Group]) -> str:
    """Why no group teaches anything, in one line: pass rates by level and the grader's reasons."""
    groups = list(groups)
    levels: dict[str, list[float]] = {}
    for group in groups:
        levels.setdefault(group.item.level or "all", []).extend(o for o in group.outcomes if not math.isnan(o))
    rates = ", ".join(
        f"{level} {sum(outcomes) / len(outcomes):.2f}" if outcomes else f"{level} not scored"
        for level, outcomes in sorted(levels.items())
    )
    reasons = Counter(grade.reason for group in groups for grade in group.grades if grade.reason)
    counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    return f"pass rate by level: {rates}; verdicts: {counts or 'none'}"
