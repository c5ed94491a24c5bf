"""Linear and embedding layers for the update phase: gradients go straight into `.grad`, bfloat16 copies are kept.

Left to autograd, every weight's gradient is first a tensor of its own and then added to `.grad`, and under autocast
every forward pass casts every weight again. For a step on a hundred tokens of a 135M model these passes over memory
cost more than the products. Here

    y = x W'                 with W's copy in the dtype of the products, renewed only when W has changed
    W.grad += g' x           where it lies; for an embedding only the rows that were looked up

and autograd is told that W has no gradient. The numbers are those of autocast.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qae.policies.policy import Policy


@contextmanager
def direct_gradients(policy: Policy) -> Generator[None]:
    """Let the model's linear and embedding layers add their gradients to `.grad` while the context lasts.

    Only weights that are trained, in fp32, and whose `.grad` is already a tensor are touched. Their copies in
    `policy.compute_dtype` are made on first use and again whenever the weight has changed.
    """
    replaced: list[nn.Module] = []
    for module in policy.model.modules():
        forward = _forward(module, policy.compute_dtype)
        if forward is not None:
            vars(module)["forward"] = forward
            replaced.append(module)
    try:
        yield
    finally:
        for module in replaced:
            del vars(module)["forward"]


def _forward(module: Any, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
    """What takes the place of a layer's `forward`; None for what is left to autograd."""
    if type(module) not in (nn.Linear, nn.Embedding) or "forward" in vars(module):
        return None
    weight = module.weight
    if not weight.requires_grad or weight.grad is None or weight.dtype != torch.float32:
        return None
    if isinstance(module, nn.Linear):
        return partial(_linear, module, _Copy(weight, dtype))
    unusual = module.max_norm is not None or module.sparse or module.scale_grad_by_freq
    return None if unusual else partial(_embedding, module)


class _Copy:
    """A weight in another dtype, renewed when the weight has been written to."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        self._weight, self._version = weight, -1
        self._copy = weight if weight.dtype == dtype else torch.empty_like(weight, dtype=dtype, requires_grad=False)

    def __call__(self) -> Tensor:
        if self._copy is not self._weight and self._version != self._weight._version:
            self._version = self._weight._version
            self._copy.copy_(self._weight.detach())
        return self._copy.detach()


def _linear(module: Any, copy: Callable[[], Tensor], x: Tensor) -> Tensor:
    weight = copy()
    bias = None if module.bias is None else module.bias.to(weight.dtype)
    if not torch.is_grad_enabled():
        return F.linear(x.to(weight.dtype), weight, bias)
    product = _Product.apply(x, weight, module.weight)
    return product if bias is None else product + bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, copy: Tensor, weight: Tensor) -> Tensor:
        rows = x.to(copy.dtype)
        ctx.save_for_backward(rows, copy)
        ctx.weight, ctx.dtype = weight, x.dtype
        return F.linear(rows, copy)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        rows, copy = ctx.saved_tensors
        grad = grads[0].to(copy.dtype)
        flat = grad.flatten(0, -2).t(), rows.flatten(0, -2)
        if copy.dtype == ctx.weight.grad.dtype:
            ctx.weight.grad.addmm_(*flat)
        else:
            ctx.weight.grad.add_(flat[0] @ flat[1])
        return (grad @ copy).to(ctx.dtype) if ctx.needs_input_grad[0] else None, None, None


def _embedding(module: nn.Embedding, ids: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return F.embedding(ids, module.weight)
    return _Lookup.apply(ids, module.weight, module.padding_idx)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        ctx.ids, ctx.weight, ctx.padding = ids, weight, padding
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        ids, grad = ctx.ids.flatten(), grads[0].flatten(0, -2).to(ctx.weight.grad.dtype)
        if ctx.padding is not None:
            grad = grad.masked_fill((ids == ctx.padding)[:, None], 0.0)
        ctx.weight.grad.index_add_(0, ids, grad)
        return None, None, None
