"""Llama, Qwen2 and Qwen3 as one plain function over a preallocated key-value cache."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from qae.sampling.weights import Weights

# (layer, q [m q d], k [m h d], v [m h d]) -> [m q * d]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class KeyValues:
    """Keys and values [layers, rows, key heads, tokens, head_dim]."""

    k: Tensor
    v: Tensor


class Decoder:
    """Runs fused weights. The residual stream, norms and rotary positions are float32, products are `dtype`."""

    def __init__(self, weights: Weights, *, dtype: torch.dtype, context_tokens: int) -> None:
        self.weights = weights
        self.dtype = dtype
        self.device = weights.embed.device
        angles = torch.arange(context_tokens, device=self.device).float()[:, None] * weights.inv_freq
        # The attention scale 1 / sqrt(d), half of it in q and half in k.
        scale = weights.rope_scale * weights.head_dim**-0.25
        self._rotation = torch.polar(torch.full_like(angles, scale), angles)

    def allocate(self, rows: int, tokens: int) -> KeyValues:
        """Room for the keys and values of `rows` x `tokens`, not initialised."""
        w = self.weights
        shape = (len(w.layers), rows, w.key_heads, tokens, w.head_dim)
        # Zeros, because what was never written is multiplied by a probability of 0 and must not be NaN.
        return KeyValues(*(torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2)))

    def prefill(
        self, tokens: Int64[Tensor, "q s"], prefix: KeyValues | None
    ) -> tuple[Float[Tensor, "q s d"], KeyValues]:
        """Hidden states, keys and values of prompts padded on the right, all behind the same prefix.

        Args:
            tokens: [q s] ids; what stands in the padding has no effect on what precedes it.
            prefix: keys and values of one row, or None.
        """
        w = self.weights
        q, s = tokens.shape
        start = 0 if prefix is None else prefix.k.shape[3]
        made = self.allocate(q, s)
        causal = torch.ones(s, start + s, dtype=torch.bool, device=self.device).tril(start)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            queries, keys, values = (x.unflatten(0, (q, s)).transpose(1, 2) for x in (queries, keys, values))
            made.k[layer], made.v[layer] = keys, values
            if prefix is not None:
                keys = torch.cat((prefix.k[layer].expand(q, -1, -1, -1), keys), dim=2)
                values = torch.cat((prefix.v[layer].expand(q, -1, -1, -1), values), dim=2)
            mixed = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=causal, scale=1.0, enable_gqa=w.query_heads != w.key_heads
            )
            return mixed.transpose(1, 2).reshape(q * s, -1)

        rotation = self._rotation[start : start + s].repeat(q, 1)
        return self._run(tokens.reshape(-1), rotation, attend).unflatten(0, (q, s)), made

    def step(
        self,
        tokens: Int64[Tensor, " n"],
        lengths: list[int],
        cache: KeyValues,
        prefix: KeyValues | None,
    ) -> Float[Tensor, "n d"]:
        """Hidden states of one more token for each of the first n rows of the cache.

        Args:
            tokens: [n] ids.
            lengths: tokens that each row holds in `cache`; the new one is written behind them.
            cache: rows' own keys and values.
            prefix: keys and values that all rows share, one row, or None.
        """
        w = self.weights
        n = len(tokens)
        group = w.query_heads // w.key_heads
        start = 0 if prefix is None else prefix.k.shape[3]
        end = max(lengths) + 1
        places = torch.tensor(lengths, device=self.device)
        room = cache.k.shape[3]
        heads = torch.arange(n * w.key_heads, device=self.device).view(n, -1)
        written = (heads * room + places[:, None]).flatten()
        mask = None
        if min(lengths) + 1 < end:
            mask = torch.zeros(n, 1, 1, start + end, dtype=self.dtype, device=self.device)
            beyond = torch.arange(end, device=self.device) > places[:, None]
            mask[..., start:].masked_fill_(beyond[:, None, None], -torch.inf)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            cache.k[layer].view(-1, w.head_dim).index_copy_(0, written, keys.reshape(-1, w.head_dim))
            cache.v[layer].view(-1, w.head_dim).index_copy_(0, written, values.reshape(-1, w.head_dim))
            queries = queries.unflatten(1, (w.key_heads, group))
            # Keys stand on the left, where they are read as they lie; on the right each would be repacked.
            scores = (cache.k[layer][:n, :, :end] @ queries.transpose(-1, -2)).transpose(-1, -2)
            if prefix is not None:
                # All rows' queries meet the shared keys in one product a head: nothing is copied per row.
                by_head = queries.transpose(0, 1).reshape(w.key_heads, n * group, -1)
                shared = (by_head @ prefix.k[layer][0].transpose(-1, -2)).unflatten(1, (n, group))
                scores = torch.cat((shared.transpose(0, 1), scores), dim=-1)
            probs = (scores if mask is None else scores + mask).softmax(-1)
            mixed = probs[..., start:] @ cache.v[layer][:n, :, :end]
            if prefix is not None:
                by_head = probs[..., :start].transpose(0, 1).reshape(w.key_heads, n * group, -1)
                mixed += (by_head @ prefix.v[layer][0]).unflatten(1, (n, group)).transpose(0, 1)
            return mixed.reshape(n, -1)

        return self._run(tokens, self._rotation[start + places], attend)

    def logits(self, hidden: Float[Tensor, "n d"], centre: float = 0.0) -> Float[Tensor, "n v"]:
        """Float32 logits of hidden states, less `centre`, which no softmax notices.

        A product in bfloat16 rounds each logit to 8 bits: near 20 that moves log-probs by about 0.03. With the
        largest logits moved near 0 before they are rounded, it is 0.014, under the 0.03 of the layers before.
        """
        w = self.weights
        normed = F.rms_norm(hidden, hidden.shape[-1:], w.norm, w.eps).to(self.dtype)
        return w.head(normed, centre).float()

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
            qk = torch.view_as_complex(qk.unflatten(-1, (-1, 2))) * rotation
            qk = torch.view_as_real(qk).flatten(-2).to(self.dtype)
            mixed = attend(i, qk[:, : w.query_heads], qk[:, w.query_heads :], qkv[:, turned:])
            x += layer.out(mixed)
            h = F.rms_norm(x, width, layer.mlp_norm, w.eps).to(self.dtype)
            gate, up = layer.gate_up(h).chunk(2, dim=-1)
            x += layer.down(F.silu(gate) * up)
        return x
