"""Writes the dumps under tests/audit/fixtures/verl with verl's own writers (no run: batches made up here). Needs verl.

python scripts/write_verl_fixtures.py tests/audit/fixtures
"""

import os
import random
import sys
import uuid
from pathlib import Path

import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils.tracking import FileLogger


def batch(rng: random.Random, step: int) -> list[dict]:
    """4 prompts x 4 responses: score is +1 or -1, some with an overlong penalty."""
    rows = []
    for prompt in range(4):
        group = str(uuid.UUID(int=rng.getrandbits(128)))
        for session in range(4):
            right = rng.random() < 0.2 * (prompt + 1)
            penalty = -0.5 if rng.random() < 0.2 else 0.0
            rows.append({
                "input": f"user\n{prompt}+{step}=?", "output": f"naïve {right} {session}", "gts": str(prompt + step),
                "score": (1.0 if right else -1.0) + penalty, "acc": float(right), "uid": f"{group}_{session}_0",
            })  # fmt: skip
    return rows


def write(rows: list[dict], folder: Path, step: int, extra: list[str]) -> None:
    """One file, as the trainer writes it."""
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    RayPPOTrainer._write_generations(
        columns["input"], columns["output"], columns["gts"], columns["score"],
        {key: columns[key] for key in extra}, str(folder), step,
    )  # fmt: skip


def main() -> None:
    """Write everything."""
    out = Path(sys.argv[1]) / "verl"
    rng = random.Random(0)
    for step in (1, 2, 10):
        rows = batch(rng, step)
        shuffled = rng.sample(rows, len(rows))
        write(shuffled, out / "v0", step, ["acc"])
        padding = [{**rows[0], "input": "", "output": "", "score": 0.0, "uid": f"pad{i}_0_0"} for i in range(4)]
        write(sorted(rows + padding, key=lambda row: row["uid"]), out / "v1", step, ["uid"])
        scores = torch.tensor([[row["score"]] for row in rows])
        index = [row["uid"].rsplit("_", 2)[0] for row in rows]
        advantages, _ = compute_grpo_outcome_advantage(scores, torch.ones(len(rows), 1), index)
        logged = [{**row, "advantage": a} for row, a in zip(rows, advantages[:, 0].tolist(), strict=True)]
        write(logged, out / "with_advantages", step, ["acc", "uid", "advantage"])
    os.environ["VERL_FILE_LOGGER_PATH"] = str(out / "metrics.jsonl")
    logger = FileLogger("project", "experiment")
    for step in range(1, 61):
        entropy = 0.4 if step < 30 else 0.4 * 0.9 ** (step - 30)
        logger.log({"actor/entropy": entropy, "critic/score/mean": 0.01 * step, "response_length/mean": 100.0}, step)
    logger.finish()


if __name__ == "__main__":
    main()
