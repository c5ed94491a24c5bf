"""PPO's clipped surrogate, as GRPO and DAPO use it."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qae.losses.ratio import Level, check_clip, learning_tokens, log_ratios


def clipped_policy_loss(
    logprobs: Float[Tensor, "n t"],
    behaviour_logprobs: Float[Tensor, "n t"],
    advantages: Float[Tensor, " n"],
    mask: Bool[Tensor, "n t"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Float[Tensor, "n t"]:
    """PPO's clipped surrogate, negated.

        r_it = exp(logprobs_it - behaviour_logprobs_it)
        loss_it = -min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)
        with dual_clip:  loss_it = min(loss_it, -dual_clip A_i)  where A_i < 0

    Gradients reach `logprobs` only; on-policy they are -A_i per token. Masked tokens and rows with advantage
    0 give exactly 0 in value and gradient, whatever their log-probabilities hold.

    Args:
        logprobs: [n t] nats, of the policy that learns.
        behaviour_logprobs: [n t] nats, of the policy that sampled.
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.
        clip_low: the ratio's lower bound is 1 - clip_low.
        clip_high: the ratio's upper bound is 1 + clip_high; DAPO's Clip-Higher is 0.28.
        dual_clip: cap of the ratio where the advantage is negative; None for no cap.

    Returns:
        [n t] loss per token, unreduced.

    Raises:
        ValueError: on a negative clip distance or a dual clip of at most 1.

    Example:
        >>> behaviour = torch.zeros(1, 3)
        >>> logprobs = torch.tensor([[0.5, 1.0, 1.5]]).log()
        >>> clipped_policy_loss(logprobs, behaviour, torch.tensor([2.0]), torch.ones(1, 3, dtype=torch.bool))
        tensor([[-1.0000, -2.0000, -2.4000]])

    Reference:
        arXiv:1707.06347, eq. 7 (PPO); arXiv:2503.14476, section 3.1 (Clip-Higher); arXiv:1912.09729 (dual
        clip).
    """
    check_clip(clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    advantage, keep = learning_tokens(advantages, mask, logprobs.dtype)
    ratio = log_ratios(logprobs, behaviour_logprobs, keep).exp()
    loss = clipped_surrogate(ratio, advantage, clip_low=clip_low, clip_high=clip_high)
    if dual_clip is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)
    return loss.where(keep, 0.0)


def clipped_surrogate(
    ratio: Float[Tensor, "n t"], advantage: Float[Tensor, "n 1"], *, clip_low: float, clip_high: float
) -> Float[Tensor, "n t"]:
    """The pessimistic side of the ratio and its clipped twin.

        -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    Args:
        ratio: [n t] of policy to behaviour.
        advantage: [n 1] detached.
        clip_low: distance of the lower bound from 1.
        clip_high: distance of the upper bound from 1.

    Returns:
        [n t] loss per token.

    Example:
        >>> clipped_surrogate(torch.tensor([[0.5, 1.5]]), torch.tensor([[-1.0]]), clip_low=0.2, clip_high=0.2)
        tensor([[0.8000, 1.5000]])
    """
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)


def clip_fractions(
    logprobs: Float[Tensor, "n t"],
    behaviour_logprobs: Float[Tensor, "n t"],
    advantages: Float[Tensor, " n"],
    mask: Bool[Tensor, "n t"],
    *,
    clip_low: float,
    clip_high: float,
    level: Level = "token",
) -> tuple[Int[Tensor, ""], Int[Tensor, ""]]:
    """How many tokens the clip silences, below and above: numerators; divide by the update's tokens.

        low  = #{ r_it < 1 - clip_low  and A_i < 0 }
        high = #{ r_it > 1 + clip_high and A_i > 0 }

    Counts add up over micro-batches. A ratio beyond a bound on the other side of the advantage is not clipped
    (the minimum takes the unclipped branch), and a token with advantage 0 never is.

    Args:
        logprobs: [n t] nats, of the policy that learns.
        behaviour_logprobs: [n t] nats, of the policy that sampled.
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.
        clip_low: the ratio's lower bound is 1 - clip_low.
        clip_high: the ratio's upper bound is 1 + clip_high.
        level: "sequence" counts with GSPO's ratio (all tokens of a clipped sequence).

    Returns:
        counts of tokens (low, high), as tensors so that no device waits.

    Example:
        >>> logprobs, behaviour = torch.tensor([[0.5, 1.5, 1.0]] * 2).log(), torch.zeros(2, 3)
        >>> mask = torch.ones(2, 3, dtype=torch.bool)
        >>> clip_fractions(logprobs, behaviour, torch.tensor([1.0, -1.0]), mask, clip_low=0.2, clip_high=0.28)
        (tensor(1), tensor(1))
    """
    advantage, keep = learning_tokens(advantages, mask, logprobs.dtype)
    ratio = log_ratios(logprobs.detach(), behaviour_logprobs, keep, level=level).exp()
    low = keep & (advantage < 0) & (ratio < 1 - clip_low)
    high = keep & (advantage > 0) & (ratio > 1 + clip_high)
    return low.sum(), high.sum()
