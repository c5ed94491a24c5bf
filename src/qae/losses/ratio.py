"""The probability ratio that every loss is built on, safe under masks, overflow and zero advantages."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are held within +-20 (verl's bound): exp(20) is 4.9e8, so no ratio overflows; the gradient beyond is 0."""

Level = Literal["token", "sequence"]


def log_ratios(
    logprobs: Float[Tensor, "n t"],
    behaviour_logprobs: Float[Tensor, "n t"],
    keep: Bool[Tensor, "n t"],
    *,
    level: Level = "token",
) -> Float[Tensor, "n t"]:
    """Log of the ratio between policy and behaviour where `keep`, else exactly 0 with gradient exactly 0.

        token:     log r_it = logprobs_it - behaviour_logprobs_it
        sequence:  log s_it = sg[mean_t log r_it] + logprobs_it - sg[logprobs_it]

    The sequence form has one value per row, the row's mean, while the gradient of each token stays its own.
    Whatever stands where `keep` is False (padding may hold NaN or inf) reaches neither the value nor the
    gradient.

    Args:
        logprobs: [n t] nats, of the policy that learns.
        behaviour_logprobs: [n t] nats, of the policy that sampled; detached.
        keep: [n t] tokens that count.
        level: one ratio per token (PPO) or per sequence (GSPO).

    Returns:
        [n t] nats, within +-MAX_LOG_RATIO.

    Example:
        >>> keep = torch.tensor([[True, True, False]])
        >>> log_ratios(torch.tensor([[-1.0, -2.0, torch.nan]]), torch.tensor([[-1.5, -1.0, 0.0]]), keep)
        tensor([[ 0.5000, -1.0000,  0.0000]])
    """
    # where() before anything else: its backward writes 0, not 0 * inf, into the tokens left out.
    logs = (logprobs - behaviour_logprobs.detach()).where(keep, 0.0)
    if level == "sequence":
        value = logs.detach()
        row_mean = value.sum(1, keepdim=True) / keep.sum(1, keepdim=True).clamp(min=1)
        logs = (row_mean + (logs - value)).where(keep, 0.0)
    return logs.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def learning_tokens(
    advantages: Float[Tensor, " n"], mask: Bool[Tensor, "n t"], dtype: torch.dtype
) -> tuple[Float[Tensor, "n 1"], Bool[Tensor, "n t"]]:
    """The advantages as a detached column, and the tokens whose policy term is not 0 by definition.

    A token of a row with advantage 0 is left out like a masked one, so a dense batch equals the batch without
    such rows exactly, even where a log-probability in them is infinite.

    Args:
        advantages: [n] one per completion.
        mask: [n t] True for the completion's own tokens.
        dtype: of the log-probabilities; the result's dtype.

    Returns:
        advantages [n 1] and tokens to keep [n t].

    Example:
        >>> learning_tokens(torch.tensor([0.0, 2.0]), torch.ones(2, 2, dtype=torch.bool), torch.float64)[1]
        tensor([[False, False],
                [ True,  True]])
    """
    column = advantages.detach().to(dtype)[:, None]
    return column, mask & (column != 0)


def check_clip(*, clip_low: float | None, clip_high: float, dual_clip: float | None = None) -> None:
    """Refuse clip settings that cannot be meant.

    Args:
        clip_low: distance below ratio 1.
        clip_high: distance above ratio 1.
        dual_clip: bound of the ratio for negative advantages.

    Raises:
        ValueError: on a negative distance or a dual clip of at most 1.

    Example:
        >>> check_clip(clip_low=0.2, clip_high=-0.28)
        Traceback (most recent call last):
        ...
        ValueError: clip_high is -0.28 but a distance from ratio 1 is at least 0; write 0.28 to bound it at 1.28
    """
    if clip_low is not None and not clip_low >= 0:
        raise ValueError(
            f"clip_low is {clip_low} but a distance from ratio 1 is at least 0; write 0.2 to bound it at 0.8"
        )
    if not clip_high >= 0:
        raise ValueError(
            f"clip_high is {clip_high} but a distance from ratio 1 is at least 0; write 0.28 to bound it at 1.28"
        )
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(
            f"dual_clip is {dual_clip} but it bounds the ratio from above where the advantage is negative, so it must "
            "exceed 1; verl's default is 3.0, DAPO's scripts use 10.0"
        )
