"""From losses per token to one number: the only place where a mask meets a denominator.

Denominators are counts of a whole update (one optimiser step), taken before any row is dropped, and passed
in. So the sum of a reduction over micro-batches is the reduction of the whole, and a row whose loss is 0 can
be left out, both exactly: neither the number of micro-batches nor the rows present appears in any formula.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor


def update_counts(mask: Bool[Tensor, "n t"]) -> tuple[int, int]:
    """The two denominators of an update: its unmasked tokens, and its completions with at least one of them.

    Take them over all rows of the update, before rows are dropped and before it is cut into micro-batches. A
    completion that is masked as a whole (overlong filtering) is no member of the mean.

    Args:
        mask: [n t] True for the completions' own tokens, of the whole update.

    Returns:
        (update_tokens, update_completions).

    Example:
        >>> import torch
        >>> update_counts(torch.tensor([[True, True, False], [False, False, False]]))
        (2, 1)
    """
    return int(mask.sum()), int(mask.any(1).sum())


def token_mean(per_token: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"], *, update_tokens: int) -> Float[Tensor, ""]:
    """Every token of the update weighs the same (DAPO).

        sum_it loss_it / update_tokens

    A completion weighs in proportion to its length. The mean is over the update, not over each group as the
    paper writes it.

    Args:
        per_token: [n t] of a micro-batch.
        mask: [n t] True for the completions' own tokens.
        update_tokens: unmasked tokens of the whole update.

    Returns:
        this micro-batch's share of the update's loss.

    Raises:
        ValueError: if `update_tokens` is not positive.

    Example:
        >>> import torch
        >>> per_token, mask = torch.ones(2, 2), torch.tensor([[True, True], [True, False]])
        >>> token_mean(per_token, mask, update_tokens=6)
        tensor(0.5000)

    Reference:
        arXiv:2503.14476, eq. 8 (DAPO; per group there).
    """
    check_count("update_tokens", update_tokens)
    return per_token.where(mask, 0.0).sum() / update_tokens


def sequence_mean(
    per_token: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"], *, update_completions: int
) -> Float[Tensor, ""]:
    """Every completion weighs the same; within it, every token (GRPO, GSPO, SAPO).

        sum_i (sum_t loss_it / |o_i|) / update_completions        |o_i| = unmasked tokens of row i

    A row without unmasked tokens adds 0. Rows must be whole: a completion's length is read from its mask.

    Args:
        per_token: [n t] of a micro-batch.
        mask: [n t] True for the completions' own tokens.
        update_completions: completions of the whole update with at least one unmasked token.

    Returns:
        this micro-batch's share of the update's loss.

    Raises:
        ValueError: if `update_completions` is not positive.

    Example:
        >>> import torch
        >>> per_token, mask = torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[True, True], [True, False]])
        >>> sequence_mean(per_token, mask, update_completions=2)
        tensor(3.5000)

    Reference:
        arXiv:2402.03300, eq. 3 (GRPO).
    """
    check_count("update_completions", update_completions)
    tokens = mask.sum(1).clamp(min=1)
    return (per_token.where(mask, 0.0).sum(1) / tokens).sum() / update_completions


def sequence_sum(
    per_token: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"], *, update_completions: int
) -> Float[Tensor, ""]:
    """The mean over completions of their token sums: the policy gradient of whole sequences.

        sum_it loss_it / update_completions

    Args:
        per_token: [n t] of a micro-batch.
        mask: [n t] True for the completions' own tokens.
        update_completions: completions of the whole update with at least one unmasked token.

    Returns:
        this micro-batch's share of the update's loss.

    Raises:
        ValueError: if `update_completions` is not positive.

    Example:
        >>> import torch
        >>> per_token, mask = torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[True, True], [True, False]])
        >>> sequence_sum(per_token, mask, update_completions=2)
        tensor(4.5000)
    """
    check_count("update_completions", update_completions)
    return per_token.where(mask, 0.0).sum() / update_completions


def sequence_sum_norm(
    per_token: Float[Tensor, "n t"],
    mask: Bool[Tensor, "n t"],
    *,
    update_completions: int,
    horizon_tokens: int,
) -> Float[Tensor, ""]:
    """`sequence_sum` over a constant length, so that no completion's own length enters (Dr. GRPO).

        sum_it loss_it / (update_completions * horizon_tokens)

    Args:
        per_token: [n t] of a micro-batch.
        mask: [n t] True for the completions' own tokens.
        update_completions: completions of the whole update with at least one unmasked token.
        horizon_tokens: the constant, usually the longest completion that the sampler allows; never the
            batch's longest.

    Returns:
        this micro-batch's share of the update's loss.

    Raises:
        ValueError: if a count is not positive.

    Example:
        >>> import torch
        >>> per_token, mask = torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[True, True], [True, False]])
        >>> sequence_sum_norm(per_token, mask, update_completions=2, horizon_tokens=10)
        tensor(0.4500)

    Reference:
        arXiv:2503.20783 (Dr. GRPO).
    """
    check_count("horizon_tokens", horizon_tokens)
    return sequence_sum(per_token, mask, update_completions=update_completions) / horizon_tokens


def check_count(name: str, count: int) -> None:
    """Refuse a denominator of 0 instead of returning a loss of 0 or NaN.

    Args:
        name: the argument's name.
        count: tokens or completions.

    Raises:
        ValueError: if the count is not positive.

    Example:
        >>> check_count("update_tokens", 1)
    """
    if count > 0:
        return
    if name == "horizon_tokens":
        raise ValueError(f"horizon_tokens is {count} but must be at least 1; use the longest completion allowed")
    raise ValueError(
        f"{name} is {count}: every token of this update is masked, so there is nothing to learn from; skip the "
        "optimiser step, and look for a mask that drops all truncated completions or prompts longer than the context"
    )


REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
    "sequence_sum_norm": sequence_sum_norm,
}
