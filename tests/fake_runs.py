"""Run directories with made-up but lifelike records, for looking at the report without training.

python tests/fake_runs.py DIRECTORY
"""

import math
import random
import sys
from pathlib import Path
from typing import Any

import yaml

from qae.records import Regime, Rollout, RunWriter

HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>\x00 "quoted" & \u2028 \u202e end '


def fake_run(
    run_dir: Path,
    *,
    advantage: str = "quantile",
    k: float = 0.4,
    seed: int = 0,
    steps: int = 100,
    entropy: str = "healthy",
    rows: int = 64,
    hostile: bool = False,
) -> Path:
    """Write one run; `entropy` is healthy, explosion or collapse."""
    rng = random.Random(f"{advantage}/{k}/{seed}/{entropy}")
    writer = RunWriter(run_dir)
    writer.write_config(yaml.safe_dump(_config(advantage, k, seed, steps), sort_keys=False))
    seconds = 0.0
    for step in range(steps + 1):
        share = step / steps
        pass_rate = 0.25 + 0.22 * (1 - math.exp(-2.2 * share)) + (0.02 if advantage == "quantile" else 0.0)
        level = 0.23 * math.exp(-1.0 * share)
        if entropy == "explosion":
            level = 0.2 * math.exp(2.6 * max(0.0, share - 0.35))
            pass_rate = 0.25 + 0.12 * math.sin(math.pi * min(1.0, share * 1.15)) - 0.1 * max(0.0, share - 0.6)
        elif entropy == "collapse":
            level = max(0.006, 0.3 * math.exp(-9 * share))
        if step:
            seconds += 2.4 + rng.random()
            writer.append_metrics(_metrics(step, seconds, pass_rate, level, k, advantage, rng))
            writer.write_rollouts(
                step, _rollouts(step, rows, pass_rate, level, k, advantage, rng, hostile=hostile and step in (1, steps))
            )
        if step % 25 == 0 or step == steps:
            writer.append_metrics(_evaluation(step, seconds, pass_rate, level))
    return run_dir


def _config(advantage: str, k: float, seed: int, steps: int) -> dict[str, Any]:
    return {
        "name": "tiny", "seed": seed, "steps": steps, "policy": {"path": "tiny", "dtype": "auto"},
        "task": {"name": "arithmetic"},
        "algorithm": {"preset": "dapo", "advantage": {"name": advantage, "k": k, "scale": "std"},
                      "loss": {"name": "clip", "clip_low": 0.2, "clip_high": 0.28}, "reduction": "token_mean"},
        "rollout": {"prompts": 32, "group_size": 8, "max_tokens": 72, "temperature": 1.0},
        "update": {"minibatches": 8, "lr": 3e-5},
        "about": {"qae": "0.1.0", "torch": "2.13.0", "device": "cpu", "threads": 2, "machine": "x86_64"},
    }  # fmt: skip


def _metrics(
    step: int, seconds: float, pass_rate: float, level: float, k: float, advantage: str, rng: random.Random
) -> dict[str, Any]:
    def near(x: float, scale: float = 0.05) -> float:
        return x * math.exp(rng.gauss(0, scale))

    hard = min(0.95, max(0.05, 0.85 - pass_rate + rng.gauss(0, 0.03)))
    zero = near(0.76, 0.02) if advantage == "quantile" else 0.08 + 0.03 * rng.random()
    positive = (1 - zero) * near(0.55)
    entropy = near(level)
    return {
        "step": step, "seconds": seconds, "reward": pass_rate + rng.gauss(0, 0.02), "reward_std": near(0.4),
        "outcome": min(1.0, max(0.0, pass_rate + rng.gauss(0, 0.025))), "entropy": entropy,
        "entropy/correct": near(0.7 * entropy), "entropy/wrong": near(1.15 * entropy),
        "entropy/positive_advantage": near(0.8 * entropy), "entropy/negative_advantage": near(1.3 * entropy),
        "entropy/zero_advantage": near(entropy), "frac_reward_zero_std": near(0.2),
        "advantage/zero_frac": zero, "advantage/positive_frac": positive,
        "advantage/negative_frac": 1 - zero - positive, "advantage/zero_frac_mixed": zero,
        "regime/hard_frac": hard * 0.9, "regime/easy_frac": (1 - hard) * 0.9, "regime/flat_frac": 0.1,
        "clip_ratio/low_mean": near(0.0008, 0.3), "clip_ratio/high_mean": near(0.0021, 0.3),
        "clip_ratio/region_mean": 0.003, "grad_norm": near(0.4, 0.15), "grad_norm_max": near(0.8, 0.2),
        "lr": 3e-5 * min(1.0, step / 10), "loss": rng.gauss(0, 0.01),
        "completions/mean_length": near(24 + 30 * max(0.0, level - 0.25)), "completions/min_length": 5,
        "completions/max_length": 72, "completions/clipped_ratio": min(1.0, near(0.01 + max(0.0, level - 0.25))),
        "groups/asked": 39, "groups/kept": 32, "groups/refills": 1, "groups/unscored_rows": 0,
        "rows/kept_frac": 1 - zero, "tokens/kept_frac": near(1 - zero, 0.03), "tokens/sampled": 7400,
        "tokens/updated": int(6200 * (1 - zero)), "logprob_gap_max": near(2e-6, 0.4), "updates": 8,
        "updates/skipped_nonfinite": 0, "seconds/sample": near(1.5), "seconds/grade": near(0.02),
        "seconds/update": near(1.1 if advantage == "quantile" else 2.1), "seconds/step": near(2.8),
        "memory_peak_mb": 700, "k": k,
    }  # fmt: skip


def _evaluation(step: int, seconds: float, pass_rate: float, level: float) -> dict[str, Any]:
    record: dict[str, Any] = {"step": step, "seconds": seconds, "eval/pass@1": pass_rate}
    record |= {"eval/pass@1_low": pass_rate - 0.055, "eval/pass@1_high": pass_rate + 0.06}
    rng = random.Random(f"{step}/{pass_rate}")
    rates = [min(16, max(0, round(16 * rng.betavariate(3 * pass_rate, 3 * (1 - pass_rate))))) / 16 for _ in range(96)]
    record["eval/rates"] = {f"problem {i}": rate for i, rate in enumerate(sorted(rates))}
    record |= {"eval/problems": 96, "eval/samples": 16, "eval/entropy": level, "eval/mean_length": 25.0}
    record |= {"eval/truncated_frac": 0.01, "seconds/eval": 3.0}
    return record | {"eval/pass@1/1x1": min(1.0, pass_rate * 2.2), "eval/pass@1/2x1": pass_rate * 1.1}


def _rollouts(
    step: int, rows: int, pass_rate: float, level: float, k: float, advantage: str, rng: random.Random, *, hostile: bool
) -> list[Rollout]:
    found: list[Rollout] = []
    for group in range(rows // 8):
        a, b, c = rng.randrange(2, 99), rng.randrange(2, 10), rng.randrange(1, 10)
        rate = rng.betavariate(4 * pass_rate, 4 * (1 - pass_rate))
        outcomes = [float(rng.random() < rate) for _ in range(8)]
        mean = sum(outcomes) / 8
        std = math.sqrt(mean * (1 - mean))
        regime: Regime = "flat" if std == 0 else "hard" if mean <= 1 - k else "easy"
        baseline = mean if advantage == "mean" else {"hard": 0.0, "easy": 1.0}.get(regime, mean)
        for row, outcome in enumerate(outcomes):
            text = _working(a, b, c, bool(outcome), rng)
            if hostile and group == 0 and row == 0:
                text = HOSTILE + "x" * 100_000
            record = Rollout(
                step=step, prompt_id=f"{a}*{b}+{c}", group=group, prompt=f"{a}*{b}+{c}?", completion=text,
                tokens=len(text) + 1, reward=outcome, outcome=outcome,
                advantage=(outcome - baseline) / (std + 1e-6) if std else 0.0, regime=regime,
                truncated=False, entropy_mean_nats=level * rng.uniform(0.6, 1.5), level="2x1" if a > 9 else "1x1",
            )  # fmt: skip
            if row == group % 8:
                pieces = [*text[:5000], "<eos>"]
                record.token_texts, record.token_ids = pieces, [ord(p[0]) for p in pieces]
                record.entropies_nats = [max(0.0, rng.expovariate(1 / level)) * (t in "=;#") for t in pieces]
                record.entropies_nats = [min(2.8, e * 5 + 0.01) for e in record.entropies_nats]
                record.logprobs = [-e * rng.random() for e in record.entropies_nats]
            found.append(record)
    return found


def _working(a: int, b: int, c: int, right: bool, rng: random.Random) -> str:
    product = a * b + (0 if right else rng.choice([-10, -1, 1, 10]))
    if a > 9 and rng.random() < 0.5:
        tens, ones = a // 10 * 10, a % 10
        return f"{tens}*{b}={tens * b};{ones}*{b}={product - tens * b};{product}+{c}={product + c}#{product + c}"
    return f"{a}*{b}={product};{product}+{c}={product + c}#{product + c}"


def main() -> None:
    folder = Path(sys.argv[1])
    for seed in (0, 1, 2):
        fake_run(folder / f"quantile-{seed}", seed=seed, hostile=seed == 0)
        fake_run(folder / f"mean-{seed}", advantage="mean", seed=seed)
    fake_run(folder / "k80", k=0.8, entropy="explosion")


if __name__ == "__main__":
    main()
