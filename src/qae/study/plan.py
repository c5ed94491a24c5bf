"""A study as it is written down before its runs, and the runs that follow from it."""

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, field_validator, model_validator

from qae.records import BESIDES_THE_EXPERIMENT
from qae.trainer import keys
from qae.trainer.config import TrainConfig, resolve
from qae.trainer.keys import ConfigError

# Of a study's runs, unless it says otherwise: few files, and a kill costs at most ten steps.
RUN_DEFAULTS = (
    "records.rollouts=false",
    "checkpoint.every=10",
    "checkpoint.keep=1",
    "threads=1",
    "watch.entropy=ignore",
)
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


class Part(BaseModel):
    """A part of a study; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Block(Part):
    """A setting under which all arms are compared."""

    overrides: tuple[str, ...] = ()
    """`key=value` for each run of the block, before the arm's own."""
    minutes: PositiveFloat | None = None
    """Expected minutes a run; null: the study's."""


class Seeds(Part):
    """Another number of seeds for some cells."""

    arms: tuple[str, ...] = ()
    """Arms; none: all."""
    blocks: tuple[str, ...] = ()
    """Blocks; none: all."""
    seeds: Annotated[int, Field(ge=0, le=16)]
    """Number of seeds; 0 leaves the cells out."""


class Decision(Part):
    """How the answer will be read off, written down before the runs."""

    metric: str
    """The metric that decides."""
    margins: dict[str, PositiveFloat]
    """Metric -> smallest difference that matters."""
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Level of the tests, after Holm's correction over the arms of a block."""
    better: Literal["higher", "lower"] = "higher"
    """Which way the metric is good."""
    rule: str
    """The rule in words."""


class Question(Part):
    """One comparison that is asked before the runs."""

    ask: str
    """The question in a line."""
    arm: str
    """Treatment."""
    block: str = ""
    """Its block; `best` is the one with the best mean of the deciding metric."""
    against: str | None = None
    """Arm compared with; null: the study's baseline."""
    against_block: str | None = None
    """Its block, `best` likewise; null: the treatment's block."""
    metric: str | None = None
    """Null: the deciding metric."""
    expect: Literal["higher", "lower", "same", "nothing"] = "nothing"
    """What the paper, or we, expect."""
    why: str = ""
    """Who expects it, and why."""


class StudyConfig(Part):
    """A whole study."""

    name: str
    """Directory: runs/study-<name>/."""
    question: str
    """The question in a line."""
    base: str = "stage"
    """Recipe or YAML file of the runs."""
    overrides: tuple[str, ...] = ()
    """`key=value` for every run."""
    arms: dict[str, tuple[str, ...]]
    """Name -> overrides: what is compared."""
    blocks: dict[str, Block] = Field(default_factory=lambda: {"all": Block()})
    """Name -> settings under which the arms are compared."""
    baseline: str
    """The arm that the others are compared with, block by block."""
    seeds: Annotated[int, Field(ge=1, le=16)]
    """Seeds of each cell."""
    first_seed: Annotated[int, Field(ge=0)] = 0
    """The lowest one: a rule is tested on seeds that it was not made on."""
    more_seeds: tuple[Seeds, ...] = ()
    """Cells with another number of seeds; the last one that fits counts."""
    policies: tuple[str, ...] = ()
    """Initial policies; seed i starts from number i modulo their count. None: the base recipe's."""
    prepare: str = ""
    """Command that makes what the study needs beforehand, such as its policies."""
    metrics: tuple[str, ...] = ("eval/pass@1", "eval/pass@16", "eval/entropy")
    """Metrics compared, of the last evaluation."""
    decision: Decision
    questions: tuple[Question, ...] = ()
    """Asked before the runs, answered after."""
    minutes: PositiveFloat
    """Expected minutes of a run on one core."""
    notes: str = ""
    """What a reader should know."""

    @field_validator("blocks", mode="before")
    @classmethod
    def _short_blocks(cls, given: Any) -> Any:
        """`name: [key=value, ...]` is short for `name: {overrides: [...]}`."""
        if not isinstance(given, Mapping):
            return given
        blocks = cast(Mapping[str, Any], given)
        return {name: {"overrides": b} if isinstance(b, (list, tuple)) else b for name, b in blocks.items()}

    @model_validator(mode="after")
    def _possible(self) -> "StudyConfig":
        for kind, names in (("arm", self.arms), ("block", self.blocks)):
            for name in names:
                if not _NAME.fullmatch(name):
                    raise ValueError(f"{kind} {name!r}: names are letters, digits, and . + - _ between them")
        known_blocks = {*self.blocks, "best", ""}
        named = [("baseline", self.baseline, "")]
        for i, q in enumerate(self.questions):
            named += [(f"questions.{i}", q.arm, q.block)]
            named += [(f"questions.{i}", q.against or self.baseline, q.against_block or "")]
        for i, more in enumerate(self.more_seeds):
            named += [(f"more_seeds.{i}", arm, "") for arm in more.arms]
            named += [(f"more_seeds.{i}", self.baseline, block) for block in more.blocks]
        for key, arm, block in named:
            if arm not in self.arms:
                raise ValueError(f"{key}: no arm {arm!r}; the arms are {', '.join(self.arms)}")
            if block not in known_blocks:
                raise ValueError(f"{key}: no block {block!r}; the blocks are {', '.join(self.blocks)}")
        if len(self.blocks) > 1 and any(not q.block for q in self.questions):
            raise ValueError(f"a question of a study with blocks names its block: {', '.join(self.blocks)}, or best")
        for metric in (self.decision.metric, *self.decision.margins, *(q.metric for q in self.questions if q.metric)):
            if metric not in self.metrics:
                raise ValueError(f"{metric} is not among the study's metrics {', '.join(self.metrics)}")
        return self

    def seeds_of(self, arm: str, block: str) -> int:
        """Number of seeds of a cell."""
        found = self.seeds
        for more in self.more_seeds:
            if (not more.arms or arm in more.arms) and (not more.blocks or block in more.blocks):
                found = more.seeds
        return found

    def block_of(self, question: Question) -> str:
        """The block that a question is about; the only one if it does not say."""
        return question.block or next(iter(self.blocks))


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study.

    Attributes:
        arm: what is compared.
        block: under which setting.
        seed: equal seeds of two arms see the same prompts and start from the same policy.
        minutes: expected, on one core.
        overrides: on the base, complete and in order.
        base: recipe or file.
    """

    arm: str
    block: str
    seed: int
    minutes: float
    overrides: tuple[str, ...]
    base: str

    @property
    def label(self) -> str:
        """Its place below the study's directory."""
        return f"{self.block}/{self.arm}/seed-{self.seed}"

    @property
    def settings(self) -> int:
        """A number that tells what it computes from what others do.

        What only watches and records is left out, and defaults are, so that a later qae with one more setting knows the
        run again. Of its policy the name counts, wherever it is.
        """
        aside = {"name", *BESIDES_THE_EXPERIMENT}
        composed = self.config.model_dump(mode="json", exclude=aside, exclude_defaults=True)
        composed["policy"] = composed.get("policy", {}) | {"path": Path(self.config.policy.path).name}
        return zlib.crc32(json.dumps(composed, sort_keys=True).encode())

    @cached_property
    def config(self) -> TrainConfig:
        """Its whole configuration.

        Raises:
            ConfigError: it cannot be; names the run.
        """
        try:
            return resolve(self.base, self.overrides).config
        except ConfigError as error:
            raise ConfigError(f"{self.label}: {error}") from None


@dataclass(frozen=True)
class Study:
    """A study and its runs, those of one seed together, so that pairs are complete early."""

    config: StudyConfig
    runs: tuple[PlannedRun, ...]


def load_study(path: Path) -> Study:
    """Read a study and compose each of its runs.

    Args:
        path: the YAML file; a relative `base` or policy is looked for beside it first.

    Returns:
        The study.

    Raises:
        ConfigError: it cannot be: names the key, the value and the next step.
    """
    if not path.is_file():
        shipped = sorted(p.stem for p in path.parent.glob("*.yaml"))
        near = f"; there are {', '.join(shipped)} in {path.parent}" if shipped else ""
        raise ConfigError(f"no study {path}{near}")
    try:
        contents = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(contents, dict):
        found = "nothing" if contents is None else f"a {type(contents).__name__}"
        raise ConfigError(f"{path} must hold a mapping of keys such as name, arms and seeds, found {found}")
    try:
        return study_of(contents, beside=path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def study_of(contents: Mapping[str, Any], *, beside: Path = Path()) -> Study:
    """The study of a mapping; see `load_study`."""
    config = keys.validate(StudyConfig, contents)
    study = Study(config, tuple(_runs(config, beside)))
    different: dict[str, str] = {}
    for run in study.runs:
        if run.seed == config.first_seed:
            composed = json.dumps(run.config.model_dump(mode="json", exclude={"name"}), sort_keys=True)
            if composed in different:
                raise ConfigError(
                    f"{run.label} is the same run as {different[composed]}: give each arm its own setting"
                )
            different[composed] = run.label
    return study


def _runs(config: StudyConfig, beside: Path) -> list[PlannedRun]:
    most = max(config.seeds_of(arm, block) for arm in config.arms for block in config.blocks)
    base, policies = _found(config.base, beside), [_found(policy, beside) for policy in config.policies]
    runs: list[PlannedRun] = []
    for seed in range(config.first_seed, config.first_seed + most):
        for name, block in config.blocks.items():
            for arm, own in config.arms.items():
                if seed - config.first_seed >= config.seeds_of(arm, name):
                    continue
                policy = [f"policy.path={policies[seed % len(policies)]}"] if policies else []
                runs.append(
                    PlannedRun(
                        arm=arm,
                        block=name,
                        seed=seed,
                        minutes=block.minutes or config.minutes,
                        overrides=(
                            *RUN_DEFAULTS, *config.overrides, *block.overrides, *own, *policy, f"seed={seed}",
                            f"name={config.name}",
                        ),
                        base=base,
                    )
                )  # fmt: skip
    return runs


def _found(path: str, beside: Path) -> str:
    return str(beside / path) if (beside / path).exists() else path


def plan_text(study: Study, chosen: Sequence[PlannedRun], *, jobs: int, finished: int = 0, begun: int = 0) -> str:
    """What the study will do and how long it takes, and what it asks: nothing is computed.

    Args:
        study: the study.
        chosen: the runs to do now, all or some of them.
        jobs: runs at a time.
        finished: runs that are there already.
        begun: runs that will continue from a checkpoint.
    """
    config = study.config
    minutes = sum(run.minutes for run in chosen)
    lines = [f"{config.name}: {config.question}", ""]
    width = max(len(arm) for arm in config.arms)
    names = list(config.blocks)
    lines.append("seeds".ljust(width) + "".join(f"  {name:>8}" for name in names))
    for arm in config.arms:
        cells = (f"  {config.seeds_of(arm, name) or '-':>{max(8, len(name))}}" for name in names)
        lines.append(arm.ljust(width) + "".join(cells))
    lines += [
        "",
        f"{len(chosen)} runs, {minutes:.0f} minutes of one core: about {_hours(minutes / jobs)} with {jobs} jobs",
    ]
    if finished or begun:
        lines.append(f"{finished} runs are finished, {begun} continue from a checkpoint")
    if config.prepare:
        lines.append(f"before the first run: {config.prepare}")
    lines += ["", f"decides: {config.decision.metric} of the last evaluation; {' '.join(config.decision.rule.split())}"]
    lines += [f"asked: {question.ask}" for question in config.questions]
    return "\n".join(lines)


def _hours(minutes: float) -> str:
    return f"{minutes:.0f} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"


def check_policies(config: StudyConfig, runs: Iterable[PlannedRun]) -> None:
    """Refuse to begin while a directory that one of the runs starts from is not there.

    Raises:
        ConfigError: names the directory and the command that makes it.
    """
    for policy in dict.fromkeys(run.config.policy.path for run in runs):
        if "/" in policy and policy.startswith((".", "/", "policies/")) and not Path(policy).is_dir():
            made = f"; make it first: {config.prepare}" if config.prepare else ""
            raise ConfigError(f"no policy {policy}, from which runs of {config.name} start{made}")


def check_kept(study: Study, kept: Mapping[str, Any]) -> None:
    """Refuse to go on with a study whose question or rule is not the one written down before its first run.

    Arms, seeds and minutes may change: a plan may be cut or extended. The metrics, the baseline, the decision and the
    questions may not, as the runs have been seen.

    Args:
        study: as it is now.
        kept: `study.yaml` of its directory.

    Raises:
        ConfigError: names what changed.
    """
    now = study.config.model_dump(mode="json")
    before = keys.validate(StudyConfig, kept).model_dump(mode="json")
    for key in ("question", "metrics", "baseline", "decision", "questions"):
        if now[key] != before[key]:
            raise ConfigError(
                f"{key} of the study is not what was written down before its first run ({before[key]!r}): put it back, "
                "or start anew with another --out"
            )
