"""What a baseline does to a prompt: its regime, the shares that follow, and the predicted change of entropy.

Token entropies themselves are measured by `qae.logprobs`; here are the identities of the paper, beside the true ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qae.groups import Groups, fraction_meant

REGIMES = ("hard", "easy", "flat", "unscored")
HARD, EASY, FLAT, UNSCORED = range(4)


def regimes(outcomes: Float[Tensor, " n"], group_ids: Int[Tensor, " n"], k: float = 0.4) -> Int[Tensor, " n"]:
    """The regime that each row's group is in, as an index into `REGIMES`.

        hard   p <= 1 - K    the K-quantile is the group's lowest outcome: successes are reinforced
        easy   p >  1 - K    it is not: failures are penalised
        flat   p = 0 or 1, or fewer than two scored rows: nothing to learn from

    A row that was not scored is "unscored", whatever its group is.

    Args:
        outcomes: [n] the verifier's 0/1 verdict; NaN for a completion that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt.
        k: level of the quantile, strictly between 0 and 1.

    Returns:
        [n] int64.

    Raises:
        ValueError: `k` is not strictly between 0 and 1, or an outcome is infinite.

    Example:
        >>> codes = regimes(torch.tensor([1.0, 0, 0, 1, 1, 0]), torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> [REGIMES[code] for code in codes.tolist()]
        ['hard', 'hard', 'hard', 'easy', 'easy', 'easy']

    Reference:
        arXiv:2509.22611, equation 4.
    """
    groups = Groups(outcomes, group_ids, argument="outcomes")
    easy = groups.quantile(k) > groups.smallest()
    codes = easy.long().masked_fill(groups.flat(), FLAT)
    return codes.masked_fill(groups.values.isnan(), UNSCORED)


@dataclass(frozen=True)
class RegimeShares:
    """One line of a regime table: what level `k` makes of a batch.

    Attributes:
        k: level of the quantile.
        hard_frac: share of groups, like the next two; groups without a scored row are not counted.
        easy_frac: share of groups.
        flat_frac: share of groups.
        positive_frac: share of scored rows whose advantage is positive, like the next two.
        negative_frac: share of scored rows.
        zero_frac: share of scored rows.
        zero_frac_mixed: share of the scored rows of groups that are not flat; NaN if there are none.
    """

    k: float
    hard_frac: float
    easy_frac: float
    flat_frac: float
    positive_frac: float
    negative_frac: float
    zero_frac: float
    zero_frac_mixed: float


def regime_table(
    outcomes: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    ks: Sequence[float] = (0.2, 0.4, 0.5, 0.6, 0.8),
) -> list[RegimeShares]:
    """What each level of the quantile would make of a batch: shares of regimes, of signs and of zeros.

    On 0/1 outcomes a hard group keeps its successes and an easy one its failures, so the non-zero share of a group
    is p if p <= 1 - K, else 1 - p. K moves the mix of signs far more than the number of zeros, which is largest
    near K = 0.5.

    Args:
        outcomes: [n] the verifier's 0/1 verdict; NaN for a completion that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt.
        ks: levels, each strictly between 0 and 1.

    Returns:
        One `RegimeShares` for each level. Shares of nothing are NaN.

    Raises:
        ValueError: a level is not strictly between 0 and 1, or an outcome is infinite.

    Example:
        >>> outcomes, group_ids = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0]), torch.arange(8) // 4
        >>> [(row.k, row.hard_frac, row.zero_frac) for row in regime_table(outcomes, group_ids, [0.2, 0.6])]
        [(0.2, 1.0, 0.5), (0.6, 0.5, 0.75)]

    Reference:
        arXiv:2509.22611, figure 5c.
    """
    groups = Groups(outcomes, group_ids, argument="outcomes")
    scored = ~groups.values.isnan()
    row = torch.ones_like(groups.values)[scored]
    mixed_row = (~groups.flat())[scored].double()
    group = row / groups.size()[scored]  # sums to 1 over the rows of a group
    table: list[RegimeShares] = []
    for k in ks:
        regime = regimes(outcomes, group_ids, k)[scored]
        sign = (groups.values - groups.quantile(k)).sign()[scored]
        table.append(
            RegimeShares(
                k=k,
                hard_frac=_share(group, regime == HARD),
                easy_frac=_share(group, regime == EASY),
                flat_frac=_share(group, regime == FLAT),
                positive_frac=_share(row, sign > 0),
                negative_frac=_share(row, sign < 0),
                zero_frac=_share(row, sign == 0),
                zero_frac_mixed=_share(mixed_row, sign == 0),
            )
        )
    return table


def expected_zero_frac(pass_rates: Float[Tensor, " q"], k: float = 0.4) -> float:
    """The share of completions that get advantage 0, from the pass rates of the prompts.

        1/q sum_q ( 1 - p if p <= 1 - K else p )

    Args:
        pass_rates: [q] probability of success of each prompt, 0 to 1.
        k: level of the quantile, strictly between 0 and 1.

    Returns:
        The share; NaN without prompts.

    Raises:
        ValueError: `k` is not strictly between 0 and 1.

    Example:
        >>> round(expected_zero_frac(torch.linspace(0, 1, 10001), k=0.4), 3)
        0.74
    """
    hard = pass_rates <= float(1 - fraction_meant(k))
    return (1 - pass_rates).where(hard, pass_rates).double().mean().item()


def predicted_entropy_change(
    logits: Float[Tensor, "*batch v"],
    advantages: Float[Tensor, "*batch v"],
    step_size: float,
    *,
    centred: bool = True,
) -> Float[Tensor, "*batch"]:
    """The change of a softmax policy's entropy in one policy gradient step on its logits, to first order.

        dH = -step_size Cov_{y ~ pi}( log pi(y), pi(y) a(y) ),
        a  = A             the paper's identity, centred=False
        a  = A - E_pi[A]   the true gradient,    centred=True

    The paper's logit step pi A is the gradient of the expected reward only where E_pi[A] = 0. With A = r - b it
    makes the prediction rise with the baseline b. The true step is pi (A - E_pi[A]), from which b cancels: on-policy,
    in expectation and to first order, no baseline changes the entropy differently from another.

    Args:
        logits: [... v] of the policy before the step.
        advantages: [... v] of each action.
        step_size: learning rate of the step on the logits.
        centred: True for the true gradient, False for the paper's identity.

    Returns:
        [...] the change in nats.

    Example:
        >>> logits, reward = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 0.0])
        >>> [round(predicted_entropy_change(logits, reward - b, 0.1).item(), 4) for b in (0, 1)]
        [-0.0094, -0.0094]
        >>> [round(predicted_entropy_change(logits, reward - b, 0.1, centred=False).item(), 4) for b in (0, 1)]
        [-0.0188, -0.0047]

    Reference:
        arXiv:2509.22611, proposition 4.2; the identity is Cui et al., arXiv:2505.22617.
    """
    logprobs = logits.log_softmax(-1)
    probs = logprobs.exp()
    logprobs = logprobs.where(probs > 0, 0.0)  # an action that cannot be drawn adds nothing, not 0 * inf
    if centred:
        advantages = advantages - (probs * advantages).sum(-1, keepdim=True)
    surprise = logprobs - (probs * logprobs).sum(-1, keepdim=True)
    return -step_size * (probs * surprise * probs * advantages).sum(-1)


def _share(weights: Float[Tensor, " m"], selected: Bool[Tensor, " m"]) -> float:
    return ((weights * selected).sum() / weights.sum()).item()
