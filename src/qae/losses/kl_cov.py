"""KL-Cov: the tokens of highest covariance pay for leaving the behaviour policy."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qae.losses.covariance import chosen_tokens, token_covariances
from qae.losses.ratio import learning_tokens, log_ratios


def kl_cov_policy_loss(
    logprobs: Float[Tensor, "n t"],
    behaviour_logprobs: Float[Tensor, "n t"],
    advantages: Float[Tensor, " n"],
    mask: Bool[Tensor, "n t"],
    *,
    select_frac: float = 2e-3,
    kl_coef: float = 1.0,
    selected: Bool[Tensor, "n t"] | None = None,
) -> Float[Tensor, "n t"]:
    """The unclipped surrogate, plus a penalty on the tokens of highest covariance.

        loss_it = -r_it A_i + kl_coef |logprobs_it - behaviour_logprobs_it|        second term where selected

    There is no ratio clip. On-policy the penalty has value and gradient 0. A selected token of a row with
    advantage 0 has a loss and a gradient all the same, so such rows may be dropped only if none of their
    tokens is selected. The paper's statistic is over the whole update: call `kl_cov_selection` once on all
    its tokens and hand each micro-batch its rows of the result. Without `selected` the choice is made from
    the tensors passed in; called per micro-batch, that is verl's per-micro-batch statistic. Masked tokens
    give exactly 0 in value and gradient.

    Args:
        logprobs: [n t] nats, of the policy that learns.
        behaviour_logprobs: [n t] nats, of the policy that sampled.
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.
        select_frac: share of the tokens to choose, at least one token; not per cent.
        kl_coef: weight of the penalty.
        selected: [n t] the choice, if made before; `select_frac` is then unused.

    Returns:
        [n t] loss per token, unreduced.

    Raises:
        ValueError: if `select_frac` is outside (0, 1] or `kl_coef` is negative.

    Example:
        >>> logprobs, behaviour = torch.tensor([[-0.5, -4.0]]), torch.tensor([[-1.0, -4.0]])
        >>> mask, first = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[True, False]])
        >>> kl_cov_policy_loss(logprobs, behaviour, torch.tensor([0.0]), mask, selected=first)
        tensor([[0.5000, 0.0000]])

    Reference:
        arXiv:2505.22617 (KL-Cov).
    """
    if not kl_coef >= 0:
        raise ValueError(f"kl_coef is {kl_coef} but a penalty's weight is at least 0; the paper uses 1.0")
    if selected is None:
        selected = kl_cov_selection(logprobs, advantages, mask, select_frac=select_frac)
    advantage, keep = learning_tokens(advantages, mask, logprobs.dtype)
    surrogate = (-log_ratios(logprobs, behaviour_logprobs, keep).exp() * advantage).where(keep, 0.0)
    moved = (logprobs - behaviour_logprobs.detach()).where(mask & selected, 0.0)
    return surrogate + kl_coef * moved.abs()


def kl_cov_selection(
    logprobs: Float[Tensor, "n t"],
    advantages: Float[Tensor, " n"],
    mask: Bool[Tensor, "n t"],
    *,
    select_frac: float = 2e-3,
) -> Bool[Tensor, "n t"]:
    """The tokens that KL-Cov penalises: those of highest covariance.

        top max(1, int(select_frac * unmasked tokens)) by cov_it; ties go to the earlier row, then the earlier
        token

    The papers use 2e-3 at 7B and 2e-4 at 32B (verl's default); in small runs the floor of one token decides.

    Args:
        logprobs: [n t] nats, of the policy that learns, for the whole update.
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.
        select_frac: share of the tokens to choose.

    Returns:
        [n t] True for the chosen tokens; none if every token is masked.

    Raises:
        ValueError: if `select_frac` is outside (0, 1].

    Example:
        >>> logprobs = torch.tensor([[-0.5, -4.0], [-3.0, -1.0]])
        >>> kl_cov_selection(logprobs, torch.tensor([1.0, -1.0]), torch.ones(2, 2, dtype=torch.bool))
        tensor([[ True, False],
                [False, False]])

    Reference:
        arXiv:2505.22617 (KL-Cov).
    """
    places = mask.flatten().nonzero()[:, 0]
    count = chosen_tokens(select_frac, len(places))
    covariance = token_covariances(logprobs, advantages, mask).flatten()[places]
    order = covariance.argsort(descending=True, stable=True)[:count]
    selected = torch.zeros_like(mask).flatten()
    selected[places[order]] = True
    return selected.view_as(mask)
