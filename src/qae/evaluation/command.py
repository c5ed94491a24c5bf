"""What `qae eval` does with its arguments: find the model and the problems, then evaluate."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qae.evaluation.benchmarks import load_benchmark, load_data
from qae.evaluation.endpoint import EndpointSampler
from qae.evaluation.run import Watch, evaluate
from qae.evaluation.samples import EvalSettings, Progress, Sampler
from qae.evaluation.summary import Summary, comparison_markdown, read_summary


def evaluate_model(
    model: str,
    settings: EvalSettings,
    *,
    bench: Sequence[str] = (),
    data: Sequence[str] = (),
    prompt: str | None = None,
    answer: str | None = None,
    split: str = "test",
    subset: str | None = None,
    endpoint: str | None = None,
    endpoint_extra: Mapping[str, Any] | None = None,
    concurrency: int = 16,
    device: str = "auto",
    dtype: str = "auto",
    out: Path | None = None,
    watch: Watch | None = None,
    progress: Progress | None = None,
) -> tuple[list[Summary], Path]:
    """Evaluate a model by name on benchmarks and files.

    Args:
        model: anything `qae.policies.load_policy` takes, a run directory (its last checkpoint), or, with
            `endpoint`, the name that the server knows.
        settings: how to draw and grade.
        bench: names of benchmarks, each optionally with a file: `aime24=aime.parquet`.
        data: JSONL or Parquet files, or Hub ids.
        prompt: column of the problem in `data`; None finds it.
        answer: column of the gold answer in `data`; None finds it.
        split: of a Hub id in `data`.
        subset: of a Hub id in `data`.
        endpoint: address of an OpenAI-compatible server, up to and with `/v1`; None samples on this machine.
        endpoint_extra: further fields of each request to the server.
        concurrency: requests under way at once.
        device: auto, cpu, cuda or mps.
        dtype: auto, float32 or bfloat16.
        out: directory; the default depends on the model (of a run: its last checkpoint) only, so the same command
            continues.
        watch: told of (set, samples finished, samples in all).
        progress: told of (finished, all, tokens) within a batch of the built-in engine.

    Returns:
        One summary for each set, and the directory.

    Raises:
        ValueError: nothing to evaluate on, or data or model cannot be used.
    """
    if not bench and not data:
        raise ValueError("nothing to evaluate on: give a benchmark (--bench aime24) or a file (--data file.jsonl)")
    own = (load_data(path, prompt=prompt, answer=answer, split=split, subset=subset) for path in data)
    sets = [*map(load_benchmark, bench), *own]
    path, step = find_checkpoint(model)
    sampler: Sampler
    if endpoint is not None:
        sampler, step = EndpointSampler(endpoint, model, concurrency, extra=dict(endpoint_extra or {})), 0
    else:
        from qae.evaluation.local import LocalSampler
        from qae.policies import PolicyError, load_policy

        name = model if path == model else f"{model} (step {step})"
        try:
            policy = load_policy(path, device=device, dtype=dtype)
        except PolicyError as error:  # its keys are those of a configuration, which an evaluation does not have
            raise PolicyError(re.sub(r"policy\.(path|device|dtype)", _as_typed, str(error))) from error
        sampler = LocalSampler(policy, name=name, progress=progress)
    out = out or Path("evals") / re.sub(r"[^\w.-]+", "-", model if endpoint else path).strip("-")
    return evaluate(sets, sampler, settings, out, step=step, watch=watch), out


def _as_typed(key: re.Match[str]) -> str:
    return {"path": "MODEL", "device": "--device", "dtype": "--dtype"}[key[1]]


def find_checkpoint(model: str) -> tuple[str, int]:
    """The last checkpoint of a run directory with its step; any other model as it is, with step 0.

    Args:
        model: path or name.

    Returns:
        What to load, and the training step.
    """
    directory = Path(model)
    numbered = [path for path in (directory / "checkpoints").glob("*") if path.name.isdigit()]
    if numbered:
        last = max(numbered, key=lambda path: int(path.name))
        return str(last), int(last.name)
    return model, int(directory.name) if directory.parent.name == "checkpoints" and directory.name.isdigit() else 0


def compare_directories(baseline: Path, treatment: Path) -> str:
    """The paired comparison of two evaluation directories, over all sets that both have, as Markdown.

    Args:
        baseline: directory that `evaluate_model` wrote, or that of one set.
        treatment: another one.

    Returns:
        One table a set.

    Raises:
        ValueError: a directory holds no finished evaluation, or they have no set in common.
    """
    first, second = _summaries(baseline), _summaries(treatment)
    common = [name for name in first if name in second]
    if not common:
        raise ValueError(
            f"{baseline} has evaluations of {', '.join(first)}, {treatment} of {', '.join(second)}: no set in common"
        )
    return "\n".join(comparison_markdown(first[name], second[name]) for name in common)


def _summaries(directory: Path) -> dict[str, Summary]:
    paths = [directory / "summary.json", *sorted(directory.glob("*/summary.json"))]
    found = [read_summary(path.parent) for path in paths if path.is_file()]
    if not found:
        what = "has no finished evaluation (no summary.json)" if directory.is_dir() else "does not exist"
        raise ValueError(f"{directory} {what}; give the directory that `qae eval` wrote, such as evals/tiny")
    return {summary.name: summary for summary in found}
