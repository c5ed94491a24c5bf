"""The quantile baseline: Quantile Advantage Estimation, arXiv:2509.22611."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qae.advantages.scale import group_scale
from qae.checks import check_choice, check_rows
from qae.groups import Divisor, Groups, Method


def quantile_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    k: float = 0.4,
    *,
    method: Method = "exact",
    scale: Literal["std", "batch", "none"] = "std",
    divisor: Divisor = "n",
    eps: float = 1e-6,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Reward minus the K-quantile of its group, in units of the group's standard deviation.

        A_i = (R_i - b_K) / (std_j(R_j) + eps),    b_K = inf { x : F(x) >= K }

    On 0/1 rewards with pass rate p this is a gate. A hard prompt, p <= 1 - K, has b = 0: failures get 0 and the
    rare successes are reinforced. An easy prompt, p > 1 - K, has b = 1: successes get 0 and the remaining
    failures are penalised. Other rewards use the same order statistic, but then both signs can occur.

    Rows that were not scored (NaN) get 0 and are outside their group. Groups of one and groups whose rewards
    are all equal get 0, decided by equality of the rewards, not by a standard deviation. No gradient passes.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        k: level of the quantile, strictly between 0 and 1. Raising it calls more prompts easy.
        method: "exact" is the paper's definition, "linear" is `torch.quantile`, what the authors' code calls.
        scale: "std" divides by the group's standard deviation plus `eps`, "batch" by that of all scored rewards
            (TRL's scale_rewards="batch"), "none" does not (Dr. GRPO).
        divisor: of the variance: "n" is the paper's proof, "n-1" is verl's and TRL's code.
        eps: added to the standard deviation, in the unit of the reward.
        flat_tolerance: rewards no further apart than this count as equal, for noisy judges.
        min_size: a group with fewer scored rows gets 0.

    Returns:
        [n] advantages, of the rewards' dtype.

    Raises:
        TypeError: the tensors are not floats and integers, or `k` is not a number.
        ValueError: an argument is outside its bounds, or a reward is infinite.

    Example:
        >>> rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])
        >>> group_ids = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
        >>> quantile_advantages(rewards, group_ids, k=0.4, scale="none").tolist()
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]

    Reference:
        arXiv:2509.22611, equations 3 and 4.
    """
    check_choice("scale", scale, ("std", "batch", "none"))
    groups = Groups(rewards, group_ids, argument="rewards")
    baseline = groups.quantile(k, method)
    advantages = (groups.values - baseline) / group_scale(groups, scale, divisor, eps)
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(rewards.dtype)


def outcome_quantile_advantages(
    outcomes: Float[Tensor, " n"],
    penalties: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    k: float = 0.4,
    *,
    method: Method = "exact",
    scale: Literal["std", "none"] = "std",
    divisor: Divisor = "n",
    eps: float = 1e-6,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Quantile advantages whose gate sees the verifier's outcome only; shaping is added beside it.

        A_i = (O_i - b_K(O) + P_i - mean_j(P_j)) / (std_j(O_j) + eps)

    An overlong penalty inside the reward makes more than two values of it, so that ordinary failures of a
    hard prompt are no longer at the quantile and sparsity is lost. Here the penalty cannot move the gate. Where
    all penalties of a group are equal the result is that of `quantile_advantages` on the outcomes. A group whose
    outcomes are all equal gets 0, whatever its penalties: otherwise the shortest of its failures would win.

    Args:
        outcomes: [n] the verifier's 0/1 verdict; NaN for a completion that was not scored.
        penalties: [n] what shaping adds to the outcome, usually <= 0; a row where it is NaN is left out too.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        k: as in `quantile_advantages`, like all that follow.
        method: "exact" or "linear".
        scale: "std" or "none", of the outcomes.
        divisor: "n" or "n-1".
        eps: added to the standard deviation.
        flat_tolerance: outcomes no further apart than this count as equal.
        min_size: a group with fewer scored rows gets 0.

    Returns:
        [n] advantages, of the outcomes' dtype.

    Raises:
        TypeError: the tensors are not floats and integers.
        ValueError: an argument is outside its bounds, or an outcome or penalty is infinite.

    Example:
        >>> outcomes, penalties = torch.tensor([1.0, 0, 0, 0]), torch.tensor([0.0, -1, 0, 0])
        >>> group_ids = torch.tensor([0, 0, 0, 0])
        >>> outcome_quantile_advantages(outcomes, penalties, group_ids, k=0.4, scale="none").tolist()
        [1.25, -0.75, 0.25, 0.25]
    """
    check_choice("scale", scale, ("std", "none"))
    check_rows("outcomes", outcomes, group_ids)
    check_rows("penalties", penalties, group_ids)
    scored = ~(outcomes.isnan() | penalties.isnan())
    groups = Groups(outcomes.where(scored, torch.nan), group_ids, argument="outcomes")
    shaping = Groups(penalties.where(scored, torch.nan), group_ids, argument="penalties")
    gated = groups.values - groups.quantile(k, method)
    advantages = (gated + shaping.values - shaping.mean()) / group_scale(groups, scale, divisor, eps)
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(outcomes.dtype)
