"""CISPO: cap the weight of a token, never its gradient."""

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from qae.losses.ratio import check_clip, learning_tokens, log_ratios


def cispo_policy_loss(
    logprobs: Float[Tensor, "n t"],
    behaviour_logprobs: Float[Tensor, "n t"],
    advantages: Float[Tensor, " n"],
    mask: Bool[Tensor, "n t"],
    *,
    clip_low: float | None = None,
    clip_high: float = 0.2,
    bounds: Literal["offset", "ratio"] = "offset",
) -> Float[Tensor, "n t"]:
    """REINFORCE weighted by the detached, capped ratio; no token is silenced.

        loss_it = -sg[clip(r_it, low, high)] A_i logprobs_it
        bounds="offset":  low = 1 - clip_low, high = 1 + clip_high        the paper and verl
        bounds="ratio":   low = clip_low,     high = clip_high            TRL and ScaleRL, whose cap is 5.0

    The same number means two things in two hosts: TRL's 5.0 is a ratio of at most 5, verl's 0.2 a ratio of at
    most 1.2. The value is no surrogate of the objective (on-policy it is -A_i logprobs_it); only its gradient
    is meant. Masked tokens and rows with advantage 0 give exactly 0 in value and gradient.

    Args:
        logprobs: [n t] nats, of the policy that learns.
        behaviour_logprobs: [n t] nats, of the policy that sampled.
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.
        clip_low: lower bound, as `bounds` says; None for no floor (verl's example writes 10, which is none
            either).
        clip_high: upper bound, as `bounds` says.
        bounds: whether the two are distances from 1 or ratios.

    Returns:
        [n t] loss per token, unreduced.

    Raises:
        ValueError: on a negative bound, unknown `bounds`, or a cap below 1 with bounds="ratio".

    Example:
        >>> import torch
        >>> logprobs, behaviour = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]])
        >>> mask = torch.ones(1, 2, dtype=torch.bool)
        >>> cispo_policy_loss(logprobs, behaviour, torch.tensor([1.0]), mask)
        tensor([[1.0000, 1.2000]])
        >>> cispo_policy_loss(logprobs, behaviour, torch.tensor([1.0]), mask, clip_high=5.0, bounds="ratio")
        tensor([[1., 5.]])

    Reference:
        arXiv:2506.13585, eq. 4-5 (CISPO); arXiv:2510.13786 (ScaleRL).
    """
    check_clip(clip_low=clip_low, clip_high=clip_high)
    if bounds == "offset":
        low, high = None if clip_low is None else 1 - clip_low, 1 + clip_high
    elif bounds == "ratio":
        low, high = clip_low, clip_high
        if high < 1:
            raise ValueError(
                f'clip_high is {clip_high} with bounds="ratio", which would shrink on-policy tokens too; '
                'write 5.0 for a ratio of at most 5, or bounds="offset" for 1 + clip_high'
            )
    else:
        raise ValueError(f'bounds is {bounds!r} but must be "offset" (1 + clip_high) or "ratio" (clip_high itself)')
    advantage, keep = learning_tokens(advantages, mask, logprobs.dtype)
    weight = log_ratios(logprobs.detach(), behaviour_logprobs, keep).exp().clamp(low, high)
    return (-weight * advantage * logprobs.where(keep, 0.0)).where(keep, 0.0)
