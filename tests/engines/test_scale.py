"""Sizes on paper: each formula against a number worked by hand, and what the page says of them."""

import pytest

from qae.engines.scale import GPUS, MODELS, Gpu, Model, estimate, scale_text, skipping_saves, what_breaks
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError

# One billion parameters, and a GPU of round rates.
SMALL = Model(1e9, 1e9, 10, 1000, 1000, 100, 50_000)
ROUND = Gpu(100, 100, 1000, 10)


def paper(*overrides: str) -> TrainConfig:
    return TrainConfig.load("paper/qwen3-8b-dapo", *overrides)


def run(*overrides: str, gpus: int = 10, **given: float) -> "object":
    config = paper(
        "rollout.prompts=100", "rollout.group_size=10", "rollout.max_tokens=1000", "update.minibatches=10",
        "update.tokens_per_microbatch=10000", "engine.max_prompt_tokens=200", "algorithm.overlong.buffer_tokens=0",
        *overrides,
    )  # fmt: skip
    return estimate(config, SMALL, ROUND, gpus, mean_tokens=given.pop("mean_tokens", 400), **given)


def test_memory_by_hand() -> None:
    found = run()
    assert found.memory_gb["states"] == pytest.approx(1.6)  # 16e9 / 10
    assert found.memory_gb["layers"] == pytest.approx(0.4)  # 2 layers of 1e8 parameters, 2 bytes
    assert found.memory_gb["activations"] == pytest.approx(0.54)  # 1e4 (20 + 34) 1e3
    assert found.memory_gb["logits"] == pytest.approx(3.0)  # 6 1e4 5e4


def test_times_by_hand() -> None:
    found = run()
    forward = 2e9 + 2 * 10 * 1000 * 500
    assert found.tokens == 400_000
    assert found.seconds["old log-probs"] == pytest.approx(500_000 * forward / (10 * 1e14 * 0.4))
    compute = 500_000 * 4 * forward / (10 * 1e14 * 0.35)
    gather = 5 * 6e9 / 10e9  # ceil(5e5 / 10 / 1e4) micro-batches
    assert found.seconds["update"] == pytest.approx(compute)
    assert compute > gather and not found.network_bound
    assert found.seconds["weights"] == pytest.approx(0.2)
    kv = 4 * 10 * 100 * 500
    iteration = max((2e9 + 100 * kv) / 500e9, 100 * 2e9 / 50e12)
    tail = 1000 * (2e9 + 4 * 10 * 100 * 1000) / 500e9
    assert found.running_rows == 100
    assert found.seconds["sample"] == pytest.approx(max(400 * iteration, tail)) and found.tail_bound


def test_skipping_saves_update_time_only() -> None:
    dense, skipped = run(gpus=8), run(gpus=8, kept_frac=0.25)
    assert skipped.seconds["update"] == pytest.approx(0.25 * dense.seconds["update"])
    assert {k: v for k, v in dense.seconds.items() if k != "update"} == {
        k: v for k, v in skipped.seconds.items() if k != "update"
    }


@pytest.mark.parametrize(("generation", "saved"), [(0.5, 0.3), (0.6, 0.24), (0.7, 0.18), (0.8, 0.12)])
def test_what_skipping_saves(generation: float, saved: float) -> None:
    assert skipping_saves(generation, 0.75) == pytest.approx(saved)


def test_dynamic_sampling_lengthens_sampling_only() -> None:
    plain, more = run("rollout.max_tokens=500", gpus=8), run("rollout.max_tokens=500", gpus=8, sampled_frac=4.0)
    assert more.seconds["sample"] > plain.seconds["sample"]
    assert more.seconds["update"] == plain.seconds["update"]


def test_the_worst_shortage_is_named() -> None:
    found = estimate(paper(), MODELS["Qwen/Qwen3-30B-A3B-Base"], GPUS["h100"], 4, mean_tokens=5000)
    short = list(what_breaks(found, GPUS["h100"]))
    assert short[0].startswith("memory in the update: ") and "most of it states (more GPUs, or offload)" in short[0]


def test_the_text() -> None:
    text = scale_text(paper())
    assert "512 prompts x 16 completions of 5,120 tokens" in text and "= 41.9 M tokens" in text
    assert "\n  256  " in text and "50%: 30%   60%: 24%   70%: 18%   80%: 12%" in text


def test_a_model_that_is_not_in_the_table() -> None:
    assert "0.00 B parameters" in scale_text(TrainConfig.load("tiny"), gpus=(1,))


def test_refused() -> None:
    with pytest.raises(ConfigError, match=r"--gpu v100: known are a100, h100, h200, b200"):
        scale_text(paper(), gpu_name="v100")
    with pytest.raises(ConfigError, match=r"3 GPUs cannot be cut into replicas of engine\.tensor_parallel=2"):
        scale_text(paper("engine.tensor_parallel=2"), gpus=(3,))
    with pytest.raises(ConfigError, match="--zero-frac 1 must be at least 0 and below 1"):
        scale_text(paper(), zero_frac=1.0)
