"""Leaving rows with advantage 0 out of TRL's forward and backward pass, with the same loss, gradient and metrics.

The log-probabilities of the kept rows are computed on their own and put back into their places; the rest of TRL's
loss then runs on the whole micro-batch, so every denominator and every metric is what it was.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Forward = Callable[..., tuple[Tensor, Tensor | None, Any]]


def reasons_against(trainer: Any) -> list[str]:
    """Why rows with advantage 0 still matter to this trainer's loss; empty where skipping them is exact.

    Args:
        trainer: a GRPOTrainer.
    """
    args = trainer.args
    against = {
        f"beta={trainer.beta}: the KL term pulls on rows with advantage 0": trainer.beta != 0,
        "an entropy bonus (entropy_coef or use_adaptive_entropy) pulls on rows with advantage 0": getattr(
            trainer, "_entropy_bonus_enabled", False
        ),
        "the router's auxiliary loss is computed over all rows": getattr(trainer, "aux_loss_enabled", False),
        "top_entropy_quantile below 1 ranks the tokens of all rows": getattr(trainer, "top_entropy_quantile", 1.0) < 1,
        "use_liger_kernel may compute loss and log-probabilities in one kernel": getattr(
            args, "use_liger_kernel", False
        ),
    }
    return [reason for reason, holds in against.items() if holds]


def host_loss_breach(host: type) -> list[str]:
    """Whether `compute_loss` still leads to `_compute_loss`; Unsloth's does not.

    Args:
        host: a trainer class, without our mixin.

    Returns:
        A sentence if it does not, else nothing.
    """
    for cls in host.__mro__:
        method = vars(cls).get("compute_loss")
        if method is None:
            continue
        names = inspect.unwrap(method).__code__.co_names
        if "_compute_loss" in names:
            return []
        if "compute_loss" not in names:
            return [f"{cls.__name__}.compute_loss does not use _compute_loss"]
    return [f"{host.__name__} has no compute_loss"]


def rows_to_learn(inputs: dict[str, Any]) -> Bool[Tensor, " n"]:
    """Rows with an advantage and a token that counts; if there is none, the first, whose gradient is 0.

    Every process must take part in the backward pass, so a micro-batch is never empty.

    Args:
        inputs: TRL's micro-batch.
    """
    advantages, mask = inputs["advantages"], inputs["completion_mask"].bool()
    if "tool_mask" in inputs:
        mask = mask & inputs["tool_mask"].bool()
    learns = (advantages != 0) if advantages.dim() == 1 else (advantages != 0).any(1)
    learns = learns & mask.any(1)
    if not learns.any():
        learns[0] = True
    return learns


def forward_kept_rows(
    forward: Forward,
    model: Any,
    input_ids: Int[Tensor, "n s"],
    attention_mask: Int[Tensor, "n s"],
    completion_tokens: int,
    learns: Bool[Tensor, " n"],
    *,
    stand_in: Float[Tensor, "n t"] | None,
    measure_rest: bool,
    always_measure: bool,
    trim_left: bool,
    **options: Any,
) -> tuple[Float[Tensor, "n t"], Float[Tensor, "n t"] | None, Any]:
    """TRL's log-probabilities and entropies of a micro-batch, with gradients for the rows that learn only.

    Args:
        forward: TRL's own function.
        model: the policy.
        input_ids: [n s] prompts, padded left, and completions, padded right.
        attention_mask: [n s].
        completion_tokens: t, the columns of the completions.
        learns: [n] rows that get a gradient.
        stand_in: [n t] what other rows get where they are not measured: their ratio is then 1.
        measure_rest: run the other rows without gradient, for their entropy.
        always_measure: do so even without other rows: processes must run the model equally often.
        trim_left: positions are relative, so columns that pad every kept prompt can go.
        **options: passed on.

    Returns:
        What `forward` returns.
    """
    kept = learns.nonzero()[:, 0]
    rest = (~learns).nonzero()[:, 0]
    logprobs, entropies, extra = _some_rows(
        forward, model, input_ids, attention_mask, completion_tokens, kept, trim_left, options
    )
    rest_logprobs = logprobs.new_zeros(len(rest), completion_tokens)
    rest_entropies = rest_logprobs
    if measure_rest and (always_measure or len(rest)):
        rows = rest if len(rest) else kept[:1]
        with torch.no_grad():
            found, found_entropies, _ = _some_rows(
                forward, model, input_ids, attention_mask, completion_tokens, rows, trim_left, options
            )
        rest_logprobs = found[: len(rest)]
        rest_entropies = None if found_entropies is None else found_entropies[: len(rest)]
    elif stand_in is not None:
        rest_logprobs = stand_in[rest].to(logprobs.dtype)
    back = torch.cat([kept, rest]).argsort()
    logprobs = torch.cat([logprobs, rest_logprobs])[back]
    if entropies is not None and rest_entropies is not None:
        entropies = torch.cat([entropies, rest_entropies.to(entropies.dtype)])[back]
    return logprobs, entropies, extra


def has_relative_positions(model: Any) -> bool:
    """Whether shifting all positions changes nothing: rotary embeddings, told by the model's configuration.

    Args:
        model: a Hugging Face model.
    """
    return bool(getattr(model.config.get_text_config(), "rope_parameters", None))


def _some_rows(
    forward: Forward,
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    completion_tokens: int,
    rows: Tensor,
    trim_left: bool,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None, Any]:
    """`forward` on some rows, without the columns that are padding in all of them."""
    mask = attention_mask[rows]
    used = mask.any(0)
    prompt_tokens = mask.shape[1] - completion_tokens
    first = int(used[:prompt_tokens].int().argmax()) if trim_left and used[:prompt_tokens].any() else 0
    length = max(1, int(used[prompt_tokens:].nonzero().max()) + 1 if used[prompt_tokens:].any() else 1)
    columns = slice(first, prompt_tokens + length)
    logprobs, entropies, extra = forward(model, input_ids[rows, columns], mask[:, columns], length, **options)
    width = (0, completion_tokens - length)
    padded = torch.nn.functional.pad(logprobs, width)
    return padded, None if entropies is None else torch.nn.functional.pad(entropies, width), extra
