"""Llama, Qwen2 and Qwen3 as one plain function over a preallocated key-value cache."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from qae.sampling.weights import Weights

# (layer, [m heads d] with the heads of q, k and v side by side) -> [m q * d]
Attend = Callable[[int, Tensor], Tensor]

# Keys and values [layers, 2, rows, key heads, tokens, head_dim].
Cache = Tensor


class Decoder:
    """Runs fused weights. The residual stream, norms and rotary positions are float32, products are `dtype`."""

    def __init__(self, weights: Weights, *, dtype: torch.dtype, context_tokens: int) -> None:
        self.weights = weights
        self._heads = (weights.query_heads, weights.key_heads, weights.key_heads)
        self.dtype = dtype
        self.device = weights.embed.device
        angles = torch.arange(context_tokens, device=self.device).float()[:, None] * weights.inv_freq
        # The attention scale 1 / sqrt(d), half of it in q and half in k.
        scale = weights.rope_scale * weights.head_dim**-0.25
        self._rotation = torch.polar(torch.full_like(angles, scale), angles)

    def allocate(self, rows: int, tokens: int) -> Cache:
        """Room for the keys and values of `rows` x `tokens`."""
        w = self.weights
        shape = (len(w.layers), 2, rows, w.key_heads, tokens, w.head_dim)
        # Zeros, because what was never written is multiplied by a probability of 0 and must not be NaN.
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def prefill(self, tokens: Int64[Tensor, "q s"], prefix: Cache | None) -> tuple[Float[Tensor, "q s d"], Cache]:
        """Hidden states, keys and values of prompts padded on the right, all behind the same prefix.

        Args:
            tokens: [q s] ids; what stands in the padding has no effect on what precedes it.
            prefix: keys and values of one row, or None.
        """
        q, s = tokens.shape
        start = 0 if prefix is None else prefix.shape[4]
        made = self.allocate(q, s)
        group = self.weights.query_heads // self.weights.key_heads
        causal = torch.ones(s, start + s, dtype=torch.bool, device=self.device).tril(start).repeat(group, 1)
        attend = partial(self._attend_prompts, made, prefix, causal)
        rotation = self._rotation[start : start + s].repeat(q, 1)
        return self._run(tokens.reshape(-1), rotation, attend).view(q, s, -1), made

    def _attend_prompts(self, made: Cache, prefix: Cache | None, causal: Tensor, layer: int, qkv: Tensor) -> Tensor:
        _, _, q, heads, s, width = made.shape
        queries, keys, values = qkv.view(q, s, -1, width).transpose(1, 2).split(self._heads, dim=1)
        made[layer, 0], made[layer, 1] = keys, values
        if prefix is not None:
            keys = torch.cat((prefix[layer, 0].expand(q, -1, -1, -1), keys), dim=2)
            values = torch.cat((prefix[layer, 1].expand(q, -1, -1, -1), values), dim=2)
        # The query heads of a group stand one behind the other, as if they were more tokens.
        queries = queries.reshape(q, heads, -1, width)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=causal, scale=1.0)
        return mixed.view(q, -1, s, width).transpose(1, 2).reshape(q * s, -1)

    def step(
        self,
        tokens: Int64[Tensor, " n"],
        lengths: list[int],
        places: Int64[Tensor, " n"],
        cache: Cache,
        prefix: Cache | None,
    ) -> Float[Tensor, "n d"]:
        """Hidden states of one more token for each of the first n rows of the cache.

        Args:
            tokens: [n] ids.
            lengths: tokens that each row holds in `cache`; the new one is written behind them.
            places: the same on the device, so that nothing is copied there for every token.
            cache: rows' own keys and values.
            prefix: keys and values that all rows share, one row, or None.
        """
        start = 0 if prefix is None else prefix.shape[4]
        end = max(lengths) + 1
        written = self._places(cache, places)
        mask = self._mask(places, start, end) if min(lengths) + 1 < end else None
        attend = partial(self._attend_rows, cache, prefix, written, mask, end)
        return self._run(tokens, self._rotation[start + places], attend)

    def _attend_rows(
        self,
        cache: Cache,
        prefix: Cache | None,
        written: Tensor,
        mask: Tensor | None,
        end: int,
        layer: int,
        qkv: Tensor,
    ) -> Tensor:
        """softmax([q K_prefix' | q K_row']) [V_prefix; V_row] of one new token a row, which enters its cache first."""
        n, _, width = qkv.shape
        query_heads, heads, _ = self._heads
        cache[layer].view(-1, width).index_copy_(0, written, qkv[:, query_heads:].reshape(-1, width))
        keys, values = cache[layer, :, :n, :, :end]
        queries = qkv[:, :query_heads].unflatten(1, (heads, -1))
        # Keys stand on the left, where they are read as they lie; on the right each would be repacked.
        scores = (keys @ queries.transpose(-1, -2)).transpose(-1, -2)
        if prefix is None:
            scores = scores.contiguous()  # a sum and a softmax of transposed scores take three times as long
            return ((scores if mask is None else scores.add_(mask)).softmax(-1) @ values).view(n, -1)
        # All rows' queries meet the shared keys in one product a head: nothing is copied per row.
        by_head = queries.transpose(0, 1).reshape(heads, -1, width)
        shared = (by_head @ prefix[layer, 0, 0].transpose(-1, -2)).unflatten(1, (n, -1)).transpose(0, 1)
        scores = torch.cat((shared, scores), dim=-1)
        probs = (scores if mask is None else scores.add_(mask)).softmax(-1)
        start = shared.shape[-1]
        by_head = probs[..., :start].transpose(0, 1).reshape(heads, -1, start)
        mixed = probs[..., start:] @ values
        mixed += (by_head @ prefix[layer, 1, 0]).unflatten(1, (n, -1)).transpose(0, 1)
        return mixed.view(n, -1)

    def _places(self, cache: Cache, places: Tensor) -> Tensor:
        """Where in a layer's cache, seen as one list of vectors, each row's new keys and values go."""
        _, _, slots, heads, room, _ = cache.shape
        rows = torch.arange(len(places), device=self.device)[:, None, None]
        both = torch.arange(2, device=self.device)[:, None]
        head = torch.arange(heads, device=self.device)
        return (((both * slots + rows) * heads + head) * room + places[:, None, None]).flatten()

    def _mask(self, places: Tensor, start: int, end: int) -> Tensor:
        """[n 1 1 start + end]: -inf behind each row's last token."""
        mask = torch.zeros(len(places), 1, 1, start + end, dtype=self.dtype, device=self.device)
        beyond = torch.arange(end, device=self.device) > places[:, None]
        mask[..., start:].masked_fill_(beyond[:, None, None], -torch.inf)
        return mask

    def logits(self, hidden: Float[Tensor, "n d"], centre: float = 0.0) -> Float[Tensor, "n v"]:
        """Logits of hidden states in the products' dtype, less `centre`, which no softmax notices.

        A product in bfloat16 rounds each logit to 8 bits: near 20 that moves log-probs by about 0.03. With the
        largest logits moved near 0 before they are rounded, it is 0.014, under the 0.03 of the layers before.
        """
        w = self.weights
        normed = F.rms_norm(hidden, hidden.shape[-1:], w.norm, w.eps).to(self.dtype)
        return w.head(normed, centre)

    def _run(self, tokens: Tensor, rotation: Tensor, attend: Attend) -> Tensor:
        w = self.weights
        m, turned = len(tokens), w.query_heads + w.key_heads
        rotation = rotation[:, None]
        x = w.embed[tokens]
        width = x.shape[-1:]
        for i, layer in enumerate(w.layers):
            h = F.rms_norm(x, width, layer.norm, w.eps).to(self.dtype)
            qkv = layer.qkv(h).view(m, -1, w.head_dim)
            qk = qkv[:, :turned].float()
            if layer.qk_norm is not None:
                qk = F.rms_norm(qk, qk.shape[-1:], eps=w.eps) * layer.qk_norm
            torch.view_as_complex(qk.unflatten(-1, (-1, 2))).mul_(rotation)
            if qk.dtype != qkv.dtype or layer.qk_norm is not None:
                qkv[:, :turned] = qk
            x += layer.out(attend(i, qkv))
            h = F.rms_norm(x, width, layer.mlp_norm, w.eps).to(self.dtype)
            x += layer.down(layer.gated(h))
        return x
