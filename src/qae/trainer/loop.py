"""The training loop, top to bottom.

A step is one rollout batch: sample G completions of each prompt, grade them, turn rewards into advantages against the
group's K-quantile, and update the policy on mini-batches of whole groups. Departures from the paper
(arXiv:2509.22611, App. B.1) that hold for every recipe here:

- dynamic sampling asks for as many further prompts as are missing, not for three full batches;
- the denominators of an update are the counts of its own mini-batch, after dynamic sampling (as in verl);
- a batch that dynamic sampling could not fill is trained on as it is, and said so;
- the quantile is the paper's order statistic; the authors' code interpolates (`algorithm.advantage.method=linear`).
"""

import math
import os
import platform
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
import yaml
from jaxtyping import Float
from torch import Tensor

from qae.advantages import ADVANTAGES, outcome_quantile_advantages
from qae.detect import LiveDetector, alarm_text
from qae.entropy import regimes
from qae.evaluation.heldout import evaluate_heldout
from qae.policies import Policy, load_policy
from qae.records import BESIDES_THE_EXPERIMENT, RunBusy, RunWriter, alone, change_text, read_metrics
from qae.sampling import SamplingParams, make_engine
from qae.sampling.rng import row_key
from qae.tasks import Item, Task, make_task
from qae.trackers import Trackers, check_packages
from qae.trainer.batch import Batch, Group, collect, difficulty_report, train_params
from qae.trainer.checkpoint import Progress, check_whole, checkpoints, read_progress, restore, save_checkpoint
from qae.trainer.config import TrainConfig, resolve
from qae.trainer.keys import ConfigError, flatten
from qae.trainer.memory import phase_peak
from qae.trainer.metrics import batch_metrics, rollout_records, update_metrics
from qae.trainer.packing import packing_fault
from qae.trainer.step import Learner, Rows, UpdateStats

EMPTY_STEPS = 3
MASK_STREAM = 6


@runtime_checkable
class Observer(Protocol):
    """Watches a run: start, phase, step, eval, note, warning, end. The terminal view is one."""

    def event(self, name: str, /, **data: Any) -> None:
        """Something happened."""
        ...


class Interrupted(Exception):
    """The run was asked to stop; it saved a checkpoint first."""


class EntropyAlarm(RuntimeError):
    """The entropy exploded, collapsed or swings, and `watch.entropy=stop`; the run saved itself and stopped."""


class NothingToLearn(RuntimeError):
    """Step after step every group was flat; the run saved itself and stopped."""


def train(
    config: TrainConfig,
    *,
    run_dir: Path | None = None,
    resume: Path | None = None,
    observer: Observer | None = None,
) -> Path:
    """Train a policy and leave a run directory behind.

    Args:
        config: what to do (`TrainConfig.load`). When resuming, the run's own configuration with what may change.
        run_dir: where to write; default runs/<name>-<time>/.
        resume: a run directory to continue from its newest checkpoint, bit for bit on the same machine and threads.
        observer: told of everything that happens.

    Returns:
        The run directory: config.yaml, metrics.jsonl, rollouts/, checkpoints/.

    Raises:
        ConfigError: something asked for cannot be, or another process is writing the run.
        Interrupted: after Ctrl-C or SIGTERM, once the step in progress is done and saved.
        EntropyAlarm: with watch.entropy=stop, when the entropy fails.
        TrackerError: a tracker that was asked for is not there.
        NothingToLearn: several steps in a row without a mixed group, with a report of the difficulty.
    """
    check_packages(config.track)
    if resume is not None and not (resume / "config.yaml").is_file():
        raise ConfigError(f"{resume} is not a run directory: it has no config.yaml")
    directory = resume or run_dir or Path("runs") / f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        with alone(directory, wait=False):
            return _train(config, directory, resume is not None, observer.event if observer else _silence)
    except RunBusy as busy:
        raise ConfigError(str(busy)) from None


def _train(config: TrainConfig, directory: Path, resume: bool, tell: Callable[..., None]) -> Path:
    began = perf_counter()
    if config.threads:
        torch.set_num_threads(config.threads)
    checkpoint = _open_run(config, directory, resume=resume)
    tell("phase", phase="load", done=0, total=0, tokens=0)

    policy = _load(config, checkpoint)
    task = _task(config)
    _check_lengths(config, policy, task)
    engine = make_engine(config.rollout.engine, policy)
    fault = packing_fault(policy)
    reference = (
        load_policy(config.policy.path, dtype="float32", device=config.policy.device) if config.algorithm.kl else None
    )
    learner = Learner(config, policy, share_prompts=fault is None, reference=reference)
    progress, about = Progress(), _about(policy)
    changes: list[dict[str, Any]] = []
    if checkpoint:
        progress, before = read_progress(checkpoint)
        restore(learner, checkpoint)
        learner.updates_done = progress.updates
        for key, value in about.items():
            if key not in ("date", "commit") and before.get(key) != value:
                tell(
                    "warning",
                    text=f"{key} was {before.get(key)} and is now {value}: expect small differences",
                )
        changes = _changes(config, directory, progress.step)
        for change in changes:
            if change["step"] == progress.step:
                tell("warning", text=f"{change_text(change)}: reports and audits of this run mix the two")
    elif resume:
        tell("warning", text=f"{directory} has no checkpoint yet: it starts again from step 0")
    writer = RunWriter(directory)
    writer.truncate_after(progress.step if checkpoint else -1)
    trackers = Trackers(
        config.track,
        directory,
        config.model_dump(mode="json"),
        resumed_step=progress.step if checkpoint else None,
        warn=lambda text: tell("warning", text=text),
    )
    detector = LiveDetector(read_metrics(directory))
    kept = {**about, "changes": changes} if changes else about
    writer.write_config(yaml.safe_dump({**config.model_dump(mode="json"), "about": kept}, sort_keys=False))
    tell("start", config=config, run_dir=directory, resumed_step=progress.step if checkpoint else None)
    heldout = task.heldout_items(config.eval.problems)
    for text in _notes(config, task, heldout, fault):
        tell("note", text=text)

    def phase(name: str, done: int = 0, total: int = 0, tokens: int = 0) -> None:
        tell("phase", phase=name, done=done, total=total, tokens=tokens)

    def seconds() -> float:
        return progress.seconds + perf_counter() - began

    def evaluate() -> None:
        started = perf_counter()
        engine.refresh()
        found = evaluate_heldout(
            engine,
            task,
            policy.tokenizer,
            heldout,
            samples=config.eval.samples,
            params=_eval_params(config, task),
            seed=config.seed,
            progress=lambda done, total, tokens: phase("eval", done, total, tokens),
        )
        record = {
            "step": progress.step,
            "seconds": seconds(),
            **found,
            "seconds/eval": perf_counter() - started,
        }
        writer.append_metrics(record)
        trackers.log(record)
        tell("eval", metrics=record)

    def save() -> None:
        phase("checkpoint")
        now = replace(progress, seconds=seconds())
        save_checkpoint(directory, learner, now, about, config.checkpoint)

    if heldout and not checkpoint:
        evaluate()
    with closing(trackers), _stop_request(tell) as stop_requested:
        while progress.step < config.steps:
            step_began = perf_counter()
            step = progress.step + 1
            phase("sample", 0, config.rollout.prompts * config.rollout.group_size)
            with phase_peak(policy.device) as sample_memory:
                engine.refresh()
                batch = collect(config, policy, task, engine, step=step, cursor=progress.cursor, phase=phase)
            advantages = advantages_of(config, batch.groups, step=step)
            regime = _regimes(config, batch.groups)
            lr = learner.lr(learner.updates_done)
            with phase_peak(policy.device) as update_memory:
                stats = (
                    learner.learn(rows_of(policy, batch.groups, advantages), step=step, phase=phase)
                    if batch.groups
                    else UpdateStats()
                )

            progress.step, progress.cursor, progress.updates = step, batch.cursor, learner.updates_done
            progress.empty_steps = 0 if batch.groups else progress.empty_steps + 1
            metrics = {
                "step": step,
                "seconds": seconds(),
                **batch_metrics(config, batch, advantages, regime),
                **update_metrics(stats, lr),
                "memory/sample_peak_mb": sample_memory.mb,
                "memory/update_peak_mb": update_memory.mb,
            }
            metrics["seconds/step"] = perf_counter() - step_began
            if config.records.rollouts:
                records = rollout_records(
                    config, step, batch.groups, advantages.tolist(), regime.tolist(), _token_texts(policy)
                )
                writer.write_rollouts(step, records)
            writer.append_metrics(metrics)
            trackers.log(metrics)
            tell("step", metrics=metrics)
            for text in _warnings(config, batch, stats):
                tell("warning", text=f"step {step}: {text}")
            alarm = detector.see(metrics) if config.watch.entropy != "ignore" else None
            if alarm:
                tell("warning", text=f"step {step}: {alarm_text(alarm)}. More: qae audit {directory}")
            if alarm and config.watch.entropy == "stop":
                save()
                raise EntropyAlarm(
                    f"stopped after step {step}: {alarm_text(alarm)}; look at it with `qae report {directory}`, "
                    f"continue with `qae train --resume {directory}`"
                )
            if progress.empty_steps >= EMPTY_STEPS:
                save()
                raise NothingToLearn(
                    f"no group to learn from in {EMPTY_STEPS} steps ({difficulty_report(batch.sampled)}): make the "
                    f"task easier or harder, check the grader, or continue with `qae train --resume {directory}`"
                )
            if heldout and _due(step, config.eval.every, config.steps):
                evaluate()
            wanted = stop_requested() or (alarm and config.watch.entropy == "checkpoint")
            if wanted or _due(step, config.checkpoint.every, config.steps):
                save()
            if stop_requested() and step < config.steps:
                raise Interrupted(f"stopped after step {step}; continue with `qae train --resume {directory}`")
    evaluations = [record for record in read_metrics(directory) if "eval/pass@1" in record]
    before, after = (evaluations[0], evaluations[-1]) if evaluations else (None, None)
    final = checkpoints(directory)[-1]
    tell("end", before=before, after=after, run_dir=directory, checkpoint=final, seconds=seconds())
    return directory


def advantages_of(config: TrainConfig, groups: list[Group], *, step: int = 0) -> Float[Tensor, " n"]:
    """Advantages of the groups' completions, by the estimator and settings of the configuration."""
    chosen = config.algorithm.advantage
    group_ids = torch.tensor([i for i, group in enumerate(groups) for _ in group.grades], dtype=torch.int64)
    settings: dict[str, Any] = chosen.model_dump()
    if chosen.on == "outcome":
        outcomes = torch.tensor([o for group in groups for o in group.outcomes])
        shaping = torch.tensor([r - o for group in groups for r, o in zip(group.rewards, group.outcomes, strict=True)])
        return _call(outcome_quantile_advantages, settings, outcomes, shaping, group_ids)
    rewards = torch.tensor([r for group in groups for r in group.rewards])
    keys = [row_key(config.seed, MASK_STREAM, step, row) for row in range(len(rewards))]
    settings["row_keys"] = torch.tensor(keys, dtype=torch.int64)
    return _call(ADVANTAGES[chosen.name], settings, rewards, group_ids)


def _call(estimator: Callable[..., Tensor], settings: dict[str, Any], *tensors: Tensor) -> Tensor:
    """Call an estimator with those of the settings that it takes."""
    return estimator(*tensors, **{k: v for k, v in settings.items() if k in signature(estimator).parameters})


def _regimes(config: TrainConfig, groups: list[Group]) -> Tensor:
    group_ids = torch.tensor([i for i, group in enumerate(groups) for _ in group.grades], dtype=torch.int64)
    outcomes = torch.tensor([o for group in groups for o in group.outcomes])
    return regimes(outcomes, group_ids, config.algorithm.advantage.k)


def rows_of(policy: Policy, groups: list[Group], advantages: Tensor) -> Rows:
    """The groups' completions as the update sees them."""
    completions = [c for group in groups for c in group.completions]
    n, t = len(completions), max(len(c.token_ids) for c in completions)
    behaviour, mask = torch.zeros(n, t), torch.zeros(n, t, dtype=torch.bool)
    left_out = [grade.reason == "truncated" and grade.outcome is None for group in groups for grade in group.grades]
    for i, completion in enumerate(completions):
        behaviour[i, : len(completion.token_ids)] = completion.logprobs
        mask[i, : len(completion.token_ids)] = not left_out[i]
    return Rows(
        prompts=[group.prompt for group in groups],
        group=[i for i, group in enumerate(groups) for _ in group.completions],
        completions=[c.token_ids for c in completions],
        behaviour_logprobs=behaviour.to(policy.device),
        advantages=advantages.to(policy.device),
        mask=mask.to(policy.device),
    )


def _open_run(config: TrainConfig, directory: Path, *, resume: bool) -> Path | None:
    """The checkpoint to continue from; None where the run begins."""
    if not resume:
        if (directory / "metrics.jsonl").exists():
            raise ConfigError(f"{directory} already holds a run: give another directory, or --resume {directory}")
        return None
    found = checkpoints(directory)
    if not found:
        _refuse_lost(directory)
        return None
    check_whole(found[-1])
    if read_progress(found[-1])[0].step >= config.steps:
        raise ConfigError(
            f"{directory} has already done its {config.steps} steps; go on with `qae train --resume {directory} "
            f"steps=N`, N greater than {config.steps}, or make its page with `qae report {directory}`"
        )
    return found[-1]


def _refuse_lost(directory: Path) -> None:
    """Refuse to begin again a run that got past its first checkpoint, which is not there any more.

    With exactly as many steps as that checkpoint was due after, it may have been killed before it was written, unless
    the report says that the run had ended.
    """
    before = resolve(str(directory / "config.yaml")).config
    steps = max((line["step"] for line in read_metrics(directory)), default=0)
    due = min(before.checkpoint.every or before.steps, before.steps)
    if steps > due or (steps == due and (directory / "report.html").is_file()):
        raise ConfigError(
            f"{directory} holds the records of {steps} steps but no checkpoint to go on from (looked in "
            f"{directory / 'checkpoints'}): put the checkpoints back, or start anew in another directory: "
            f"qae train {directory / 'config.yaml'} --run-dir ANOTHER"
        )


def _changes(config: TrainConfig, directory: Path, step: int) -> list[dict[str, Any]]:
    """Settings of the experiment that the run has had otherwise up to `step`, and what was told of it before."""
    contents = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    # a run that went back to an older checkpoint had them otherwise only up to that one
    earlier = [{**c, "step": min(c["step"], step)} for c in (contents.get("about") or {}).get("changes", [])]
    known = resolve(str(directory / "config.yaml")).config
    before, now = (flatten(settings.model_dump(mode="json")) for settings in (known, config))
    aside = ("name", "steps", *BESIDES_THE_EXPERIMENT)
    keys = [key for key in {**before, **now} if key.split(".")[0] not in aside and before.get(key) != now.get(key)]
    return [*earlier, *({"step": step, "key": k, "before": before.get(k), "now": now.get(k)} for k in keys)]


def _load(config: TrainConfig, checkpoint: Path | None) -> Policy:
    """The policy of the configuration, or of the checkpoint; LoRA's base is always the configuration's."""
    wanted, path = config.policy, config.policy.path
    if checkpoint and wanted.lora is None:
        path = str(checkpoint)
    dtype = wanted.dtype
    if checkpoint and dtype == "auto":
        dtype = read_progress(checkpoint)[1]["compute_dtype"]
    return load_policy(path, dtype=dtype, device=wanted.device, lora=wanted.lora)


def _task(config: TrainConfig) -> Task:
    try:
        return make_task(config.task.model_dump(), config.seed)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_lengths(config: TrainConfig, policy: Policy, task: Task) -> None:
    """Refuse, or let a task that knows all its prompts leave out, what does not fit into the context."""
    room = policy.context_tokens - config.rollout.max_tokens
    fit_prompts = getattr(task, "fit_prompts", None)
    if room > 0 and fit_prompts:
        try:
            fit_prompts(policy.tokenizer, room)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    items = [task.train_item(i) for i in range(min(64, task.size or 64))]
    prompt = max(len(task.encode(item, policy.tokenizer)) for item in items)
    if prompt + config.rollout.max_tokens > policy.context_tokens:
        raise ConfigError(
            f"rollout.max_tokens={config.rollout.max_tokens} after prompts of up to {prompt} tokens is more than the "
            f"{policy.context_tokens} tokens of the model's context: set at most {policy.context_tokens - prompt}"
        )


def _eval_params(config: TrainConfig, task: Task) -> SamplingParams:
    return replace(train_params(config, task), temperature=config.eval.temperature, top_p=config.eval.top_p)


def _about(policy: Policy) -> dict[str, Any]:
    """What a result may depend on beside the configuration."""
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "qae": version("qae"),
        "torch": str(torch.__version__),
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "commit": commit or None,
        "date": datetime.now().isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "threads": torch.get_num_threads(),
        "device": str(policy.device),
        "compute_dtype": str(policy.compute_dtype).removeprefix("torch."),
    }


def _notes(config: TrainConfig, task: Task, heldout: list[Item], fault: str | None) -> Iterator[str]:
    """What the run has to say about itself and its data before it begins."""
    yield from getattr(task, "notes", ())
    if config.eval.problems and not heldout:
        yield "no problem is held out: the run is not evaluated"
    reason = config.inexact_skipping()
    if config.algorithm.skip_zero_advantage == "auto" and reason:
        yield f"rows with advantage 0 are not skipped: {reason}"
    if config.algorithm.loss.name == "kl_cov" and config.algorithm.skip_zero_advantage != "off":
        yield "KL-Cov: rows with advantage 0 are kept where one of their tokens gets the KL term"
    if fault:
        yield f"prompts are computed once per completion in the update: {fault}"


def _warnings(config: TrainConfig, batch: Batch, stats: UpdateStats) -> Iterator[str]:
    asked = config.rollout.prompts
    dynamic = config.algorithm.dynamic_sampling
    if dynamic.enabled and dynamic.max_refills and len(batch.groups) < asked:
        yield (
            f"dynamic sampling kept {len(batch.groups)} of {asked} groups after {batch.refills} refills "
            f"({difficulty_report(batch.sampled)})"
        )
    if stats.skipped_nonfinite:
        yield f"{stats.skipped_nonfinite} updates left out because their gradient was not finite"
    unscored = sum(math.isnan(r) for group in batch.sampled for r in group.rewards)
    if unscored and not config.algorithm.overlong.filter:
        yield f"{unscored} completions were not scored ({difficulty_report(batch.sampled)}); they get advantage 0"


def _token_texts(policy: Policy) -> Callable[[list[int]], list[str]]:
    return lambda ids: [str(policy.tokenizer.decode([i])) for i in ids]


def _due(step: int, every: int, last: int) -> bool:
    return step == last or (bool(every) and step % every == 0)


@contextmanager
def _stop_request(tell: Callable[..., None]) -> Generator[Callable[[], bool]]:
    """Ctrl-C or SIGTERM ends the run after the step in progress; a second Ctrl-C ends it at once."""
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        tell("note", text="stopping after this step, then saving (Ctrl-C again stops at once)")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _silence(name: str, /, **data: Any) -> None:
    """The observer of a run that nobody watches."""
