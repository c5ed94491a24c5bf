"""One run of a study in a process of its own: `python -m qae.study.worker RUN_DIRECTORY`.

The run directory holds planned.yaml, the run's whole configuration. A run that was begun continues from its newest
checkpoint, a finished one is left alone. When whoever started the process is gone the run stops after its step and
saves, so that a killed study leaves nothing running.
"""

import json
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from qae.records import RunWriter, alone, atomic_write, read_metrics
from qae.trainer.config import TrainConfig

FINISHED, PLANNED, ENDED = "finished.json", "planned.yaml", "ended.txt"
TO_BE_CONTINUED = 75


def main(run_dir: Path) -> int:
    """Do the run, or the rest of it; the process's exit code."""
    if (run_dir / FINISHED).is_file():
        return 0
    threading.Thread(target=_stop_with_parent, daemon=True).start()  # also while it waits for another process
    with alone(run_dir, wait=True):  # after a kill, the old process may still be saving
        return 0 if (run_dir / FINISHED).is_file() else execute(run_dir)


def execute(run_dir: Path) -> int:
    """Train to the end and say how it ended, in finished.json."""
    config = TrainConfig.load(str(run_dir / PLANNED))
    known = run_dir / ENDED  # written before the evaluation, in which it may be killed
    if not known.is_file():
        ended = _train(run_dir, config)
        if ended is None:
            return TO_BE_CONTINUED
        atomic_write(known, ended)
    lines = read_metrics(run_dir)
    last = max((line["step"] for line in lines), default=0)
    evaluated = any(line["step"] == last and "eval/rates" in line for line in lines)
    if config.eval.problems and not evaluated:
        evaluate_stopped(run_dir, config)
    ended = known.read_text(encoding="utf-8")
    atomic_write(run_dir / FINISHED, json.dumps({"ended": ended, "step": last}) + "\n")
    return 0


def _train(run_dir: Path, config: TrainConfig) -> str | None:
    """Train the rest of the run; how it ended, None if it was asked to stop before."""
    from qae.engines.dispatch import train
    from qae.trainer.checkpoint import Progress, checkpoints, read_progress
    from qae.trainer.loop import EntropyAlarm, Interrupted, NothingToLearn

    saved = checkpoints(run_dir)
    progress = read_progress(saved[-1])[0] if saved else Progress()
    if progress.step >= config.steps:
        return "all steps"
    try:
        train(config, run_dir=run_dir, resume=run_dir if (run_dir / "config.yaml").is_file() else None)
    except Interrupted:
        return None
    except NothingToLearn:
        return "nothing to learn"
    except EntropyAlarm:
        return "entropy"
    return "all steps"


def evaluate_stopped(run_dir: Path, config: TrainConfig) -> None:
    """Evaluate the policy of a run that stopped before its last step: it counts, too."""
    from qae.evaluation.heldout import evaluate_heldout
    from qae.policies import load_policy
    from qae.sampling import make_engine
    from qae.tasks import make_task
    from qae.trainer.batch import train_params
    from qae.trainer.checkpoint import checkpoints, read_progress

    saved = checkpoints(run_dir)[-1]
    progress, about = read_progress(saved)
    policy = load_policy(str(saved), dtype=about["compute_dtype"], device=config.policy.device)
    task, engine = make_task(config.task.model_dump(), config.seed), make_engine(config.rollout.engine, policy)
    engine.refresh()
    params = replace(train_params(config, task), temperature=config.eval.temperature, top_p=config.eval.top_p)
    found: dict[str, Any] = evaluate_heldout(
        engine,
        task,
        policy.tokenizer,
        task.heldout_items(config.eval.problems),
        samples=config.eval.samples,
        params=params,
        seed=config.seed,
    )
    RunWriter(run_dir).append_metrics({"step": progress.step, "seconds": progress.seconds, **found})


def _stop_with_parent() -> None:
    """The parent holds the other end of stdin; when it is gone, stop as after Ctrl-C."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
