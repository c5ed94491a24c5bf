"""verl's advantage estimators `qae`, `qae_linear`, `qae_loo`, ...: its tensors and config in, our functions, its out.

An estimator sees padded token rewards, a mask and the prompt's id of each row. It cannot see which rows are outputs
of one agent session, nor the verifier's outcome beside the shaped reward; the trainer `qae_sync` knows both and lends
them through `row_view`.
"""

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qae.advantages import ADVANTAGES, outcome_quantile_advantages

# verl's own standard deviation, so that naming our estimator changes the baseline only.
HOST = {"divisor": "n-1", "eps": 1e-6}
DEFAULT_K = 0.4
K_KEYS = ("qae_k", "quantile_k")
# Keys under `algorithm` that an estimator takes beside K.
OPTIONS = {"qae_divisor": "divisor", "qae_eps": "eps", "qae_scale": "scale", "qae_flat_tolerance": "flat_tolerance"}
# verl's name -> (name in ADVANTAGES, what it fixes). Every other estimator of the table is qae_<its name>.
NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "qae": ("quantile", {}),
    "qae_linear": ("quantile", {"method": "linear"}),
    "qae_loo": ("leave_one_out_quantile", {}),
    "qae_rloo": ("leave_one_out", {}),
}


@dataclass
class RowView:
    """What the trainer knows of the rows of a batch and an estimator is not told.

    Attributes:
        sessions: [n] which agent session each row is an output of.
        order: [n] its place among the session's outputs.
        outcomes: [n] the verifier's 0/1, NaN where it was not scored; None if the reward function gives none.
        advantages: [n] filled in by the estimator, one for each row.
        counted: [n] filled in: True for the last output of each session, the rows that the statistics are over.
    """

    sessions: Sequence[str]
    order: Sequence[int]
    outcomes: Tensor | None = None
    advantages: Tensor | None = field(default=None, init=False)
    counted: Tensor | None = field(default=None, init=False)


_view: ContextVar[RowView | None] = ContextVar("qae_row_view", default=None)


@contextmanager
def row_view(view: RowView) -> Generator[RowView]:
    """Lend `view` to the estimator that is called inside."""
    token = _view.set(view)
    try:
        yield view
    finally:
        _view.reset(token)


def estimators() -> dict[str, tuple[str, dict[str, Any]]]:
    """Verl's name of each estimator -> (name in `qae.ADVANTAGES`, settings that the name fixes)."""
    # No keys of rows reach an estimator here, so one that needs them is left out.
    own = [name for name, function in ADVANTAGES.items() if "row_keys" not in signature(function).parameters]
    named = {name for name, _ in NAMED.values()}
    rest = {f"qae_{name}": (name, dict[str, Any]()) for name in own if name not in named}
    return NAMED | rest


def register() -> None:
    """Add the estimators to verl's registry; again is harmless."""
    from verl.trainer.ppo.core_algos import (  # pyright: ignore[reportMissingImports]
        ADV_ESTIMATOR_REGISTRY,
        register_adv_est,
    )

    for name in estimators():
        if name not in ADV_ESTIMATOR_REGISTRY:
            register_adv_est(name)(partial(estimate, estimator=name))


def estimate(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any = None,
    config: Mapping[str, Any] | None = None,
    *,
    estimator: str = "qae",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of a batch, in verl's form.

    Args:
        token_level_rewards: [n t] a row's reward is their sum.
        response_mask: [n t] 1 for tokens of the response; a row without any is padding and gets 0.
        index: [n] the prompt's id of each row; groups may be of any size, rows in any order.
        config: verl's section `algorithm`.
        estimator: verl's name of the estimator.

    Returns:
        [n t] advantages, 0 outside the mask; and the same as returns.

    Raises:
        ValueError: no `index`, or a setting that cannot be.
    """
    if index is None:
        raise ValueError(f"algorithm.adv_estimator={estimator} compares the rows of a prompt and needs their uid")
    settings = dict(config or {})
    view = _view.get()
    if settings.get("qae_on") == "outcome" and view is None:
        raise ValueError(
            "algorithm.qae_on=outcome needs the verifier's outcome, which verl does not pass to an estimator; set "
            "trainer.v1.trainer_mode=qae_sync (and load qae.integrations.verl.trainer), or algorithm.qae_on=shaped"
        )
    with torch.no_grad():
        rewards = token_level_rewards.sum(-1)
        group_ids = torch.from_numpy(np.unique(np.asarray(index, dtype=str), return_inverse=True)[1].reshape(-1))
        group_ids = group_ids.to(rewards.device)
        advantages = row_advantages(rewards, group_ids, settings, estimator, view)
        spread = advantages[:, None].to(token_level_rewards.dtype) * response_mask
    return spread, spread.clone()


def row_advantages(
    rewards: Tensor, group_ids: Tensor, settings: Mapping[str, Any], estimator: str, view: RowView | None = None
) -> Tensor:
    """[n] one advantage for each row; a session's outputs all get that of its last one, which alone is counted."""
    function, options = bound(settings, estimator)
    if view is None:
        return function(rewards, group_ids, **options)
    last = _last_outputs(view)
    counted, outcomes = torch.tensor(sorted(last.values())), view.outcomes
    if outcomes is not None:
        rewards = rewards.where(~outcomes.isnan(), torch.nan)
    if settings.get("qae_on") == "outcome":
        if outcomes is None:
            raise ValueError(
                "algorithm.qae_on=outcome: the reward function returns no 'acc' beside its score; return a dict with "
                "both, or use algorithm.qae_on=shaped"
            )
        shaping = rewards - outcomes
        found = outcome_quantile_advantages(outcomes[counted], shaping[counted], group_ids[counted], **options)
    else:
        found = function(rewards[counted], group_ids[counted], **options)
    place = {int(row): i for i, row in enumerate(counted)}
    view.counted = torch.zeros(len(rewards), dtype=torch.bool).index_fill(0, counted, True)
    view.advantages = found[torch.tensor([place[last[session]] for session in view.sessions])]
    return view.advantages


def bound(settings: Mapping[str, Any], estimator: str) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """The function behind verl's name of an estimator, and its keyword arguments from the section `algorithm`.

    Raises:
        ValueError: a K that cannot be, two that differ, or an option that the estimator does not have.
    """
    name, fixed = estimators()[estimator]
    function = ADVANTAGES[name]
    taken = signature(function).parameters
    options = {key: value for key, value in HOST.items() if key in taken}
    if "scale" in taken and not settings.get("norm_adv_by_std_in_grpo", True):
        options["scale"] = "none"
    for key, option in OPTIONS.items():
        if settings.get(key) is None:
            continue
        if option not in taken:
            raise ValueError(f"algorithm.{key}={settings[key]}: {estimator} has no such option; leave it out")
        options[option] = settings[key]
    if "k" in taken:
        options["k"] = level(settings)
    return function, options | fixed


def level(settings: Mapping[str, Any]) -> float:
    """K of the section `algorithm`: `qae_k`, or the authors' `quantile_k`."""
    given = {key: settings[key] for key in K_KEYS if settings.get(key) is not None}
    if not given:
        warnings.warn(
            f"algorithm.qae_k is not set: K={DEFAULT_K} is used; say +algorithm.qae_k={DEFAULT_K}", stacklevel=2
        )
        return DEFAULT_K
    if len(set(given.values())) > 1:
        raise ValueError(f"algorithm.qae_k={given['qae_k']} and algorithm.quantile_k={given['quantile_k']}: give one")
    key, k = next(iter(given.items()))
    if not isinstance(k, (int, float)) or not 0 < k < 1:
        raise ValueError(
            f"algorithm.{key}={k} must be a fraction strictly between 0 and 1; for the mean baseline use "
            "algorithm.adv_estimator=grpo"
        )
    return float(k)


def _last_outputs(view: RowView) -> dict[str, int]:
    """The row of each session's last output."""
    last: dict[str, int] = {}
    for row, session in enumerate(view.sessions):
        if session not in last or view.order[row] > view.order[last[session]]:
            last[session] = row
    return last
