"""A per-token penalty for leaving a reference policy."""

from jaxtyping import Bool, Float
from torch import Tensor

from qae.losses.ratio import MAX_LOG_RATIO


def kl_penalty_k3(
    logprobs: Float[Tensor, "n t"], reference_logprobs: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"]
) -> Float[Tensor, "n t"]:
    """Schulman's k3 estimate of KL(policy || reference) from one sample: never negative, 0 where the two agree.

        d_it = reference_logprobs_it - logprobs_it
        k3_it = exp(d_it) - d_it - 1

    Unbiased in value when the tokens come from the policy itself. Differentiated as it stands, as GRPO does,
    its gradient is -(exp(d) - 1) per token, which is not the gradient of the KL. |d| is held at 20. Masked
    tokens give exactly 0 in value and gradient; rows with advantage 0 do not, so a run with this term cannot
    drop them.

    Args:
        logprobs: [n t] nats, of the policy that learns.
        reference_logprobs: [n t] nats, of the reference; detached.
        mask: [n t] True for the completion's own tokens.

    Returns:
        [n t] nats per token, unreduced.

    Example:
        >>> import torch
        >>> mask = torch.tensor([[True, True, False]])
        >>> kl_penalty_k3(torch.tensor([[-1.0, -2.0, 9.0]]), torch.tensor([[-1.0, -1.0, 0.0]]), mask)
        tensor([[0.0000, 0.7183, 0.0000]])

    Reference:
        arXiv:2402.03300, eq. 4 (GRPO).
    """
    # clamp would pass a gradient of NaN times 0 from a masked token; where() comes first for that reason.
    difference = (reference_logprobs.detach() - logprobs).where(mask, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.expm1() - difference
