"""Checkpoints: a directory that transformers loads as it is, with the trainer's own state beside it.

    checkpoints/000050/   model.safetensors, config.json, tokenizer ...      the policy
                          trainer_state.json                                 counters, versions
                          trainer_state.safetensors                          AdamW's moments (and LoRA's adapters)

A checkpoint is written under a temporary name and renamed, so one that exists is whole.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from qae.policies import save_policy
from qae.policies.source import tensors_fault
from qae.trainer.config import CheckpointConfig
from qae.trainer.keys import ConfigError
from qae.trainer.step import Learner

SCHEMA = 1


@dataclass
class Progress:
    """How far a run has come: all that its next step depends on beside weights and moments.

    Attributes:
        step: steps done.
        cursor: index of the next training item.
        updates: updates tried, the place in the learning rate's schedule.
        empty_steps: steps in a row without a group to learn from.
        seconds: time spent so far, over all sessions.
    """

    step: int = 0
    cursor: int = 0
    updates: int = 0
    empty_steps: int = 0
    seconds: float = 0.0


def save_checkpoint(
    run_dir: Path, learner: Learner, progress: Progress, about: dict[str, Any], keep: CheckpointConfig
) -> Path:
    """Write the checkpoint of `progress.step` and delete the oldest beyond `keep.keep`."""
    directory = run_dir / "checkpoints"
    final = directory / f"{progress.step:06d}"
    temporary = directory / f".{progress.step:06d}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_policy(learner.policy, temporary)
    save_file(_tensors(learner), temporary / "trainer_state.safetensors")
    state = {"schema": SCHEMA, "progress": asdict(progress), "about": about}
    (temporary / "trainer_state.json").write_text(json.dumps(state, indent=1))
    for path in temporary.iterdir():
        _sync(path)
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    _sync(directory)
    for old in checkpoints(run_dir)[: -keep.keep]:
        shutil.rmtree(old)
    return final


def checkpoints(run_dir: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    directory = run_dir / "checkpoints"
    found = [p for p in directory.glob("[0-9]*") if (p / "trainer_state.json").is_file()]
    return sorted(found, key=lambda p: int(p.name))


def read_progress(checkpoint: Path) -> tuple[Progress, dict[str, Any]]:
    """(progress, versions) of a checkpoint.

    Raises:
        ConfigError: it is damaged, or of another format.
    """
    file = checkpoint / "trainer_state.json"
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        schema = state["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(checkpoint, file, str(error)) from None
    if schema != SCHEMA:
        raise ConfigError(
            f"{checkpoint} was written in checkpoint format {schema}, this version reads {SCHEMA}: "
            "resume it with the qae version in its config.yaml"
        )
    return Progress(**state["progress"]), state["about"]


def check_whole(checkpoint: Path) -> None:
    """Refuse a checkpoint that cannot be loaded, before anything else is touched: its headers and lengths.

    Raises:
        ConfigError: names the damaged file and what to do.
    """
    read_progress(checkpoint)
    for file in sorted({*checkpoint.glob("*.safetensors"), checkpoint / "trainer_state.safetensors"}):
        fault = tensors_fault(file)
        if fault:
            raise _damaged(checkpoint, file, fault)


def _damaged(checkpoint: Path, file: Path, fault: str) -> ConfigError:
    run_dir = checkpoint.parent.parent
    older = [found for found in checkpoints(run_dir) if int(found.name) < int(checkpoint.name)]
    remedy = (
        f"remove {checkpoint} to go on from the older {older[-1]}"
        if older
        else f"there is no older checkpoint, so start anew: qae train {run_dir / 'config.yaml'} --run-dir ANOTHER"
    )
    return ConfigError(f"{file} is damaged ({fault}): {remedy}")


def restore(learner: Learner, checkpoint: Path) -> None:
    """Load the optimiser's moments, and LoRA's adapters, into a learner whose policy is the checkpoint's."""
    tensors = load_file(checkpoint / "trainer_state.safetensors", device=str(learner.policy.device))
    for name, parameter in _named_parameters(learner):
        if f"weight/{name}" in tensors:
            with torch.no_grad():
                parameter.copy_(tensors[f"weight/{name}"])
        if f"step/{name}" in tensors:
            learner.optimizer.state[parameter] = {
                "step": tensors[f"step/{name}"].cpu() if parameter.device.type == "cpu" else tensors[f"step/{name}"],
                "exp_avg": tensors[f"exp_avg/{name}"],
                "exp_avg_sq": tensors[f"exp_avg_sq/{name}"],
            }


def _tensors(learner: Learner) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, parameter in _named_parameters(learner):
        for key, value in learner.optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = value.contiguous()
        if learner.config.policy.lora is not None:
            tensors[f"weight/{name}"] = parameter.detach().contiguous()
    return tensors


def _named_parameters(learner: Learner) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in learner.policy.model.named_parameters() if p.requires_grad]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
