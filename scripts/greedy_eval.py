"""Greedy held-out accuracy of each finished run of a study: is a difference at temperature 1 more than sharpening?

    python scripts/greedy_eval.py runs/study-cause runs/study-knob --out docs/study/greedy.json

pass@1 at temperature 1 rises when a policy only becomes surer of what it does already. The most likely completion of
each held-out problem does not change by that. Reads the last checkpoints, which a study keeps.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from qae.evaluation.heldout import evaluate_heldout
from qae.policies import load_policy
from qae.sampling import make_engine
from qae.study.worker import FINISHED
from qae.tasks import make_task
from qae.trainer.batch import train_params
from qae.trainer.checkpoint import checkpoints
from qae.trainer.config import TrainConfig


def greedy(run: Path, problems: int) -> dict[str, Any]:
    """Accuracy of the most likely completions, by problem."""
    config = TrainConfig.load(str(run / "config.yaml"))
    policy = load_policy(str(checkpoints(run)[-1]), dtype="float32", device=config.policy.device)
    task, engine = make_task(config.task.model_dump(), config.seed), make_engine("builtin", policy)
    engine.refresh()
    params = replace(train_params(config, task), temperature=0.0)
    found = evaluate_heldout(
        engine, task, policy.tokenizer, task.heldout_items(problems), samples=1, params=params, seed=config.seed
    )
    block, arm, seed = run.parts[-3:]
    return {
        "block": block,
        "arm": arm,
        "seed": int(seed.removeprefix("seed-")),
        "problems": found["eval/problems"],
        "greedy": found["eval/pass@1"],
    }


def cell_of(run: dict[str, Any]) -> tuple[str, str, int]:
    """Which run it is of its study."""
    return run["block"], run["arm"], run["seed"]


def main() -> None:
    """Evaluate and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=Path, help="directories of studies")
    parser.add_argument("--problems", type=int, default=400)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, list[dict[str, Any]]] = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    for study in asked.studies:
        evaluated = [greedy(path.parent, asked.problems) for path in study.glob(f"runs/*/*/*/{FINISHED}")]
        cells = {cell_of(run): run for run in kept.get(study.name.removeprefix("study-"), [])}
        cells |= {cell_of(run): run for run in evaluated}
        kept[study.name.removeprefix("study-")] = [cells[cell] for cell in sorted(cells)]
    lines = ",\n".join(
        f'"{name}": [\n' + ",\n".join(json.dumps(run) for run in runs) + "\n]" for name, runs in kept.items()
    )
    asked.out.write_text("{" + lines + "}\n")


if __name__ == "__main__":
    main()
