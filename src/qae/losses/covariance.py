"""The token statistic by which Clip-Cov and KL-Cov choose."""

from jaxtyping import Bool, Float
from torch import Tensor


def token_covariances(
    logprobs: Float[Tensor, "n t"], advantages: Float[Tensor, " n"], mask: Bool[Tensor, "n t"]
) -> Float[Tensor, "n t"]:
    """Each token's term in the covariance of log-probability and advantage.

        cov_it = (A_i - mean A) (logprobs_it - mean logprobs)       means over the unmasked tokens

    A long completion counts in the means once per token. Masked tokens get 0 (the choosers leave them out).
    The means are over what is passed in: pass a whole update for the paper's statistic.

    Args:
        logprobs: [n t] nats, of the policy that learns; detached.
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.

    Returns:
        [n t] in the unit of the advantage times nats.

    Example:
        >>> import torch
        >>> logprobs = torch.tensor([[-1.0, -3.0], [-2.0, -2.0]])
        >>> token_covariances(logprobs, torch.tensor([1.0, -1.0]), torch.ones(2, 2, dtype=torch.bool))
        tensor([[ 1., -1.],
                [-0., -0.]])

    Reference:
        arXiv:2505.22617, section 4 (the token-wise covariance of Clip-Cov and KL-Cov).
    """
    tokens = mask.sum().clamp(min=1)
    logs = logprobs.detach().where(mask, 0.0)
    advantage = advantages.detach().to(logs.dtype)[:, None].expand_as(logs).where(mask, 0.0)
    deviations = (advantage - advantage.sum() / tokens) * (logs - logs.sum() / tokens)
    return deviations.where(mask, 0.0)


def chosen_tokens(frac: float, tokens: int) -> int:
    """How many of `tokens` a fraction means: rounded down, but at least one.

        max(1, int(frac * tokens))

    The floor of one decides in small runs: 2e-4 of 2,000 tokens would be none.

    Args:
        frac: share of the tokens, in (0, 1]; not per cent.
        tokens: unmasked tokens that the statistic was taken over.

    Returns:
        a number of tokens.

    Raises:
        ValueError: if `frac` is outside (0, 1].

    Example:
        >>> chosen_tokens(2e-4, 2_000), chosen_tokens(2e-4, 262_144)
        (1, 52)
    """
    if not 0 < frac <= 1:
        raise ValueError(
            f"select_frac is {frac} but it is a share of the tokens in (0, 1], not per cent; "
            "the papers use 0.0002 (Clip-Cov; KL-Cov at 32B) and 0.002 (KL-Cov at 7B)"
        )
    return max(1, int(frac * tokens))
