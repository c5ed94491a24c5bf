"""From prompts and completions to one forward pass in which no token is computed twice.

Siblings share their prompt, and all prompts of a micro-batch may share a prefix (few-shot examples, a system prompt).
`pack_shared` lays them out as one sequence

    [common prefix][rest of prompt 1][rest of prompt 2]...[completion 1][completion 2]...

in which a completion attends to its own prompt's pieces and to itself; positions restart after each piece's parent.
The linear layers then see every distinct token once, without padding. `pack_padded` is the plain computation, one
padded row a completion, for models whose attention cannot be addressed this way. Both give the same log-probs.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from qae.logprobs import token_logprobs
from qae.policies.policy import Policy
from qae.sampling.batch import common_prefix
from qae.trainer.keys import ConfigError

ATTENTION = "qae_shared_prompt"


@dataclass(frozen=True)
class Segment:
    """Pieces of one kind as a padded batch over the packed sequence.

    Attributes:
        query_index: [b * s] packed positions of the queries, padded with 0.
        key_index: [b * k] packed positions of the keys, ancestors first, padded with 0.
        mask: [b, 1, s, k] True where a query sees a key.
        valid: positions in [b * s] that are real, in packed order.
        shape: (b, s, k).
    """

    query_index: Int[Tensor, " queries"]
    key_index: Int[Tensor, " keys"]
    mask: Bool[Tensor, "b 1 s k"]
    valid: Int[Tensor, " real"]
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class Packed:
    """Inputs of one forward pass, and where each completion token is predicted.

    Attributes:
        input_ids: [b, l].
        position_ids: [b, l].
        attention_mask: [b, l], for the padded computation only.
        segments: of the shared computation; empty for the padded one.
        source: [m] for each completion token, row by row, the position in [b * l] that predicts it.
        targets: [m] those tokens.
    """

    input_ids: Int[Tensor, "b l"]
    position_ids: Int[Tensor, "b l"]
    attention_mask: Int[Tensor, "b l"] | None
    segments: tuple[Segment, ...]
    source: Int[Tensor, " m"]
    targets: Int[Tensor, " m"]


def pack_shared(
    prompts: Sequence[Sequence[int]],
    row_prompt: Sequence[int],
    completions: Sequence[Sequence[int]],
    device: torch.device,
) -> Packed:
    """One sequence that holds each distinct prompt token once.

    Args:
        prompts: token ids of the distinct prompts; those that no row uses are left out.
        row_prompt: for each row, the index of its prompt.
        completions: for each row, its token ids, at least one.
        device: where the tensors go.
    """
    used = sorted(set(row_prompt))
    prefix = common_prefix([list(prompts[p]) for p in used]) if len(used) > 1 else 0
    rests = [prompts[p][prefix:] for p in used]
    # A completion's last token predicts nothing, so it is a target but no input.
    bodies = [completion[:-1] for completion in completions]
    rest_of = {p: i for i, p in enumerate(used)}
    parents = [rest_of[p] for p in row_prompt]

    rest_starts = _starts(rests, prefix)
    body_starts = _starts(bodies, rest_starts[-1])
    ids = [*prompts[used[0]][:prefix], *(t for piece in (*rests, *bodies) for t in piece)]
    positions = list(range(prefix))
    for rest in rests:
        positions += range(prefix, prefix + len(rest))
    for parent, body in zip(parents, bodies, strict=True):
        first = prefix + len(rests[parent])
        positions += range(first, first + len(body))

    prefix_span = range(prefix)
    rest_spans = [range(a, b) for a, b in pairwise(rest_starts)]
    body_spans = [range(a, b) for a, b in pairwise(body_starts)]
    segments = [_segment([prefix_span], [[]], device)] if prefix else []
    segments.append(_segment(rest_spans, [[prefix_span]] * len(rests), device))
    if any(bodies):
        ancestors = [[prefix_span, rest_spans[parent]] for parent in parents]
        segments.append(_segment(body_spans, ancestors, device))
    source = [
        position
        for parent, span in zip(parents, body_spans, strict=True)
        for position in (rest_starts[parent + 1] - 1, *span)
    ]
    return Packed(
        input_ids=_send(torch.tensor([ids]), device),
        position_ids=_send(torch.tensor([positions]), device),
        attention_mask=None,
        segments=tuple(segments),
        source=_send(torch.tensor(source), device),
        targets=_send(torch.tensor([t for c in completions for t in c]), device),
    )


def pack_padded(
    prompts: Sequence[Sequence[int]],
    row_prompt: Sequence[int],
    completions: Sequence[Sequence[int]],
    device: torch.device,
) -> Packed:
    """One row a completion, padded on the right: the plain computation. Arguments as in `pack_shared`."""
    rows = [[*prompts[p], *c[:-1]] for p, c in zip(row_prompt, completions, strict=True)]
    longest = max(map(len, rows))
    source = [
        i * longest + len(prompts[p]) - 1 + j
        for i, (p, c) in enumerate(zip(row_prompt, completions, strict=True))
        for j in range(len(c))
    ]
    return Packed(
        input_ids=_send(torch.tensor([row + [0] * (longest - len(row)) for row in rows]), device),
        position_ids=torch.arange(longest, device=device).expand(len(rows), -1),
        attention_mask=_send(torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in rows]), device),
        segments=(),
        source=_send(torch.tensor(source), device),
        targets=_send(torch.tensor([t for c in completions for t in c]), device),
    )


def packed_logprobs(
    policy: Policy, packed: Packed, temperature: float, *, weight_grad: Float[Tensor, "v d"] | None = None
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """Log-probs and exact entropies (nats) of the completion tokens, row by row, differentiable, in fp32.

    The output matrix's gradient is added to `weight_grad` if it is given. For a shared packing the call, and the
    backward pass too if activations are recomputed there, must be inside `shared_attention(policy.model)`.
    """
    bf16 = policy.compute_dtype == torch.bfloat16
    with torch.autocast(policy.device.type, torch.bfloat16, enabled=bf16):
        hidden = hidden_states(policy.model, packed)
    head: Any = policy.model.get_output_embeddings()
    hidden = hidden.flatten(0, 1).index_select(0, packed.source)
    return token_logprobs(
        hidden, head.weight, packed.targets, temperature=temperature, bias=head.bias, weight_grad=weight_grad
    )


def hidden_states(model: PreTrainedModel, packed: Packed) -> Float[Tensor, "b l d"]:
    """The last hidden states of a packing."""
    decoder: Any = model.get_decoder()
    attention_mask, more = packed.attention_mask, {}
    if packed.segments:
        # A 4-D mask is passed on as it is; our attention does not read it, so no [l l] mask is ever made.
        attention_mask = torch.empty(1, 1, 1, 1, device=packed.input_ids.device)
        more = {"qae_segments": packed.segments}
    return decoder(
        input_ids=packed.input_ids,
        position_ids=packed.position_ids,
        attention_mask=attention_mask,
        use_cache=False,
        **more,
    ).last_hidden_state


@contextmanager
def shared_attention(model: PreTrainedModel) -> Generator[None]:
    """Route the model's attention through the segments of a shared packing."""
    # The public setter may rebuild the model's attention; the routing is read from this name at every call.
    before = getattr(model.config, "_attn_implementation")  # noqa: B009
    setattr(model.config, "_attn_implementation", ATTENTION)  # noqa: B010
    try:
        yield
    finally:
        setattr(model.config, "_attn_implementation", before)  # noqa: B010


def packing_fault(policy: Policy) -> str | None:
    """Why prompts cannot be shared between completions for this model, or None if that was seen to be exact.

    Known obstacles are named; whatever is left is decided by computing a few log-probs in both ways.

    Raises:
        ConfigError: the log-probs differ from the model's own even in the plain computation: its output head does more
            than one linear map, which this trainer does not support.
    """
    prompts, parents, completions = _sample_tree(policy)
    own = _own_logprobs(policy, prompts, parents, completions)
    exact = replace(policy, compute_dtype=torch.float32)
    with torch.no_grad():
        plain = packed_logprobs(exact, pack_padded(prompts, parents, completions, policy.device), 1.0)[0]
        if not torch.allclose(plain, own, atol=1e-3):
            raise ConfigError(
                f"{policy.name} computes logits in a way that the trainer does not know (largest log-prob difference "
                f"{float((plain - own).abs().max()):.3g} nats): models whose head is one linear map are supported"
            )
        reason = _known_obstacle(policy.model)
        if reason:
            return reason
        with shared_attention(policy.model):
            shared = packed_logprobs(exact, pack_shared(prompts, parents, completions, policy.device), 1.0)[0]
    gap = float((shared - own).abs().max())
    return None if gap < 1e-3 else f"log-probs differ by {gap:.3g} nats from the plain computation"


def _known_obstacle(model: PreTrainedModel) -> str | None:
    """What a short probe might not show: attention or positions that change beyond some length."""
    if not getattr(model, "_supports_attention_backend", False):
        return f"the attention of {type(model).__name__} cannot be replaced"
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"the model has layers of kind {', '.join(sorted(kinds - {'full_attention'}))}"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return f"the model's attention sees a window of {config.sliding_window} tokens"
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") in ("dynamic", "longrope"):
        return f"{rope['rope_type']} rotary positions depend on the length of the sequence"
    return None


def _sample_tree(policy: Policy) -> tuple[list[list[int]], list[int], list[list[int]]]:
    """Two prompts with a common prefix and four completions, of tokens that the model has."""
    size = policy.model.config.get_text_config().vocab_size
    token = [(7 * i + 3) % size for i in range(24)]
    prompts = [token[:4] + token[4:7], token[:4] + token[7:9]]
    return prompts, [0, 0, 1, 1], [token[9:12], token[12:17], token[17:18], token[18:24]]


@torch.no_grad()
def _own_logprobs(
    policy: Policy, prompts: list[list[int]], parents: list[int], completions: list[list[int]]
) -> Float[Tensor, " m"]:
    """Log-probs by the model's own forward pass, one row at a time."""
    found: list[Tensor] = []
    for parent, completion in zip(parents, completions, strict=True):
        row = torch.tensor([[*prompts[parent], *completion]], device=policy.device)
        model: Any = policy.model
        logprobs = model(input_ids=row).logits[0].float().log_softmax(-1)
        first = len(prompts[parent])
        found.append(logprobs[first - 1 : -1].gather(1, row[0, first:, None])[:, 0])
    return torch.cat(found)


def _segment_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a shared packing: query [1 h l d], key and value [1 g l d] -> [1 l h d]."""
    segments: tuple[Segment, ...] = kwargs["qae_segments"]
    on_cpu, dtype = query.device.type == "cpu", query.dtype
    # In bfloat16 the processor's backward pass of this kernel takes three to six times as long as in fp32.
    queries, keys, values = (x[0].transpose(0, 1).to(torch.float32 if on_cpu else dtype) for x in (query, key, value))
    outputs: list[Tensor] = []
    with torch.autocast("cpu", enabled=False) if on_cpu else nullcontext():
        for segment in segments:
            b, s, k = segment.shape
            out = F.scaled_dot_product_attention(
                queries.index_select(0, segment.query_index).view(b, s, *queries.shape[1:]).transpose(1, 2),
                keys.index_select(0, segment.key_index).view(b, k, *keys.shape[1:]).transpose(1, 2),
                values.index_select(0, segment.key_index).view(b, k, *values.shape[1:]).transpose(1, 2),
                attn_mask=segment.mask,
                scale=kwargs.get("scaling"),
                enable_gqa=queries.shape[1] != keys.shape[1],
            )
            outputs.append(out.transpose(1, 2).flatten(0, 1).index_select(0, segment.valid))
    return torch.cat(outputs)[None].to(dtype), None


AttentionInterface.register(ATTENTION, _segment_attention)


def _starts(pieces: Sequence[Sequence[int]], first: int) -> list[int]:
    starts = [first]
    for piece in pieces:
        starts.append(starts[-1] + len(piece))
    return starts


def _segment(spans: Sequence[range], ancestors: Sequence[Sequence[range]], device: torch.device) -> Segment:
    """Each span attends to all of its ancestors and, causally, to itself."""
    b, s = len(spans), max(map(len, spans))
    reach = [sum(map(len, above)) for above in ancestors]
    above = max(reach)
    query_index = torch.zeros(b, s, dtype=torch.int64)
    key_index = torch.zeros(b, above + s, dtype=torch.int64)
    for i, span in enumerate(spans):
        query_index[i, : len(span)] = torch.arange(span.start, span.stop)
        seen = [torch.arange(r.start, r.stop) for r in ancestors[i]]
        if seen:
            key_index[i, : reach[i]] = torch.cat(seen)
    key_index[:, above:] = query_index
    lengths = torch.tensor([len(span) for span in spans])
    real = torch.arange(s) < lengths[:, None]
    sees_above = (torch.arange(above) < torch.tensor(reach)[:, None])[:, None].expand(b, s, above)
    sees_own = torch.ones(s, s, dtype=torch.bool).tril().expand(b, s, s)
    # Padding queries keep their first own key, so that their softmax, which is thrown away, is not 0/0.
    mask = torch.cat([sees_above, sees_own], dim=2)[:, None]
    return Segment(
        _send(query_index.flatten(), device),
        _send(key_index.flatten(), device),
        _send(mask, device),
        _send(real.flatten().nonzero()[:, 0], device),
        (b, s, above + s),
    )


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device, on CUDA from pinned memory, so that nothing waits for the copy."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
