"""The configuration of a run: sections, presets, and where each value came from.

A value is taken from the first of these that gives it: command line, recipe (a YAML file), preset, default.
`resolve` merges the four and remembers the source of each key; `TrainConfig` validates the result.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from qae.trainer import keys

Flat = dict[str, Any]


class Section(BaseModel):
    """A part of the configuration; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PolicyConfig(Section):
    """The language model that is trained."""

    path: str = "tiny"
    """`tiny` (shipped), `smollm2` (after `qae fetch smollm2`), a Hugging Face directory, or a Hub id."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of matrix products. auto: bfloat16 where a probe of this processor finds it faster, else float32."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where the model lives. auto: cuda, then mps, then cpu."""
    lora: dict[str, Any] | None = None
    """LoRA settings for peft (for example `{r: 16}`); null trains every parameter. Needs the extra `lora`."""


class TaskConfig(BaseModel):
    """The problems and their grader; further keys belong to the task named."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    name: str = "arithmetic"
    """`arithmetic`, `few_shot_arithmetic`, ..., or `data` for a file of your own (implied by `task.path`)."""


AdvantageName = Literal[
    "asymre",
    "fixed",
    "leave_one_out",
    "leave_one_out_quantile",
    "mean",
    "neg_mask",
    "pos_mask",
    "quantile",
    "random_mask",
    "w_reinforce",
]


class AdvantageConfig(Section):
    """How rewards become advantages."""

    name: AdvantageName = "quantile"
    """`quantile` (QAE), `mean` (GRPO), `leave_one_out` (RLOO), or a control of the study."""
    k: float = 0.4
    """K of the quantile, a fraction in (0, 1). A prompt is hard while its pass rate is at most 1 - K."""
    baseline: FiniteFloat = 0.0
    """fixed only: the baseline, in the unit of the reward."""
    shift: FiniteFloat = 0.1
    """asymre only: how far the baseline lies below the group's mean."""
    positive_weight: NonNegativeFloat = 0.1
    """w_reinforce only: weight of a success, where a failure's is 1."""
    method: Literal["exact", "linear"] = "exact"
    """exact: inf{x : F(x) >= K}, the paper. linear: torch.quantile, the authors' code."""
    on: Literal["shaped", "outcome"] = "shaped"
    """shaped: the quantile sees the total reward. outcome: it sees the verifier's 0/1, shaping is added after."""
    scale: Literal["std", "mean", "none"] = "std"
    """What the centred reward is divided by: the group's std, the group's mean (MaxRL), or nothing (Dr. GRPO)."""
    divisor: Literal["n", "n-1"] = "n"
    """n: the population std of the paper's proof. n-1: the std of verl's and TRL's code."""
    eps: NonNegativeFloat = 1e-6
    """Added to the std before dividing."""
    flat_tolerance: NonNegativeFloat = 0.0
    """A group whose rewards differ by no more than this is flat and gets 0. Raise it for judge scores."""

    @field_validator("k")
    @classmethod
    def _fraction(cls, k: float) -> float:
        if 0 < k < 1:
            return k
        hint = f"; {k:g} per cent is k={k / 100:g}" if 2 <= k < 100 else ""
        raise ValueError(f"k is a fraction strictly between 0 and 1, got {k:g}{hint}")


# Each loss's own constants, sources in `qae.losses`. A key that a loss does not have is refused.
LOSS_DEFAULTS: dict[str, dict[str, float | None]] = {
    "clip": {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None},
    "sequence": {"clip_low": 3e-4, "clip_high": 4e-4},
    "clip_cov": {"clip_low": 1.0, "clip_high": 1.0, "select_frac": 2e-4, "cov_low": 1.0, "cov_high": 5.0},
    "kl_cov": {"select_frac": 2e-3, "kl_coef": 1.0},
    "cispo": {"clip_low": 10.0, "clip_high": 0.2},
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
}


class LossConfig(Section):
    """The per-token policy loss. A clip range that is not given is the loss's own default."""

    name: Literal["clip", "sequence", "clip_cov", "kl_cov", "cispo", "sapo"] = "clip"
    """`clip` (PPO/GRPO/DAPO), `sequence` (GSPO), `clip_cov`, `kl_cov`, `cispo`, `sapo`."""
    clip_low: NonNegativeFloat | None = None
    """Lower clip: the ratio's floor is 1 - clip_low."""
    clip_high: NonNegativeFloat | None = None
    """Upper clip: the ratio's cap is 1 + clip_high (Clip-Higher: larger than clip_low)."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """clip only: bound -A * dual_clip on the loss of negative advantages; verl's scripts use 3 or 10."""
    select_frac: Annotated[float, Field(gt=0, le=1)] | None = None
    """clip_cov and kl_cov only: share of the update's tokens that is detached or gets the KL term."""
    cov_low: float | None = None
    """clip_cov only: smallest covariance of a candidate token."""
    cov_high: float | None = None
    """clip_cov only: largest covariance of a candidate token."""
    kl_coef: NonNegativeFloat | None = None
    """kl_cov only: weight of |logprob - behaviour_logprob| on the selected tokens."""
    tau_positive: PositiveFloat | None = None
    """sapo only: temperature of the gate for positive advantages."""
    tau_negative: PositiveFloat | None = None
    """sapo only: temperature of the gate for the others."""

    @model_validator(mode="before")
    @classmethod
    def _constants(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("name", "clip") not in LOSS_DEFAULTS:
            return given
        name = given.get("name", "clip")
        constants = LOSS_DEFAULTS[name]
        for key, value in given.items():
            if key in cls.model_fields and key not in constants and key != "name" and value is not None:
                owners = " and ".join(loss for loss, own in LOSS_DEFAULTS.items() if key in own)
                raise ValueError(f"{key}={value} belongs to the loss {owners}, not to {name}")
        return {"name": name} | constants | {k: v for k, v in given.items() if v is not None}


class DynamicSamplingConfig(Section):
    """DAPO's dynamic sampling: groups that are all right or all wrong are replaced by new prompts."""

    enabled: bool = True
    """Drop flat groups and sample new prompts for them."""
    max_refills: NonNegativeInt = 10
    """Further sampling rounds a step; then the step trains on what there is and says so."""


class OverlongConfig(Section):
    """DAPO's soft penalty on long completions, and the masking of truncated ones."""

    max_tokens: PositiveInt | None = None
    """Length at which the penalty reaches -factor; null: rollout.max_tokens."""
    buffer_tokens: NonNegativeInt = 0
    """Length of the ramp before max_tokens; 0: no penalty."""
    factor: NonNegativeFloat = 1.0
    """Size of the full penalty."""
    filter: bool = False
    """Leave truncated completions out of the update and of their group's statistics."""


class AlgorithmConfig(Section):
    """The objective."""

    preset: Literal["grpo", "dr_grpo", "rloo", "dapo", "gspo", "clip_cov", "kl_cov"] = "dapo"
    """Family whose settings fill the algorithm's keys that are not given."""
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    reduction: Literal["token_mean", "sequence_mean", "sequence_sum", "sequence_sum_norm"] = "token_mean"
    """How per-token losses become one number; denominators are the update's counts before any row is dropped."""
    kl: NonNegativeFloat = 0.0
    """Weight of the k3 KL penalty to the initial policy."""
    entropy_bonus: float = 0.0
    """Weight of the entropy bonus; 0 unless you ask for it."""
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    overlong: OverlongConfig = OverlongConfig()
    skip_zero_advantage: Literal["auto", "on", "off"] = "auto"
    """Leave rows with advantage 0 out of the update. auto: where exact, else dense. on: refuse where not exact."""

    @field_validator("skip_zero_advantage", mode="before")
    @classmethod
    def _yaml_booleans(cls, value: Any) -> Any:
        """YAML reads a bare `on` and `off` as booleans."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class RolloutConfig(Section):
    """Sampling of completions; training samples from the full distribution (no top-p, no top-k)."""

    engine: Literal["builtin", "vllm"] = "builtin"
    """`builtin`, or `vllm` (extra `vllm`, experimental)."""
    prompts: PositiveInt = 32
    """Prompts a step."""
    group_size: int = 8
    """Completions a prompt (G)."""
    max_tokens: PositiveInt = 72
    """Longest completion in tokens."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature; log-probs and entropies are taken at it."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion, beside the EOS ids and the task's own."""

    @field_validator("group_size")
    @classmethod
    def _a_group(cls, group_size: int) -> int:
        if group_size >= 2:
            return group_size
        raise ValueError(
            f"group_size is the number of completions a prompt and must be at least 2, got {group_size}: "
            "a group of one has no baseline and every advantage would be 0"
        )


class UpdateConfig(Section):
    """The optimiser steps on one rollout batch."""

    minibatches: PositiveInt = 8
    """Updates a step and epoch: 1 is on-policy, more make the data of later updates stale."""
    epochs: PositiveInt = 1
    """Passes over the rollout batch: more than 1 reuses data."""
    tokens_per_microbatch: PositiveInt = 4096
    """Tokens of one forward and backward pass: bounds memory, does not change the result."""
    lr: PositiveFloat = 3e-5
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or down to 0 at the last step."""
    warmup: NonNegativeInt = 10
    """Updates over which the learning rate rises linearly."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates."""
    weight_decay: NonNegativeFloat = 0.1
    """AdamW's decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """Bound on the gradient's norm."""
    cut: Literal["groups", "rows"] = "groups"
    """Mini-batches keep groups whole (groups) or are cut by rows (rows)."""
    behaviour_logprobs: Literal["auto", "sampler", "recompute"] = "auto"
    """Where behaviour log-probs come from. auto: the sampler, recomputed for GSPO or above gap_bound."""
    gap_bound: PositiveFloat = 0.01
    """Largest sampler-trainer log-prob difference, in nats, that auto accepts."""
    importance_cap: PositiveFloat | None = None
    """With recomputed log-probs: weight tokens by min(exp(recomputed - sampler), cap). null: no weights."""
    checkpoint_activations: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


class EvalConfig(Section):
    """Evaluation on held-out problems: before, during and after training."""

    every: NonNegativeInt = 25
    """Steps between evaluations; 0: only before and after."""
    problems: NonNegativeInt = 96
    """Held-out problems; 0 turns evaluation off."""
    samples: PositiveInt = 16
    """Completions a problem: pass@1 and pass@samples are reported."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature of the evaluation; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus of the evaluation."""


class CheckpointConfig(Section):
    """What a run leaves behind to continue from."""

    every: NonNegativeInt = 25
    """Steps between checkpoints; 0: only at the end."""
    keep: PositiveInt = 2
    """Checkpoints kept; older ones are deleted."""


class RecordsConfig(Section):
    """What is written beside the metrics."""

    rollouts: bool = True
    """Write every completion of every step to rollouts/."""
    token_details: NonNegativeInt = 4
    """Completions a step for which token ids, log-probs and entropies are written too."""


class WatchConfig(Section):
    """The entropy detector (`qae.detect`) while the run goes on."""

    entropy: Literal["ignore", "warn", "checkpoint", "stop"] = "warn"
    """An explosion, collapse or oscillation: nothing, a warning, also a checkpoint, or also the end of the run."""


class EngineConfig(Section):
    """What runs the experiment. Keys beside the name belong to `verl`."""

    name: Literal["local", "verl"] = "local"
    """`local`: this process. `verl`: Ray workers (FSDP2 and vLLM), on one machine or a cluster."""
    platform: Literal["cuda", "cpu"] = "cuda"
    """verl only. `cpu`: processors, gloo and the built-in sampler, for development and CI."""
    workers: PositiveInt = 8
    """verl only: GPUs (or processes, on cpu) of each node."""
    nodes: PositiveInt = 1
    """verl only: machines; more than one need a Ray cluster that has them."""
    rollout: Literal["vllm", "sglang"] = "vllm"
    """verl only: what samples on GPUs."""
    tensor_parallel: PositiveInt = 1
    """verl only: GPUs that share one rollout replica."""
    max_prompt_tokens: PositiveInt | None = None
    """verl only: longest prompt; null: as long as the longest one is, or the model's context leaves."""
    prepare_only: bool = False
    """verl only: write data, settings and the command into the run directory, and run nothing."""
    overrides: tuple[str, ...] = ()
    """verl only: further overrides in verl's own words, which come last."""

    @model_validator(mode="after")
    def _belongs(self) -> "EngineConfig":
        if self.name == "local":
            for key, field in type(self).model_fields.items():
                if key != "name" and getattr(self, key) != field.default:
                    raise ValueError(f"{key}={getattr(self, key)} belongs to engine=verl; add engine=verl")
        return self


class TrainConfig(Section):
    """A whole run. `TrainConfig.load("tiny", "steps=5")` reads a recipe; keyword arguments build one in Python."""

    name: str = "tiny"
    """Run directory: runs/<name>-<time>/."""
    seed: NonNegativeInt = 0
    """Seed of prompts, sampling and selection."""
    steps: PositiveInt = 100
    """Rollout batches."""
    threads: PositiveInt | None = None
    """Threads of torch; null: torch's own choice."""
    policy: PolicyConfig = PolicyConfig()
    task: TaskConfig = TaskConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    rollout: RolloutConfig = RolloutConfig()
    update: UpdateConfig = UpdateConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    records: RecordsConfig = RecordsConfig()
    watch: WatchConfig = WatchConfig()
    track: tuple[Literal["jsonl", "tensorboard", "wandb", "trackio", "mlflow"], ...] = ("jsonl",)
    """Copies of the metrics: `tensorboard`, `wandb`, `trackio`, `mlflow` (extras); `jsonl` is written in any case."""
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        plain = {k: v.model_dump() if isinstance(v, BaseModel) else v for k, v in given.items()}
        flat = keys.flatten(plain)
        keys.refuse_unknown(flat, known_keys())
        return keys.unflatten(keys.merge([_preset_layer([flat]), flat]))

    @model_validator(mode="after")
    def _possible(self) -> "TrainConfig":
        algorithm, rollout, update = self.algorithm, self.rollout, self.update
        if algorithm.loss.name == "sequence" and algorithm.reduction == "token_mean":
            raise ValueError(
                "algorithm.reduction=token_mean with algorithm.loss=sequence is not GSPO's objective "
                "(arXiv:2507.18071, eq. 5): set algorithm.reduction=sequence_mean"
            )
        if algorithm.advantage.name != "mean" and algorithm.advantage.scale == "mean":
            raise ValueError(
                "algorithm.advantage.scale=mean belongs to algorithm.advantage=mean (MaxRL); use std or none"
            )
        if algorithm.advantage.on == "outcome" and algorithm.advantage.name != "quantile":
            raise ValueError(
                "algorithm.advantage.on=outcome gates a quantile; with "
                f"algorithm.advantage={algorithm.advantage.name} use algorithm.advantage.on=shaped"
            )
        pieces = rollout.prompts if update.cut == "groups" else rollout.prompts * rollout.group_size
        if update.minibatches > pieces:
            raise ValueError(
                f"update.minibatches={update.minibatches} is more than the {pieces} {update.cut} of a step: "
                f"raise rollout.prompts or lower update.minibatches"
            )
        if algorithm.overlong.buffer_tokens > (algorithm.overlong.max_tokens or rollout.max_tokens):
            raise ValueError(
                f"algorithm.overlong.buffer_tokens={algorithm.overlong.buffer_tokens} is longer than "
                "algorithm.overlong.max_tokens (rollout.max_tokens if not given)"
            )
        reason = self.inexact_skipping()
        if algorithm.skip_zero_advantage == "on" and reason:
            raise ValueError(f"algorithm.skip_zero_advantage=on is refused: {reason}; use auto or off")
        return self

    def inexact_skipping(self) -> str | None:
        """Why leaving out rows with advantage 0 would change the gradient, or None if it would not."""
        if self.algorithm.kl:
            return f"the KL penalty (algorithm.kl={self.algorithm.kl:g}) acts on rows with advantage 0 too"
        if self.algorithm.entropy_bonus:
            return f"the entropy bonus ({self.algorithm.entropy_bonus:g}) acts on rows with advantage 0 too"
        return None

    @classmethod
    def load(cls, recipe: str | Mapping[str, Any] | None = None, *overrides: str) -> "TrainConfig":
        """The configuration of a recipe (name, path or mapping) with `key.path=value` overrides.

        Example:
            >>> TrainConfig.load("tiny", "algorithm.advantage=mean", "steps=5").algorithm.advantage.name
            'mean'
        """
        return resolve(recipe, overrides).config


# Keys that a preset owns. Clip ranges stand here only where the family departs from the loss's own default.
PRESETS: dict[str, Flat] = {
    "grpo": {
        "algorithm.loss.name": "clip",
        "algorithm.reduction": "sequence_mean",
        "algorithm.dynamic_sampling.enabled": False,
    },
    "dr_grpo": {
        "algorithm.advantage.scale": "none",
        "algorithm.loss.name": "clip",
        "algorithm.reduction": "sequence_sum_norm",
        "algorithm.dynamic_sampling.enabled": False,
    },
    "rloo": {
        "algorithm.advantage.name": "leave_one_out",
        "algorithm.advantage.scale": "none",
        "algorithm.loss.name": "clip",
        "algorithm.reduction": "sequence_sum",
        "algorithm.dynamic_sampling.enabled": False,
    },
    "dapo": {
        "algorithm.loss.name": "clip",
        "algorithm.loss.clip_high": 0.28,
        "algorithm.reduction": "token_mean",
        "algorithm.dynamic_sampling.enabled": True,
    },
    "gspo": {
        "algorithm.loss.name": "sequence",
        "algorithm.reduction": "sequence_mean",
        "algorithm.dynamic_sampling.enabled": False,
    },
    "clip_cov": {
        "algorithm.loss.name": "clip_cov",
        "algorithm.reduction": "token_mean",
        "algorithm.dynamic_sampling.enabled": False,
    },
    "kl_cov": {
        "algorithm.loss.name": "kl_cov",
        "algorithm.reduction": "token_mean",
        "algorithm.dynamic_sampling.enabled": False,
    },
}


@dataclass(frozen=True)
class Resolved:
    """A configuration and the source of each of its keys: default, preset <name>, <recipe>, or command line."""

    config: TrainConfig
    sources: dict[str, str]


def resolve(recipe: str | Mapping[str, Any] | None = None, overrides: Iterable[str] = ()) -> Resolved:
    """Merge defaults, preset, recipe and command line, and validate the result.

    Args:
        recipe: the name of a shipped recipe, the path of a YAML file, a mapping, or None for `tiny`.
        overrides: `key.path=value`, values in YAML. `section=x` is short for `section.name=x`.

    Raises:
        ConfigError: an unknown recipe or key (with the nearest right one), or a value that cannot be.
    """
    label, given = keys.read_recipe("tiny" if recipe is None else recipe)
    from_recipe = keys.flatten(given)
    from_command = keys.parse_overrides(overrides)
    for layer in (from_recipe, from_command):
        keys.refuse_unknown(layer, known_keys())
    if "algorithm.preset" in from_command:
        owned = PRESETS.get(from_command["algorithm.preset"], {})
        from_recipe = {key: value for key, value in from_recipe.items() if key not in owned}
    preset = _preset_layer([from_recipe, from_command])
    layers = {
        f"preset {preset['algorithm.preset']}": {k: v for k, v in preset.items() if k != "algorithm.preset"},
        label: from_recipe,
        "command line": from_command,
    }
    merged = keys.merge(list(layers.values()))
    config = keys.validate(TrainConfig, keys.unflatten(merged))
    return Resolved(config, {key: _source(key, merged, layers) for key in keys.flatten(config.model_dump())})


def _source(key: str, merged: Flat, layers: Mapping[str, Flat]) -> str:
    if key not in merged:
        return "loss default" if key.startswith("algorithm.loss.") else "default"
    return [name for name, layer in layers.items() if key in layer][-1]


def _preset_layer(layers: list[Flat]) -> Flat:
    """The preset's values for the layers above it, and the loss's own constants under them."""
    above = keys.merge(layers)
    name = above.get("algorithm.preset", AlgorithmConfig.model_fields["preset"].default)
    owned = {"algorithm.preset": name, **PRESETS.get(name, {})}
    loss = above.get("algorithm.loss.name", owned.get("algorithm.loss.name"))
    if loss != owned.get("algorithm.loss.name"):
        owned = {key: value for key, value in owned.items() if not key.startswith("algorithm.loss.")}
    return owned


def known_keys() -> dict[str, str]:
    """Every key of the configuration with its meaning, in order; keys of a task end in `*`."""
    return {key: text for key, _, text in describe()}


def describe() -> Iterator[tuple[str, Any, str]]:
    """(key, default, meaning) of every key, in the order of the sections."""
    yield from _describe(TrainConfig, "")


def _describe(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any, str]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _describe(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.default, field.description or ""
    if section.model_config.get("extra") == "allow":
        yield f"{prefix}*", None, "Keys of the task named, see its documentation."
    if section is PolicyConfig:
        yield f"{prefix}lora.*", None, "Keys of peft's LoraConfig."
