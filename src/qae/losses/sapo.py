"""SAPO: a smooth gate in place of the clip."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qae.losses.ratio import learning_tokens, log_ratios


def sapo_policy_loss(
    logprobs: Float[Tensor, "n t"],
    behaviour_logprobs: Float[Tensor, "n t"],
    advantages: Float[Tensor, " n"],
    mask: Bool[Tensor, "n t"],
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Float[Tensor, "n t"]:
    """The surrogate through a sigmoid gate of the ratio, negated; nothing is clipped.

        loss_it = -(4 / tau) sigmoid(tau (r_it - 1)) A_i         tau = tau_positive if A_i > 0 else tau_negative

    The gradient's weight is r_it times a gate that is 1 at r_it = 1 and falls to 0 on both sides. On-policy
    the value is -2 A_i / tau, so values of the two signs are not comparable; the gradients are. The paper
    reduces with `sequence_mean`. Masked tokens and rows with advantage 0 give exactly 0 in value and
    gradient.

    Args:
        logprobs: [n t] nats, of the policy that learns.
        behaviour_logprobs: [n t] nats, of the policy that sampled.
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.
        tau_positive: steepness of the gate for positive advantages.
        tau_negative: the same for negative ones; larger forgets stale failures sooner.

    Returns:
        [n t] loss per token, unreduced.

    Raises:
        ValueError: if a tau is not positive.

    Example:
        >>> logprobs = torch.tensor([[1.0, 2.0]]).log()
        >>> sapo_policy_loss(logprobs, torch.zeros(1, 2), torch.tensor([1.0]), torch.ones(1, 2, dtype=torch.bool))
        tensor([[-2.0000, -2.9242]])

    Reference:
        arXiv:2511.20347 (SAPO).
    """
    for name, tau in (("tau_positive", tau_positive), ("tau_negative", tau_negative)):
        if not tau > 0:
            raise ValueError(f"{name} is {tau} but a gate's steepness is above 0; the paper uses 1.0 and 1.05")
    advantage, keep = learning_tokens(advantages, mask, logprobs.dtype)
    tau = torch.full_like(advantage, tau_negative).masked_fill(advantage > 0, tau_positive)
    ratio = log_ratios(logprobs, behaviour_logprobs, keep).exp()
    return (-4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantage).where(keep, 0.0)
