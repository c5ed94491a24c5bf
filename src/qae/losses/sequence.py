"""GSPO: one ratio, and one clip decision, for a whole completion."""

from jaxtyping import Bool, Float
from torch import Tensor

from qae.losses.clipped import clipped_surrogate
from qae.losses.ratio import check_clip, learning_tokens, log_ratios


def sequence_policy_loss(
    logprobs: Float[Tensor, "n t"],
    behaviour_logprobs: Float[Tensor, "n t"],
    advantages: Float[Tensor, " n"],
    mask: Bool[Tensor, "n t"],
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Float[Tensor, "n t"]:
    """GSPO's clipped surrogate with the length-normalised sequence ratio, negated.

        s_i = exp(mean_t(logprobs_it - behaviour_logprobs_it))
        s_it = sg[s_i] exp(logprobs_it - sg[logprobs_it])          value s_i, gradient of each token its own
        loss_it = -min(s_it A_i, clip(s_it, 1 - clip_low, 1 + clip_high) A_i)

    The paper's objective is the mean over completions of the mean over tokens: reduce with `sequence_mean`.
    Any other reduction weighs completions by length and is another objective (`objective_warning` says so). A
    row must be whole: its ratio needs all its tokens. Masked tokens and rows with advantage 0 give exactly 0
    in value and gradient.

    Args:
        logprobs: [n t] nats, of the policy that learns.
        behaviour_logprobs: [n t] nats, of the policy that sampled; recompute them with the trainer's own
            arithmetic, since the clip bounds are as small as the difference between two engines.
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.
        clip_low: the sequence ratio's lower bound is 1 - clip_low.
        clip_high: the sequence ratio's upper bound is 1 + clip_high.

    Returns:
        [n t] loss per token, unreduced.

    Raises:
        ValueError: on a negative clip distance.

    Example:
        >>> import torch
        >>> logprobs = torch.tensor([[0.2, -0.1]])
        >>> mask = torch.ones(1, 2, dtype=torch.bool)
        >>> sequence_policy_loss(logprobs, torch.zeros(1, 2), torch.tensor([-1.0]), mask)
        tensor([[1.0513, 1.0513]])

    Reference:
        arXiv:2507.18071, eq. 5 and 7; section 4.3 (GSPO-token) for the gradient of each token.
    """
    check_clip(clip_low=clip_low, clip_high=clip_high)
    advantage, keep = learning_tokens(advantages, mask, logprobs.dtype)
    ratio = log_ratios(logprobs, behaviour_logprobs, keep, level="sequence").exp()
    return clipped_surrogate(ratio, advantage, clip_low=clip_low, clip_high=clip_high).where(keep, 0.0)
