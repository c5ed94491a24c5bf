"""A copy of a Llama-shaped policy's weights, fused for decoding; LoRA deltas are merged into the copy."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


class Linear:
    """x -> x W' + b with weights laid out once for the processor's matrix unit.

    oneDNN reorders a plain weight in every product; packed ahead, 64 rows are 1.1 to 1.3 times faster in bfloat16
    and up to twice in float32, and a batch that shrinks keeps its speed per row.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.weight = weight.to(dtype, copy=True)
        self.bias = None if bias is None else bias.to(dtype)
        self._outputs = weight.shape[0]
        self.packed = weight.device.type == "cpu" and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, None)

    def __call__(self, x: Tensor, minus: float = 0.0) -> Tensor:
        """The product, less a constant that is subtracted before the result is rounded."""
        bias = self.bias
        if minus:
            bias = x.new_full((self._outputs,), -minus) if bias is None else bias - minus
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, bias, "none", [], "")
        return F.linear(x, self.weight, bias)


class GatedLinear:
    """x -> silu(gate x) * (up x); packed, both factors are applied while the products are still in registers."""

    def __init__(self, gate: Linear, up: Linear) -> None:
        self._gate, self._up = gate, up

    def __call__(self, x: Tensor) -> Tensor:
        """The gated product."""
        gate, up = self._gate, self._up
        if gate.packed and up.packed:
            ops = torch.ops.mkldnn
            gated = ops._linear_pointwise(x, gate.weight, gate.bias, "swish", [], "")
            return ops._linear_pointwise.binary(x, gated, up.weight, up.bias, "mul")
        return F.silu(gate(x)) * up(x)


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    Norm weights and the attention scale are not folded into the matrices: most checkpoints hold bfloat16 numbers,
    which bfloat16 products then use without rounding them a second time, as training does.

    Attributes:
        norm: [d] in front of attention.
        qkv: d -> (q + k + v heads) * head_dim; q and k interleaved so that a rotary pair is adjacent.
        qk_norm: [q + k heads, head_dim] of Qwen3's norms, or None.
        out: q heads * head_dim -> d.
        mlp_norm: [d] in front of the MLP.
        gated: d -> intermediate.
        down: intermediate -> d.
    """

    norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gated: GatedLinear
    down: Linear


@dataclass(frozen=True)
class Weights:
    """All that decoding needs.

    Attributes:
        embed: [v, d] float32; the policy's own tensor where it already is that.
        layers: in order.
        norm: [d] of the last norm.
        head: d -> v.
        inv_freq: [head_dim / 2] rotary frequencies; rope_scale multiplies cos and sin.
        eps: of every RMSNorm.
    """

    embed: Tensor
    layers: list[Layer]
    norm: Tensor
    head: Linear
    inv_freq: Tensor
    rope_scale: float
    eps: float
    query_heads: int
    key_heads: int
    head_dim: int


def base_model(model: Any) -> Any:
    """The transformers model inside a peft wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def why_not_fused(model: Any) -> str | None:
    """The reason why the fused decoder cannot run this model, or None if it can."""
    base = base_model(model)
    name = type(base).__name__
    if name not in _CLASSES:
        return f"{name} is none of {', '.join(_CLASSES)}"
    config = base.config
    if config.hidden_act != "silu":
        return f"hidden_act is {config.hidden_act!r}, not 'silu'"
    if base.model.rotary_emb.rope_type not in _STATIC_ROPE:
        return f"rope type {base.model.rotary_emb.rope_type!r} depends on the length"
    layer_types: list[str] = getattr(config, "layer_types", None) or []
    if any(kind != "full_attention" for kind in layer_types):
        return "some layers attend to a sliding window"
    if name == "MistralForCausalLM" and config.sliding_window is not None:
        return f"every layer attends to a sliding window of {config.sliding_window}"
    if 2 * base.model.rotary_emb.inv_freq.numel() != base.model.layers[0].self_attn.head_dim:
        return "rotary positions cover a part of the head only"
    for path, module in base.named_modules():
        if any(getattr(module, "use_dora", {}).values()) or any(getattr(module, "lora_bias", {}).values()):
            return f"{path} has an adapter with more than a weight delta (DoRA or a bias)"
    return None


def _merged(module: Any) -> Tensor:
    """A linear or embedding weight in float32, with the deltas of its active LoRA adapters."""
    if hasattr(module, "modules_to_save"):
        module = (
            module.modules_to_save[module.active_adapters[0]] if not module.disable_adapters else module.original_module
        )
    if not hasattr(module, "base_layer"):
        return module.weight.detach().float()
    weight: Tensor = module.base_layer.weight.detach().float()
    if module.disable_adapters or module.merged:
        return weight
    adapters = {**module.lora_A, **getattr(module, "lora_embedding_A", {})}
    for name in module.active_adapters:
        if name in adapters:
            weight = weight + module.get_delta_weight(name).detach().float()
    return weight


def _bias(*modules: Any) -> Tensor | None:
    biases = [getattr(getattr(module, "base_layer", module), "bias", None) for module in modules]
    present = [bias.detach().float() for bias in biases if bias is not None]
    return torch.cat(present) if present else None


def _interleave(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder each head's rows from halves (i, i + D/2) to pairs (2i, 2i + 1). Dot products do not notice."""
    shape = rows.shape
    return rows.reshape(-1, 2, head_dim // 2, *shape[1:]).transpose(1, 2).reshape(shape)


@torch.no_grad()
def fuse(model: Any, dtype: torch.dtype) -> Weights:
    """Copy a policy's weights into the fused layout.

    Args:
        model: a model for which `why_not_fused` is None.
        dtype: of the matrices; embedding and norms stay float32.
    """
    base = base_model(model)
    body = base.model
    head_dim: int = body.layers[0].self_attn.head_dim
    query_heads: int = base.config.num_attention_heads
    key_heads: int = base.config.num_key_value_heads
    turned = (query_heads + key_heads) * head_dim

    def linear(module: Any) -> Linear:
        return Linear(_merged(module), _bias(module), dtype)

    def pair_up(rows: Tensor) -> Tensor:
        return torch.cat((_interleave(rows[:turned], head_dim), rows[turned:]))

    def layer(block: Any) -> Layer:
        attn, mlp = block.self_attn, block.mlp
        projections = (attn.q_proj, attn.k_proj, attn.v_proj)
        bias = _bias(*projections)
        qk_norm = None
        if hasattr(attn, "q_norm"):
            q_norm, k_norm = (_interleave(_norm(m), head_dim) for m in (attn.q_norm, attn.k_norm))
            qk_norm = torch.cat((q_norm.expand(query_heads, -1), k_norm.expand(key_heads, -1)))
        return Layer(
            norm=_norm(block.input_layernorm),
            qkv=Linear(
                pair_up(torch.cat([_merged(m) for m in projections])), None if bias is None else pair_up(bias), dtype
            ),
            qk_norm=qk_norm,
            out=linear(attn.o_proj),
            mlp_norm=_norm(block.post_attention_layernorm),
            gated=GatedLinear(linear(mlp.gate_proj), linear(mlp.up_proj)),
            down=linear(mlp.down_proj),
        )

    return Weights(
        embed=_merged(body.embed_tokens),
        layers=[layer(block) for block in body.layers],
        norm=_norm(body.norm),
        head=linear(base.lm_head),
        inv_freq=body.rotary_emb.inv_freq.detach().float(),
        rope_scale=float(body.rotary_emb.attention_scaling),
        eps=float(base.config.rms_norm_eps),
        query_heads=query_heads,
        key_heads=key_heads,
        head_dim=head_dim,
    )


def _norm(module: Any) -> Tensor:
    return module.weight.detach().float().clone()
