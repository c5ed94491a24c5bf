"""Clip-Cov: a few tokens of high covariance, chosen at random, learn nothing."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qae.losses.clipped import clipped_surrogate
from qae.losses.covariance import chosen_tokens, token_covariances
from qae.losses.ratio import check_clip, learning_tokens, log_ratios


def clip_cov_policy_loss(
    logprobs: Float[Tensor, "n t"],
    behaviour_logprobs: Float[Tensor, "n t"],
    advantages: Float[Tensor, " n"],
    mask: Bool[Tensor, "n t"],
    *,
    clip_low: float = 1.0,
    clip_high: float = 1.0,
    select_frac: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
    selected: Bool[Tensor, "n t"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "n t"]:
    """PPO's clipped surrogate with the gradient of some high-covariance tokens cut.

        loss_it = -min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)      0 where selected

    The paper's statistic is over the whole update: call `clip_cov_selection` once on all its tokens and hand
    each micro-batch its rows of the result. Without `selected` the choice is made from the tensors passed in;
    called per micro-batch, that is verl's per-micro-batch statistic. Rows with advantage 0 count in the
    means, so they may be dropped only after the selection. Masked tokens and rows with advantage 0 give
    exactly 0 in value and gradient.

    Args:
        logprobs: [n t] nats, of the policy that learns.
        behaviour_logprobs: [n t] nats, of the policy that sampled.
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.
        clip_low: the ratio's lower bound is 1 - clip_low; the recipe's 1.0 turns the ratio clip almost off.
        clip_high: the ratio's upper bound is 1 + clip_high.
        select_frac: share of the tokens to choose, at least one token.
        cov_low: only tokens of a larger covariance are candidates.
        cov_high: only tokens of a smaller covariance are candidates.
        selected: [n t] the choice, if made before; the arguments of the choice are then unused.
        generator: source of the random choice; needed without `selected`.

    Returns:
        [n t] loss per token, unreduced.

    Raises:
        ValueError: on neither `selected` nor `generator`, or settings that cannot be meant.

    Example:
        >>> logprobs = torch.tensor([[-0.5, -4.0], [-3.0, -3.0]])
        >>> mask, rng = torch.ones(2, 2, dtype=torch.bool), torch.Generator().manual_seed(0)
        >>> clip_cov_policy_loss(logprobs, logprobs, torch.tensor([1.0, -1.0]), mask, generator=rng)
        tensor([[ 0., -1.],
                [ 1.,  1.]])

    Reference:
        arXiv:2505.22617 (Clip-Cov).
    """
    check_clip(clip_low=clip_low, clip_high=clip_high)
    if selected is None:
        if generator is None:
            raise ValueError(
                "clip_cov_policy_loss chooses tokens at random and was given neither `selected` nor `generator`; "
                "pass selected=clip_cov_selection(...) of the whole update, or a torch.Generator to choose from "
                "these tokens"
            )
        selected = clip_cov_selection(
            logprobs,
            behaviour_logprobs,
            advantages,
            mask,
            generator=generator,
            clip_low=clip_low,
            clip_high=clip_high,
            select_frac=select_frac,
            cov_low=cov_low,
            cov_high=cov_high,
        )
    advantage, keep = learning_tokens(advantages, mask, logprobs.dtype)
    keep = keep & ~selected
    ratio = log_ratios(logprobs, behaviour_logprobs, keep).exp()
    return clipped_surrogate(ratio, advantage, clip_low=clip_low, clip_high=clip_high).where(keep, 0.0)


def clip_cov_selection(
    logprobs: Float[Tensor, "n t"],
    behaviour_logprobs: Float[Tensor, "n t"],
    advantages: Float[Tensor, " n"],
    mask: Bool[Tensor, "n t"],
    *,
    generator: torch.Generator,
    clip_low: float = 1.0,
    clip_high: float = 1.0,
    select_frac: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
) -> Bool[Tensor, "n t"]:
    """The tokens that Clip-Cov silences: a random few of high covariance that the ratio clip lets pass.

        candidates = { it unmasked, not clipped : cov_low < cov_it < cov_high }
        choose max(1, int(select_frac * unmasked tokens)) of them, or all if there are fewer

    A token is clipped when the ratio clip has already cut its gradient. The bounds are absolute, so a
    different scale of the advantages (quantile against mean, std or none) changes who is a candidate. Padding
    does not move the draw: only the order of the unmasked tokens counts.

    Args:
        logprobs: [n t] nats, of the policy that learns, for the whole update.
        behaviour_logprobs: [n t] nats, of the policy that sampled.
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.
        generator: source of the random choice, advanced by it.
        clip_low: the ratio's lower bound is 1 - clip_low.
        clip_high: the ratio's upper bound is 1 + clip_high.
        select_frac: share of the tokens to choose, at least one token.
        cov_low: only tokens of a larger covariance are candidates.
        cov_high: only tokens of a smaller covariance are candidates.

    Returns:
        [n t] True for the chosen tokens; none if there is no candidate.

    Raises:
        ValueError: if `select_frac` is outside (0, 1] or `cov_low` is not below `cov_high`.

    Example:
        >>> logprobs = torch.tensor([[-0.5, -4.0], [-3.0, -3.0]])
        >>> mask, rng = torch.ones(2, 2, dtype=torch.bool), torch.Generator().manual_seed(0)
        >>> clip_cov_selection(logprobs, logprobs, torch.tensor([1.0, -1.0]), mask, generator=rng)
        tensor([[ True, False],
                [False, False]])

    Reference:
        arXiv:2505.22617 (Clip-Cov).
    """
    if not cov_low < cov_high:
        raise ValueError(
            f"cov_low is {cov_low} and cov_high is {cov_high}, so no covariance lies between them; the paper uses "
            "1 and 5"
        )
    count = chosen_tokens(select_frac, int(mask.sum()))
    covariance = token_covariances(logprobs, advantages, mask)
    advantage, keep = learning_tokens(advantages, mask, logprobs.dtype)
    ratio = log_ratios(logprobs.detach(), behaviour_logprobs, keep).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantage < ratio * advantage
    candidates = mask & ~clipped & (covariance > cov_low) & (covariance < cov_high)
    places = candidates.flatten().nonzero()[:, 0]
    order = torch.randperm(len(places), generator=generator, device=generator.device)[:count]
    selected = torch.zeros_like(mask).flatten()
    selected[places[order.to(places.device)]] = True
    return selected.view_as(mask)
