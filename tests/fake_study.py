"""A study whose runs are made up: what its record, page and figures look like without training."""

import json
import math
import random
from pathlib import Path
from typing import Any

import yaml

from qae.study.plan import Study, study_of
from qae.study.runner import RunState, states_of
from qae.study.worker import FINISHED, PLANNED

PROBLEMS = 96
CONTENTS: dict[str, Any] = {
    "name": "fake",
    "question": "Does the fake effect show?",
    "overrides": ["steps=20"],
    "arms": {
        "mean": ["algorithm.advantage=mean"],
        "better": ["algorithm.advantage.k=0.2"],
        "same": ["algorithm.advantage.k=0.4"],
    },
    "blocks": {"near": ["update.minibatches=1"], "stale": ["update.minibatches=16"]},
    "baseline": "mean",
    "seeds": 8,
    "decision": {"metric": "eval/pass@1", "margins": {"eval/pass@1": 0.04}, "rule": "as the test says"},
    "questions": [
        {"ask": "Is it better when stale?", "arm": "better", "block": "stale", "expect": "higher", "why": "made so"},
        {"ask": "Is the same the same?", "arm": "same", "block": "near", "expect": "same"},
        {"ask": "Better than the same?", "arm": "better", "block": "best", "against": "same", "expect": "lower"},
    ],
    "minutes": 2,
}


def fake_study(**changes: Any) -> Study:
    return study_of(CONTENTS | changes)


def write_runs(study: Study, out: Path, *, effect: float = 0.2, spread: float = 0.01) -> list[RunState]:
    """Finished runs of every cell; `better` gains `effect` in the block `stale`, by a different amount each seed."""
    for run in study.runs:
        gain = effect if (run.arm, run.block) == ("better", "stale") else 0.0
        shared, own = (random.Random(f"{run.seed}/{name}") for name in (run.block, run.label))
        write_run(out / "runs" / run.label, 0.4 + shared.gauss(0, 0.05) + gain + own.gauss(0, spread), run)
    return states_of(study, out)


def write_run(directory: Path, pass_rate: float, run: Any, *, explodes: bool = False) -> None:
    rng, lines = random.Random(f"samples of {run.label}"), []
    for step in range(21):
        if step % 10 == 0:
            rate = 0.3 + (pass_rate - 0.3) * step / 20
            rates = {f"p{i:02d}": sum(rng.random() < rate for _ in range(16)) / 16 for i in range(PROBLEMS)}
            line = {"eval/pass@1": sum(rates.values()) / PROBLEMS, "eval/pass@16": 0.9, "eval/entropy": 0.2}
            lines.append({"step": step, "seconds": 6.0 * step, **line, "eval/samples": 16, "eval/rates": rates})
        if step:
            entropy = 0.2 * (math.exp(step / 4) if explodes else 1.0)
            costs = {"tokens/updated": 100, "seconds/step": 5.0, "advantage/zero_frac": 0.75}
            lines.append({"step": step, "seconds": 6.0 * step, "entropy": entropy, **costs})
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metrics.jsonl").write_text("".join(json.dumps({"schema": 1, **line}) + "\n" for line in lines))
    about = {"qae": "0.1.0", "torch": "2.13.0", "commit": None}
    (directory / "config.yaml").write_text(yaml.safe_dump({"about": about}))
    (directory / PLANNED).write_text(yaml.safe_dump(run.config.model_dump(mode="json")))
    (directory / FINISHED).write_text(json.dumps({"ended": "all steps", "step": 20}))
