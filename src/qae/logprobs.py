"""Hidden states to token log-probabilities and exact entropies, without ever holding [m v].

At a vocabulary of 151,936 one token's logits are 0.6 MB in fp32: 4,096 tokens would be 2.5 GB, several times
over with their softmax and its gradient. Here logits exist for one chunk of tokens at a time, in the forward
pass and again, recomputed, in the backward pass.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = 64 * 2**20
"""Size of one chunk of logits; at most two such buffers are alive."""

_LOG_ZERO = -1e30  # stands for log 0 where 0 * log 0 must be 0 and not NaN


def token_logprobs(
    hidden: Float[Tensor, "m d"],
    weight: Float[Tensor, "v d"],
    targets: Int[Tensor, " m"],
    *,
    temperature: float = 1.0,
    bias: Float[Tensor, " v"] | None = None,
    chunk_tokens: int | None = None,
    weight_grad: Float[Tensor, "v d"] | None = None,
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """Log-probability of each target and exact entropy of each position, at the sampling temperature.

        z = (hidden weight^T + bias) / temperature
        logprobs_i = log softmax(z_i)[targets_i]
        entropies_i = -sum_j p_ij log p_ij                    p_i = softmax(z_i), over the full vocabulary

    Both results are differentiable in hidden, weight and bias. Arithmetic is fp32 (fp64 if an input is fp64)
    whatever the inputs' dtypes, and under autocast too; gradients come back in the inputs' dtypes, and the
    weight's is summed in fp32 over all chunks before it is rounded. The backward pass recomputes the logits,
    but only of tokens with a gradient other than 0: masked, clipped and zero-advantage tokens cost nothing
    there. A weight that needs no gradient costs none; a weight in another dtype is copied to fp32 once per
    pass. m = 0 gives empty results. Logits of -inf (from the bias) have probability 0.

    Args:
        hidden: [m d] last hidden states, at the positions that predict the targets.
        weight: [v d] output matrix (`lm_head.weight`).
        targets: [m] token ids in 0 .. v - 1.
        temperature: of the softmax; the one that sampled the targets.
        bias: [v] output bias, added before the temperature divides.
        chunk_tokens: tokens whose logits exist at a time; None for as many as fill CHUNK_BYTES.
        weight_grad: [v d] to which the backward pass adds the weight's gradient; autograd then sees none. For a large
            vocabulary this saves filling, adding and freeing a second [v d].

    Returns:
        logprobs [m] and entropies [m], in nats.

    Raises:
        ValueError: on a temperature that is not positive, a chunk below 1, a target outside the vocabulary, or a
            weight_grad in another dtype than the arithmetic's.

    Example:
        >>> hidden, weight = torch.zeros(2, 3), torch.zeros(4, 3)
        >>> token_logprobs(hidden, weight, torch.tensor([0, 3]))
        (tensor([-1.3863, -1.3863]), tensor([1.3863, 1.3863]))
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature is {temperature} but must be above 0; greedy decoding (0) leaves no log-probabilities "
            "to train on"
        )
    vocabulary = weight.shape[0]
    if chunk_tokens is None:
        chunk_tokens = max(1, CHUNK_BYTES // (vocabulary * _arithmetic(hidden, weight).itemsize))
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens is {chunk_tokens} but must be at least 1; None chooses by memory")
    if targets.numel() and not (0 <= int(targets.min()) and int(targets.max()) < vocabulary):
        raise ValueError(
            f"targets run from {int(targets.min())} to {int(targets.max())} but the vocabulary has {vocabulary} "
            "tokens; leave padding (such as -100) out before the call"
        )
    if weight_grad is not None and weight_grad.dtype != _arithmetic(hidden, weight):
        raise ValueError(
            f"weight_grad is {weight_grad.dtype} but the gradient is summed in {_arithmetic(hidden, weight)}: give a "
            "buffer of that dtype, or None"
        )
    return _TokenLogprobs.apply(hidden, weight, bias, targets.long(), temperature, chunk_tokens, weight_grad)


def token_entropy(logits: Float[Tensor, "*batch v"], temperature: float = 1.0) -> Float[Tensor, "*batch"]:
    """Exact entropy of softmax(logits / temperature), in nats.

        H = -sum_j p_j log p_j

    Arithmetic is fp32 (fp64 for fp64 logits). Logits of -inf have probability 0 and add nothing.

    Args:
        logits: [... v], unscaled.
        temperature: of the softmax.

    Returns:
        [...] nats, between 0 and log v.

    Raises:
        ValueError: on a temperature that is not positive.

    Example:
        >>> token_entropy(torch.tensor([[0.0, 0.0], [0.0, -torch.inf]]))
        tensor([0.6931, 0.0000])
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature} but must be above 0; a greedy policy has entropy 0")
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    log_probs = torch.log_softmax(logits.to(dtype) / temperature, dim=-1).clamp(min=_LOG_ZERO)
    return -(log_probs.exp() * log_probs).sum(-1) + 0.0  # no -0.0


class _TokenLogprobs(torch.autograd.Function):
    """The two results of `token_logprobs` with a backward pass that recomputes its logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_tokens: int,
        weight_grad: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            head = _Head(weight, bias, temperature, _arithmetic(hidden, weight))
            logits, log_probs = head.buffers(min(chunk_tokens, len(hidden)))
            logprobs = torch.empty(len(hidden), dtype=head.dtype, device=hidden.device)
            entropies = torch.empty_like(logprobs)
            for start in range(0, len(hidden), chunk_tokens):
                chunk = slice(start, start + chunk_tokens)
                h = head.scaled(hidden[chunk])
                z, logs = logits[: len(h)], log_probs[: len(h)]
                torch.log_softmax(head.logits(h, out=z), -1, out=logs)
                logprobs[chunk] = logs.gather(1, targets[chunk, None])[:, 0]
                probs = torch.exp(head.floored(logs), out=z)
                entropies[chunk] = torch.linalg.vecdot(probs, logs).neg_()
        ctx.save_for_backward(hidden, weight, bias, targets, entropies)
        ctx.temperature, ctx.chunk_tokens, ctx.weight_grad = temperature, chunk_tokens, weight_grad
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] (torch types the decorator's ctx positional)
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_logprobs, grad_entropies = grads
        if grad_entropies is not None and not bool(grad_entropies.any()):
            grad_entropies = None
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(entropies)
        with torch.autocast(hidden.device.type, enabled=False):
            head = _Head(weight, bias, ctx.temperature, entropies.dtype)
            grad_hidden = torch.zeros_like(hidden) if needs_hidden else None
            grad_weight = ctx.weight_grad if needs_weight else None
            if needs_weight and grad_weight is None:
                grad_weight = torch.zeros_like(weight, dtype=head.dtype)
            grad_bias = torch.zeros(len(weight), dtype=head.dtype, device=hidden.device) if needs_bias else None
            learning = grad_logprobs != 0 if grad_entropies is None else (grad_logprobs != 0) | (grad_entropies != 0)
            tokens = learning.nonzero()[:, 0]
            buffers = head.buffers(min(ctx.chunk_tokens, len(tokens)))
            for chunk in tokens.split(ctx.chunk_tokens):
                h = head.scaled(hidden[chunk])
                z, other = (buffer[: len(h)] for buffer in buffers)
                head.logits(h, out=z)
                minus_grad = -grad_logprobs[chunk, None]
                # dz = g_lp (1[target] - p) - g_H p (log p + H), here d times scale: a factor per row is cheaper on h
                # than on [tokens v].
                if grad_entropies is None:
                    d, scale = torch.softmax(z, -1, out=other), minus_grad
                    d.scatter_add_(1, targets[chunk, None], torch.full_like(scale, -1.0))
                else:
                    g, entropy = grad_entropies[chunk, None], entropies[chunk, None]
                    logs = head.floored(torch.log_softmax(z, -1, out=other))
                    probs = torch.exp(logs, out=z)
                    d = torch.addcmul(g * entropy - minus_grad, logs, g, out=logs).mul_(probs)
                    d.scatter_add_(1, targets[chunk, None], minus_grad)
                    scale = torch.full_like(minus_grad, -1.0)
                if grad_hidden is not None:
                    grad_hidden[chunk] = ((d @ head.weight) * (scale / ctx.temperature)).to(hidden.dtype)
                if grad_weight is not None:
                    grad_weight.addmm_(d.t(), h * scale)
                if grad_bias is not None:
                    grad_bias.addmv_(d.t(), scale[:, 0] / ctx.temperature)
        return (
            grad_hidden,
            None if grad_weight is None or grad_weight is ctx.weight_grad else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
        )


class _Head:
    """The output layer in the arithmetic's dtype, with the temperature folded into its small operands."""

    def __init__(self, weight: Tensor, bias: Tensor | None, temperature: float, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.weight = weight.to(dtype)
        self.temperature = temperature
        self.bias = None if bias is None else bias.to(dtype) / temperature

    def buffers(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Two [tokens v] buffers that every chunk reuses: fresh pages a chunk cost as much as the exp."""
        shape = (tokens, len(self.weight))
        return self.weight.new_empty(shape), self.weight.new_empty(shape)

    def scaled(self, hidden: Tensor) -> Tensor:
        return hidden.to(self.dtype) / self.temperature

    def logits(self, h: Tensor, *, out: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(h, self.weight.t(), out=out)
        return torch.addmm(self.bias, h, self.weight.t(), out=out)

    def floored(self, logs: Tensor) -> Tensor:
        """Only a bias can make a logit -inf, so only then is a pass over the chunk spent on it."""
        return logs if self.bias is None else logs.clamp_(min=_LOG_ZERO)


def _arithmetic(hidden: Tensor, weight: Tensor) -> torch.dtype:
    return torch.float64 if torch.float64 in (hidden.dtype, weight.dtype) else torch.float32
