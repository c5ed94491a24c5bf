"""What the mixin needs of TRL. Checked whenever a trainer is made, so that a moved seam stops the run at once."""

import inspect
from importlib.metadata import version
from typing import Any

# method -> parameters after self that we pass or read
NEEDED: dict[str, tuple[str, ...]] = {
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_generate_and_score_completions": ("inputs",),
}
NEEDED_TO_SKIP: dict[str, tuple[str, ...]] = {
    "_compute_loss": ("model", "inputs"),
    "_get_per_token_logps_and_entropies": ("model", "input_ids", "attention_mask", "logits_to_keep"),
}
ATTRIBUTES = (
    "accelerator",
    "num_generations",
    "reward_weights",
    "reward_func_names",
    "scale_rewards",
    "_logs",
    "_metrics",
)
TRIED = "1.16"


class TRLChangedError(RuntimeError):
    """TRL is not as this adapter knows it: training on would use another baseline than asked for."""


def contract_breaches(host: type, needed: dict[str, tuple[str, ...]]) -> list[str]:
    """What `host` lacks.

    Args:
        host: a trainer class, without our mixin.
        needed: methods and their first parameters.

    Returns:
        One sentence for each breach.
    """
    breaches: list[str] = []
    for name, wanted in needed.items():
        method = getattr(host, name, None)
        if method is None:
            breaches.append(f"{host.__name__} has no method {name}")
            continue
        found = tuple(inspect.signature(method).parameters)[1:]
        if found[: len(wanted)] != wanted:
            breaches.append(f"{host.__name__}.{name} takes ({', '.join(found)}), expected ({', '.join(wanted)}, ...)")
    return breaches


def check_contract(host: type) -> None:
    """Refuse a host class whose seam moved.

    Args:
        host: a trainer class, without our mixin.

    Raises:
        TRLChangedError: with what is missing and what to do.
    """
    breaches = contract_breaches(host, NEEDED)
    if breaches:
        raise changed("; ".join(breaches))


def check_instance(trainer: Any) -> None:
    """Refuse a trainer without the attributes that the mixin reads.

    Args:
        trainer: after its constructor ran.

    Raises:
        TRLChangedError: with what is missing and what to do.
    """
    missing = [name for name in ATTRIBUTES if not hasattr(trainer, name)]
    if missing:
        raise changed(f"the trainer has no attribute {', '.join(missing)}")


def changed(what: str) -> TRLChangedError:
    """The error with its remedy."""
    return TRLChangedError(
        f"{what}. qae knows TRL {TRIED}, this is {version('trl')}: quantile advantages would not reach the loss. "
        f"Install 'trl=={TRIED}.*' or a newer qae, and see `qae doctor trl`. (AsyncGRPOTrainer computes its advantages "
        "in the rollout worker, which a trainer class cannot change.)"
    )
