"""What `qae doctor trl` asks: one real training step of the shipped policy on rewards whose advantages are known."""

import tempfile
import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from qae.integrations.checks import GROUP_SIZE, OTHER_K, REWARDS, TOLERANCE, hand_values, judge
from qae.integrations.finding import Finding
from qae.integrations.status import statuses
from qae.integrations.trl.contract import NEEDED, NEEDED_TO_SKIP, TRIED, contract_breaches
from qae.integrations.trl.skip import host_loss_breach

PIN = f"pip install 'trl=={TRIED}.*', or a newer qae"


def check(settings: Mapping[str, Any] | None = None) -> list[Finding]:
    """Versions, the seam, two groups through a training step, and what the user's settings do to it.

    Args:
        settings: keys of the YAML file of `python -m qae.integrations.trl`.

    Returns:
        One finding a question.
    """
    settings = settings or {}
    try:
        found = version("trl")
    except PackageNotFoundError:
        return [Finding("fault", "trl", "not installed", "pip install 'qae[trl]'")]
    tried = found.startswith(f"{TRIED}.")
    findings = [Finding("ok" if tried else "note", "trl", found if tried else f"{found}; tried with {TRIED}")]
    status = statuses().get("trl")
    if status is not None:
        findings.append(Finding("ok", "adapter", status.sentence()))
    try:
        host: type = import_module("trl").GRPOTrainer
        import_module("qae.integrations.trl.mixin")
    except Exception as error:  # whatever an import raises is the finding
        return [
            *findings,
            Finding("fault", "import", f"{type(error).__name__}: {error}", "mend the module named there"),
        ]
    breaches = contract_breaches(host, NEEDED)
    if breaches:
        return [*findings, *(Finding("fault", "seam", breach, PIN) for breach in breaches)]
    findings.append(Finding("ok", "seam", f"{host.__name__} has {', '.join(NEEDED)}"))
    unskippable = contract_breaches(host, NEEDED_TO_SKIP) or host_loss_breach(host)
    if unskippable:
        findings.append(Finding("note", "skipping", f"all rows are computed: {'; '.join(unskippable)}"))
    k = float(settings.get("quantile_k", 0.4))
    for at in dict.fromkeys((k, OTHER_K)):
        findings.extend(_one_step(at))
    return [*findings, *_settings(settings)]


def _one_step(k: float) -> list[Finding]:
    """Train one step on `REWARDS`: what the trainer logs, and what its loss receives."""
    try:
        logged, received = push(k)
    except Exception as error:  # whatever TRL raises is the finding
        return [Finding("fault", f"step at K={k:g}", f"{type(error).__name__}: {error}", "see the message")]
    found = judge(f"groups at K={k:g}", logged, k)
    if found.status == "fault":
        return [found]
    # rows are shuffled on their way to the loss
    reach = f"loss at K={k:g}"
    near = len(received) == len(logged) and all(
        abs(a - b) < TOLERANCE for a, b in zip(sorted(received), sorted(hand_values(k)), strict=True)
    )
    if near:
        return [found, Finding("ok", reach, "receives the same numbers")]
    cause = "they are whitened" if abs(sum(received)) < TOLERANCE * len(received) else "they are changed"
    shown = f"receives {min(received):.4f} to {max(received):.4f}: {cause} on the way from scoring to the loss"
    return [found, Finding("fault", reach, shown, "look at overrides of _prepare_inputs, and at trainers beneath ours")]


def push(k: float) -> tuple[list[float], list[float]]:
    """One training step of the shipped policy on `REWARDS`.

    Args:
        k: level of the quantile.

    Returns:
        (advantages as logged, advantages as the loss received them, in another order)
    """
    trl: Any = import_module("trl")
    datasets: Any = import_module("datasets")
    from transformers.trainer_callback import PrinterCallback

    from qae.integrations.trl import QuantileGRPOTrainer
    from qae.policies.quiet import no_progress_bars
    from qae.policies.source import TINY

    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings(), no_progress_bars():
        warnings.simplefilter("ignore")
        args = trl.GRPOConfig(
            output_dir=out, per_device_train_batch_size=len(REWARDS), num_generations=GROUP_SIZE,
            max_completion_length=2, max_steps=1, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
            gradient_checkpointing=False, save_strategy="no",
        )  # fmt: skip
        trainer = QuantileGRPOTrainer(
            model=str(TINY),
            reward_funcs=lambda completions, **_: list(REWARDS),
            args=args,
            train_dataset=datasets.Dataset.from_list([{"prompt": "2*3+4?"}, {"prompt": "5*6+7?"}]),
            quantile_k=k,
        )
        trainer.remove_callback(PrinterCallback)
        received: list[float] = []
        loss = trainer._compute_loss

        def listen(model: Any, inputs: dict[str, Any]) -> Any:
            received.extend(inputs["advantages"].tolist())
            return loss(model, inputs)

        trainer._compute_loss = listen
        trainer.train()
        return list(trainer._logs["advantages"]), received


def _settings(settings: Mapping[str, Any]) -> list[Finding]:
    if not settings:
        return []
    findings: list[Finding] = []
    if "quantile_k" in settings:
        findings.append(Finding("ok", "quantile_k", str(settings["quantile_k"])))
    else:
        findings.append(Finding("fault", "quantile_k", "K is not passed, so 0.4 is used", "set quantile_k: 0.4"))
    notes = {
        "beta": (0, 0.0, None),
        "entropy_coef": (0, 0.0, None),
        "use_adaptive_entropy": (False, None),
        "top_entropy_quantile": (1, 1.0, None),
    }
    for key, harmless in notes.items():
        if key in settings and settings[key] not in harmless:
            said = f"is {settings[key]}: rows with advantage 0 get a gradient from it, and are computed"
            findings.append(Finding("note", key, said))
    if settings.get("scale_rewards", "group") in ("none", False):
        findings.append(Finding("note", "scale_rewards", "is none: advantages are not divided (Dr. GRPO)"))
    if settings.get("multi_objective_aggregation", "sum_then_normalize") != "sum_then_normalize":
        said = "normalize_then_sum: a baseline for each function, and a division by the batch's deviation"
        findings.append(Finding("note", "multi_objective_aggregation", said))
    if settings.get("use_vllm"):
        findings.append(
            Finding("note", "use_vllm", "this adapter was not tried with vLLM; rewards do not depend on it")
        )
    return findings
