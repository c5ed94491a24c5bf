"""Stands in for verl as a program: `fake_verl.py ROOT STEPS [die_after]` writes what verl writes, and where."""

import json
import sys
import time
from pathlib import Path

GROUPS, SIZE = 3, 4


def rows(step: int, *, heldout: bool = False) -> list[dict[str, object]]:
    """Group 0 is hard, 1 easy, 2 flat; one more session output and one row of padding, which must not count."""
    made: list[dict[str, object]] = []
    for group, right in enumerate((1, 3, 4)):
        for session in range(SIZE):
            acc = float(session < right)
            row: dict[str, object] = {
                "input": f"{group}+1?", "output": f"so#{session}", "gts": "1", "score": acc, "step": step,
                "uid": f"u{group}_{session}_0", "acc": acc, "prompt_id": f"p{group}", "level": "easy" if group else "",
                "reason": "correct" if acc else "wrong",
            }  # fmt: skip
            if not heldout:
                regime = ("hard", "easy", "flat")[group]
                advantage = {"hard": 2.0 * acc, "easy": -2.0 * (1 - acc), "flat": 0.0}[regime]
                row |= {
                    "advantage": advantage, "regime": regime, "tokens": 2 + session, "truncated": session == 3,
                    "entropy_mean_nats": 0.5 + acc,
                }  # fmt: skip
            made.append(row)
    if not heldout:
        made.append(dict(made[0], uid="u0_0_1", output="the last output"))
        made.append(dict(made[0], uid="padff_0_0", input="", output=""))
    return made


def write(path: Path, lines: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text("".join(json.dumps(line) + "\n" for line in lines))
    draft.replace(path)


def main() -> None:
    root, steps = Path(sys.argv[1]), int(sys.argv[2])
    die_after = int(sys.argv[3]) if len(sys.argv) > 3 else None
    mark = root / "checkpoints" / "latest_checkpointed_iteration.txt"
    done = int(mark.read_text()) if mark.exists() else 0
    with (root / "metrics.jsonl").open("wb", buffering=0) as metrics:

        def log(step: int, data: dict[str, float]) -> None:
            metrics.write(json.dumps({"step": step, "data": data}).encode() + b"\n")

        write(root / "validations" / f"{done}.jsonl", rows(done, heldout=True))
        log(done, {"val-core/arithmetic/acc/mean@4": 0.6}) if not done else None
        for step in range(done + 1, steps + 1):
            write(root / "rollouts" / f"{step}.jsonl", rows(step))
            data = {"actor/pg_loss": 0.1 * step, "actor/grad_norm": 1.0, "training/rollout_probs_diff_max": 1e-7}
            if step == steps:
                write(root / "validations" / f"{step}.jsonl", rows(step, heldout=True))
                data["val-core/arithmetic/acc/mean@4"] = 0.7
            model = root / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"
            model.mkdir(parents=True)
            (model / "model.safetensors").write_bytes(b"weights")
            mark.write_text(str(step))
            log(step, data)
            if step == die_after:
                print("Traceback (most recent call last):", flush=True)
                print('  File "reward.py", line 3, in compute_score', flush=True)
                print("(TaskRunner pid=7) ray.exceptions.RayTaskError(ValueError): ray::run()", flush=True)
                print("(TaskRunner pid=7) ValueError: the answer is no number", flush=True)
                raise SystemExit(1)
            time.sleep(0.05)


if __name__ == "__main__":
    main()
