"""What a run would do, from its configuration alone: nothing is sampled and no weights are read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from qae.policies.source import resolve_source
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError

FLOAT_BYTES = 4
# Floats that a decoder layer keeps for the backward pass: of each token's width, and of its inner width.
KEPT_WIDTHS, KEPT_INNER_WIDTHS = 10, 4
SPARE_BYTES = 400e6  # torch, transformers and the interpreter themselves


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that its memory depends on.

    Attributes:
        parameters: how many.
        layers: decoder layers.
        width: hidden size.
        inner_width: of the feed-forward part.
        cache_width: keys and values of one token in one layer.
        vocabulary: tokens.
        context_tokens: longest prompt + completion.
    """

    parameters: int
    layers: int
    width: int
    inner_width: int
    cache_width: int
    vocabulary: int
    context_tokens: int


def policy_shape(path: str) -> Shape:
    """The shape of the model behind `policy.path`, without reading its weights.

    Raises:
        PolicyError: there is no such model.
    """
    config: Any = AutoConfig.from_pretrained(resolve_source(path))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    heads = text.num_attention_heads
    head_width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        inner_width=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        cache_width=2 * (getattr(text, "num_key_value_heads", None) or heads) * head_width,
        vocabulary=text.vocab_size,
        context_tokens=text.max_position_embeddings,
    )


def memory_bytes(config: TrainConfig, shape: Shape) -> dict[str, float]:
    """Rough peak memory in bytes by what needs it. Sampling and updating take turns, so the larger one counts.

    Args:
        config: of the run.
        shape: of its policy.

    Returns:
        Bytes of weights, optimiser state and gradients, work, and everything together.
    """
    rows = config.rollout.prompts * config.rollout.group_size
    tokens = config.update.tokens_per_microbatch
    kept = KEPT_WIDTHS * shape.width + KEPT_INNER_WIDTHS * shape.inner_width
    layers_kept = 1 if config.update.checkpoint_activations else shape.layers
    updating = FLOAT_BYTES * tokens * (layers_kept * kept + shape.layers * shape.width)
    cache = FLOAT_BYTES * rows * config.rollout.max_tokens * shape.layers * shape.cache_width
    sampling = cache + 3 * FLOAT_BYTES * rows * shape.vocabulary
    copies = 2 + (config.algorithm.kl > 0)  # the policy, the sampler's fused copy, the reference
    weights = FLOAT_BYTES * shape.parameters * copies
    learning = 0 if config.policy.lora else 3 * FLOAT_BYTES * shape.parameters
    parts = {"weights": weights, "gradients and moments": learning, "work": max(updating, sampling)}
    return {**parts, "together": sum(parts.values()) + SPARE_BYTES}


def describe_plan(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """(label, sentence) about what the run would do; the first ones need no model.

    Raises:
        PolicyError: `policy.path` names no model.
        ConfigError: its context is too short for `rollout.max_tokens`.
    """
    rollout, update, dynamic = config.rollout, config.update, config.algorithm.dynamic_sampling
    rows = rollout.prompts * rollout.group_size
    updates = update.minibatches * update.epochs
    tokens = rows * rollout.max_tokens
    refills = (
        f"; {(1 + dynamic.max_refills) * tokens:,} if flat groups are refilled {dynamic.max_refills} times"
        if dynamic.enabled and dynamic.max_refills
        else ""
    )
    yield (
        "a step",
        f"{rollout.prompts} prompts x {rollout.group_size} completions x {rollout.max_tokens} tokens at most",
    )
    yield "", f"= {tokens:,} tokens{refills}"
    yield "updates", f"{updates} a step, {updates * config.steps:,} in all, AdamW at lr {update.lr:g}"
    yield "zero rows", zero_rows(config)
    yield "evaluation", evaluations(config)
    shape = policy_shape(config.policy.path)
    if rollout.max_tokens >= shape.context_tokens:
        raise ConfigError(
            f"rollout.max_tokens={rollout.max_tokens} leaves no room for a prompt in the {shape.context_tokens} tokens "
            f"of the context of {config.policy.path}: lower it"
        )
    yield "policy", f"{config.policy.path}: {count(shape.parameters)} parameters, {shape.layers} layers"
    memory = memory_bytes(config, shape)
    parts = ", ".join(f"{name} {size(value)}" for name, value in memory.items() if name != "together" and value)
    yield "memory", f"up to about {size(memory['together'])} ({parts}, libraries {size(SPARE_BYTES)})"


def zero_rows(config: TrainConfig) -> str:
    """What happens to rows with advantage 0, and why."""
    if config.algorithm.skip_zero_advantage == "off":
        return "computed like all others (algorithm.skip_zero_advantage=off)"
    if reason := config.inexact_skipping():
        return f"computed like all others: {reason}"
    match config.algorithm.loss.name:
        case "clip_cov":
            return "left out of the backward pass; computed forward, as the covariance needs them"
        case "kl_cov":
            return "left out of the backward pass, unless the KL term selects one of their tokens"
        case _:
            return "left out of the update: their gradient is exactly 0 and the denominators keep counting them"


def evaluations(config: TrainConfig) -> str:
    """When and on how much the run evaluates."""
    problems, samples, every = config.eval.problems, config.eval.samples, config.eval.every
    if not problems:
        return "none (eval.problems=0)"
    between = f", every {every} steps" if every else ""
    return f"before{between} and after: {problems} held-out problems x {samples} samples"


def count(parameters: int) -> str:
    """A number of parameters, as people say it.

    Example:
        >>> count(612_000), count(134_515_008), count(7_600_000_000)
        ('0.61 M', '134.5 M', '7.60 B')
    """
    if parameters >= 1e9:
        return f"{parameters / 1e9:.2f} B"
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters / 1e6:.2f} M"


def size(number_of_bytes: float) -> str:
    """Bytes in MB or GB.

    Example:
        >>> size(2.4e6), size(1.54e9)
        ('2 MB', '1.5 GB')
    """
    return f"{number_of_bytes / 1e9:.1f} GB" if number_of_bytes >= 1e9 else f"{number_of_bytes / 1e6:.0f} MB"
