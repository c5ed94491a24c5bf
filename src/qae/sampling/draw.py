"""Logits -> token, its log-prob and the distribution's exact entropy, without sorting the vocabulary."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

BLOCK_TOKENS = 256
# exp() of anything below is 0 in float32; a finite floor keeps 0 * -inf out of the entropy.
_FLOOR = -1.0e4
# On a CPU the passes over a chunk of rows should hit its cache: 2^18 floats are 1 MB.
_CPU_CHUNK = 1 << 18


class Draw(NamedTuple):
    """One drawn token for each row.

    Attributes:
        tokens: [n] ids.
        logprobs: [n] float32 log-prob of that token in the full softmax.
        entropies: [n] float32 entropy of the full softmax in nats.
    """

    tokens: Int64[Tensor, " n"]
    logprobs: Float[Tensor, " n"]
    entropies: Float[Tensor, " n"]


def draw(
    logits: Float[Tensor, "n v"],
    uniforms: Float[Tensor, "n 2"],
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> Draw:
    """Draw a token of each row by inverting the cumulative distribution in two levels.

        p = softmax(logits / temperature)
        block = the first whose cumulative mass exceeds u_1,   token = the first within it that exceeds u_2

    A token of probability 0 is never returned. Temperature 0 takes the largest logit and reports log-prob and
    entropy at temperature 1. `top_p < 1` draws from the smallest set of most likely tokens with that mass (this one
    sorts); log-prob and entropy stay those of the full softmax.

    Args:
        logits: [n v], overwritten where that saves a copy.
        uniforms: [n 2] in [0, 1).
        temperature: of the softmax.
        top_p: mass of the nucleus.

    Returns:
        tokens, log-probs and entropies.

    Example:
        >>> logits = torch.tensor([[0.0, -float("inf"), 0.0]])
        >>> draw(logits, torch.tensor([[0.75, 0.0]])).tokens.tolist()
        [2]
    """
    n, v = logits.shape
    rows = max(1, _CPU_CHUNK // v) if logits.device.type == "cpu" else max(n, 1)
    if n <= rows:
        return _draw(logits, uniforms, temperature, top_p)
    parts = [
        _draw(chunk, u, temperature, top_p) for chunk, u in zip(logits.split(rows), uniforms.split(rows), strict=True)
    ]
    return Draw(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _draw(logits: Tensor, uniforms: Tensor, temperature: float, top_p: float) -> Draw:
    shifted = logits.float()
    if temperature not in (0.0, 1.0):
        shifted = shifted / temperature
    shifted = shifted.sub_(shifted.amax(-1, keepdim=True)).clamp_(min=_FLOOR)
    mass = shifted.exp()
    blocks = _block_mass(mass)
    total = blocks.sum(-1)
    # bmm, not (mass * shifted).sum: a dot product needs no [n v] temporary.
    mean = torch.bmm(mass[:, None], shifted[:, :, None])[:, 0, 0] / total
    if temperature == 0.0:
        tokens = shifted.argmax(-1)
    elif top_p < 1.0:
        nucleus = _nucleus(mass, top_p)
        tokens = _invert(nucleus, _block_mass(nucleus), uniforms)
    else:
        tokens = _invert(mass, blocks, uniforms)
    log_total = total.log()
    logprobs = shifted.gather(1, tokens[:, None])[:, 0] - log_total
    return Draw(tokens, logprobs, log_total - mean)


def _block_mass(mass: Tensor) -> Tensor:
    """[n v] -> [n b]: sums of blocks of BLOCK_TOKENS; the last one may be shorter."""
    v = mass.shape[1]
    if v <= BLOCK_TOKENS:
        return mass.sum(-1, keepdim=True)
    whole = v - v % BLOCK_TOKENS
    blocks = mass[:, :whole].unflatten(-1, (-1, BLOCK_TOKENS)).sum(-1)
    return blocks if whole == v else torch.cat((blocks, mass[:, whole:].sum(-1, keepdim=True)), dim=-1)


def _invert(mass: Tensor, blocks: Tensor, uniforms: Tensor) -> Tensor:
    v = mass.shape[1]
    if v <= BLOCK_TOKENS:
        return _first_above(mass, uniforms[:, :1])
    block = _first_above(blocks, uniforms[:, :1])[:, None]
    ids = block * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS, device=mass.device)
    within = mass.gather(1, ids.clamp(max=v - 1)).masked_fill_(ids >= v, 0.0)
    return block[:, 0] * BLOCK_TOKENS + _first_above(within, uniforms[:, 1:])


def _first_above(mass: Tensor, u: Tensor) -> Tensor:
    """Index of the first entry whose cumulative mass exceeds u times the total."""
    cumulative = mass.cumsum(-1)
    index = (cumulative <= u * cumulative[:, -1:]).sum(-1, keepdim=True).clamp_(max=mass.shape[1] - 1)
    if mass.device.type != "cpu":
        # A parallel scan may step down by a rounding error and so point at an entry without mass.
        index = torch.where(mass.gather(1, index) > 0, index, mass.argmax(-1, keepdim=True))
    return index[:, 0]


def _nucleus(mass: Tensor, top_p: float) -> Tensor:
    """`mass` with 0 outside the smallest set of largest entries that holds `top_p` of it."""
    ordered, ids = mass.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p * ordered.sum(-1, keepdim=True), ordered, 0.0)
    return torch.zeros_like(mass).scatter_(1, ids, kept)
