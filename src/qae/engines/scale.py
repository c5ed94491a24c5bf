"""A run's size on paper: memory of a GPU, tokens and seconds of a step by phase, and what skipping rows saves.

Every number follows from the formulas below and the rates of `GPUS`; nothing here was measured. P is the number of
parameters, A those active for a token (all but in a mixture of experts), N the GPUs, bytes of bfloat16 2, of float32 4.

    states     16 P / N                 float32 weights, gradients and AdamW's two moments, sharded over N by FSDP2
    layer      2 * 2 P / layers         one layer gathered, and the next one on its way
    acts       tokens (2 layers + 34) width    bfloat16; checkpointed: one vector a layer, and one layer in full
    logits     6 tokens vocabulary      bfloat16 and float32 of a micro-batch
    kv         4 layers kv_width        bytes of a token's keys and values; kv_width is kv heads x head width
    forward    2 A + 2 layers attention_width length    operations a token, attention over half the length
    update     4 forward                forward, recomputed forward, backward of two; 3 forward without checkpointing
    old        1 forward                log-probs before the updates, over all rows
    decode     an iteration reads the weights and the running rows' keys and values once, or computes 2 A a row,
               whichever takes longer; as many rows run as the memory holds; the longest completion cannot be split
    gather     3 * 2 P a micro-batch    FSDP2's traffic of a GPU (forward, backward, gradients), beside the compute
    sync       2 P / tensor_parallel    new weights to the sampler
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError

GIGA = 1e9


@dataclass(frozen=True)
class Gpu:
    """Rates of one GPU.

    Attributes:
        memory_gb: of the card.
        tflops: bfloat16, dense, peak.
        bandwidth_gb: of its memory, a second.
        network_gb: to other nodes, a second.
    """

    memory_gb: float
    tflops: float
    bandwidth_gb: float
    network_gb: float = 50.0


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder.

    Attributes:
        parameters: all of them.
        active: for one token.
        layers: decoder layers.
        width: hidden size.
        attention_width: heads x head width.
        kv_width: kv heads x head width.
        vocabulary: tokens.
    """

    parameters: float
    active: float
    layers: int
    width: int
    attention_width: int
    kv_width: int
    vocabulary: int


# Data sheets: dense bfloat16 without sparsity.
GPUS = {
    "a100": Gpu(80, 312, 2039, 25),
    "h100": Gpu(80, 989, 3350),
    "h200": Gpu(141, 989, 4800),
    "b200": Gpu(180, 2250, 8000),
}
# Model cards and config.json of the Qwen3 base models.
MODELS = {
    "Qwen/Qwen3-8B-Base": Model(8.19e9, 8.19e9, 36, 4096, 4096, 1024, 151_936),
    "Qwen/Qwen3-14B-Base": Model(14.77e9, 14.77e9, 40, 5120, 5120, 1024, 151_936),
    "Qwen/Qwen3-30B-A3B-Base": Model(30.53e9, 3.35e9, 48, 2048, 4096, 512, 151_936),
}
# Shares of the peak that such runs reach: usual figures, not measured here.
TRAIN_UTILISATION, SCORE_UTILISATION, DECODE_BANDWIDTH, DECODE_UTILISATION = 0.35, 0.40, 0.5, 0.5
MEMORY_FOR_SAMPLING = 0.8
GPUS_A_NODE = 8


@dataclass(frozen=True)
class Estimate:
    """One configuration on N GPUs.

    Attributes:
        gpus: N.
        memory_gb: of a GPU in the update, by part.
        sampling_gb: of a GPU in sampling: weights, and keys and values of the rows that run.
        running_rows: rows that decode at once on a replica.
        tokens: completion tokens of a step.
        seconds: of a step, by phase.
        tail_bound: whether the longest completion, not the throughput, sets the time of sampling.
        network_bound: whether FSDP's traffic, not the compute, sets the time of the update.
    """

    gpus: int
    memory_gb: dict[str, float]
    sampling_gb: float
    running_rows: int
    tokens: float
    seconds: dict[str, float]
    tail_bound: bool
    network_bound: bool

    @property
    def step_seconds(self) -> float:
        """All phases of a step."""
        return sum(self.seconds.values())


def estimate(
    config: TrainConfig,
    model: Model,
    gpu: Gpu,
    gpus: int,
    *,
    mean_tokens: float,
    kept_frac: float = 1.0,
    sampled_frac: float = 1.0,
) -> Estimate:
    """Memory and time of a step by the formulas of this module.

    Args:
        config: of the run.
        model: its sizes.
        gpu: its rates.
        gpus: how many.
        mean_tokens: of a completion.
        kept_frac: rows that enter the update: 1 without skipping.
        sampled_frac: completions sampled for each one trained on: above 1 with dynamic sampling.

    Returns:
        The estimate.

    Raises:
        ConfigError: the GPUs cannot be cut into replicas.
    """
    tensor, rollout = config.engine.tensor_parallel, config.rollout
    if gpus % tensor:
        raise ConfigError(f"{gpus} GPUs cannot be cut into replicas of engine.tensor_parallel={tensor}")
    peak, bandwidth = gpu.tflops * 1e12, gpu.bandwidth_gb * GIGA * DECODE_BANDWIDTH
    prompt = config.engine.max_prompt_tokens or 512
    rows = rollout.prompts * rollout.group_size
    tokens, length = rows * mean_tokens, prompt / 2 + mean_tokens
    forward = 2 * model.active + 2 * model.layers * model.attention_width * length
    passes = 4 if config.update.checkpoint_activations else 3

    weights = 2 * model.parameters / tensor
    kv = 4 * model.layers * model.kv_width / tensor
    room = max(0.0, gpu.memory_gb * GIGA * MEMORY_FOR_SAMPLING - weights)
    asked = ceil(sampled_frac * rows / (gpus / tensor))
    running = max(1, min(asked, int(room / (kv * length))))
    iteration = _iteration(model, running, weights, kv * length, bandwidth, peak * tensor)
    through = asked * mean_tokens / running * iteration
    tail = rollout.max_tokens * _iteration(model, 1, weights, kv * rollout.max_tokens, bandwidth, peak * tensor)

    everything = rows * length
    microbatches = ceil(kept_frac * everything / gpus / config.update.tokens_per_microbatch)
    compute = kept_frac * everything * passes * forward / (gpus * peak * TRAIN_UTILISATION)
    gather = microbatches * 6 * model.parameters / (gpu.network_gb * GIGA) if gpus > GPUS_A_NODE else 0.0
    micro = config.update.tokens_per_microbatch
    return Estimate(
        gpus=gpus,
        memory_gb={
            "states": 16 * model.parameters / gpus / GIGA,
            "layers": 4 * model.parameters / model.layers / GIGA,
            "activations": micro * (2 * model.layers + 34) * model.width / GIGA,
            "logits": 6 * micro * model.vocabulary / GIGA,
        },
        sampling_gb=(weights + running * kv * length) / GIGA,
        running_rows=running,
        tokens=tokens,
        seconds={
            "sample": max(through, tail),
            "old log-probs": everything * forward / (gpus * peak * SCORE_UTILISATION),
            "update": max(compute, gather) * config.update.epochs,
            "weights": weights / (gpu.network_gb * GIGA),
        },
        tail_bound=tail > through,
        network_bound=gather > compute,
    )


def _iteration(model: Model, rows: int, weights: float, kv_of_a_row: float, bandwidth: float, peak: float) -> float:
    """Seconds of one decoding iteration. With few rows a mixture of experts reads only the experts that they use."""
    touched = min(1.0, rows * model.active / model.parameters)
    return max(
        (touched * weights + rows * kv_of_a_row) / bandwidth, rows * 2 * model.active / (peak * DECODE_UTILISATION)
    )


def what_breaks(found: Estimate, gpu: Gpu) -> Iterator[str]:
    """What is short first, worst first."""
    needed = sum(found.memory_gb.values())
    if needed > gpu.memory_gb:
        worst = max(found.memory_gb, key=found.memory_gb.__getitem__)
        remedy = {
            "states": "more GPUs, or offload",
            "logits": "fewer tokens_per_microbatch, or verl's fused kernels",
            "activations": "fewer tokens_per_microbatch, or sequence parallelism",
        }.get(worst, "more GPUs")
        yield f"memory in the update: {needed:.0f} of {gpu.memory_gb:.0f} GB, most of it {worst} ({remedy})"
    if found.sampling_gb > gpu.memory_gb * MEMORY_FOR_SAMPLING:
        yield f"memory in sampling: {found.sampling_gb:.0f} GB do not fit; raise engine.tensor_parallel"
    if found.tail_bound:
        yield "the longest completion: more GPUs do not shorten sampling any more"
    if found.network_bound:
        yield "the network: FSDP's traffic takes longer than the compute; fewer, larger micro-batches"


def skipping_saves(generation_frac: float, zero_frac: float, *, passes: int = 4) -> float:
    """Share of a step that skipping saves when sampling takes `generation_frac` of it.

        saved = (1 - generation) passes / (passes + 1) zero

    The rest of a step is the update and the old log-probs, passes : 1; the latter see every row.

    Args:
        generation_frac: share of the step without skipping.
        zero_frac: share of rows with advantage 0.
        passes: of the update, in forward passes.

    Example:
        >>> round(skipping_saves(0.5, 0.75), 2), round(skipping_saves(0.8, 0.75), 2)
        (0.3, 0.12)
    """
    return (1 - generation_frac) * passes / (passes + 1) * zero_frac


def model_of(config: TrainConfig) -> Model:
    """Sizes of the run's policy: from the table, else from its own configuration.

    Raises:
        PolicyError: there is no such model here.
    """
    path = config.policy.path
    if path in MODELS:
        return MODELS[path]
    from qae.trainer.plan import policy_shape

    shape = policy_shape(path)
    return Model(
        parameters=shape.parameters,
        active=shape.parameters,
        layers=shape.layers,
        width=shape.width,
        attention_width=shape.width,
        kv_width=shape.cache_width // 2,
        vocabulary=shape.vocabulary,
    )


def scale_text(
    config: TrainConfig,
    *,
    gpu_name: str = "h100",
    gpus: tuple[int, ...] = (8, 32, 256),
    mean_tokens: float | None = None,
    zero_frac: float = 0.75,
    sampled_frac: float = 1.0,
) -> str:
    """What `qae scale` prints.

    Raises:
        ConfigError: an unknown GPU, or a value outside its bounds.
    """
    if gpu_name not in GPUS:
        raise ConfigError(f"--gpu {gpu_name}: known are {', '.join(GPUS)}")
    if not 0 <= zero_frac < 1:
        raise ConfigError(f"--zero-frac {zero_frac:g} must be at least 0 and below 1")
    gpu, model = GPUS[gpu_name], model_of(config)
    mean = mean_tokens or config.rollout.max_tokens / 4
    rows = config.rollout.prompts * config.rollout.group_size
    lines = [
        f"{config.policy.path}: {model.parameters / 1e9:.2f} B parameters, {model.active / 1e9:.2f} B active",
        f"a step: {config.rollout.prompts} prompts x {config.rollout.group_size} completions of {mean:,.0f} tokens on "
        f"average (limit {config.rollout.max_tokens:,}) = {rows * mean / 1e6:.1f} M tokens",
        f"{gpu_name}: {gpu.memory_gb:.0f} GB, {gpu.tflops:.0f} TFLOP/s, {gpu.bandwidth_gb:,.0f} GB/s; skipping leaves "
        f"out {zero_frac:.0%} of the rows",
        "",
        f"{'GPUs':>5}  {'update GB':>9}  {'of it: states, layers, activations, logits':<44}  {'sampling GB':>11}  "
        f"{'rows at once':>12}",
    ]
    found = [
        (
            estimate(config, model, gpu, n, mean_tokens=mean, sampled_frac=sampled_frac),
            estimate(config, model, gpu, n, mean_tokens=mean, sampled_frac=sampled_frac, kept_frac=1 - zero_frac),
        )
        for n in gpus
    ]
    for dense, _ in found:
        parts = ", ".join(f"{value:.1f}" for value in dense.memory_gb.values())
        lines.append(
            f"{dense.gpus:>5}  {sum(dense.memory_gb.values()):>9.1f}  {parts:<44}  {dense.sampling_gb:>11.1f}  "
            f"{dense.running_rows:>12,}"
        )
    names = list(found[0][0].seconds)
    lines += ["", f"{'GPUs':>5}  " + "  ".join(f"{name:>13}" for name in names) + f"  {'step s':>8}  skipping saves"]
    for dense, skipped in found:
        saved = 1 - skipped.step_seconds / dense.step_seconds
        cells = "  ".join(f"{dense.seconds[name]:>11.1f} s" for name in names)
        lines.append(f"{dense.gpus:>5}  {cells}  {dense.step_seconds:>8.1f}  {saved:.0%} of a step")
    lines += ["", "what is short first"]
    for dense, _ in found:
        short = list(what_breaks(dense, gpu)) or ["nothing by these formulas"]
        lines += [f"{dense.gpus:>5}  {sentence}" for sentence in short]
    passes = 4 if config.update.checkpoint_activations else 3
    shares = "   ".join(
        f"{share:.0%}: {skipping_saves(share, zero_frac, passes=passes):.0%}" for share in (0.5, 0.6, 0.7, 0.8)
    )
    lines += ["", f"saved where sampling takes this share of a step   {shares}"]
    return "\n".join(lines)
