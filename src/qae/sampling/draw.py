"""Logits -> token, its log-prob and the distribution's exact entropy, without sorting the vocabulary."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

BLOCK_TOKENS = 256
# exp() of anything below is 0 in float32; a finite floor keeps 0 * -inf out of the entropy.
_FLOOR = -1.0e4
# On a CPU the passes over a chunk of rows should hit its cache: 2^19 floats are 2 MB.
_CPU_CHUNK = 1 << 19


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
        logits: [n v], overwritten where that saves a copy; made float32 a chunk of rows at a time.
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
    # The shift keeps the entropy's sum small, so that it is exact to about 1e-6.
    shifted = shifted.sub_(shifted.amax(-1, keepdim=True)).clamp_(min=_FLOOR)
    probs = shifted.softmax(-1)
    if temperature == 0.0:
        tokens = shifted.argmax(-1, keepdim=True)
    else:
        tokens = _invert(_nucleus(probs, top_p) if top_p < 1.0 else probs, uniforms)
    logprobs = probs.gather(1, tokens).log_()
    # log p = shifted - log Z for every token, so log Z comes from the drawn one.
    log_total = shifted.gather(1, tokens) - logprobs
    entropies = log_total[:, 0] - shifted.mul_(probs).sum(-1)
    return Draw(tokens[:, 0], logprobs[:, 0], entropies)


def _invert(probs: Tensor, uniforms: Tensor) -> Tensor:
    """[n 1] tokens: the first block, then the first token within it, whose cumulative mass exceeds the uniform."""
    v = probs.shape[1]
    if v <= BLOCK_TOKENS:
        return _first_above(probs, uniforms[:, :1])
    block = _first_above(_block_sums(probs), uniforms[:, :1])
    ids = block * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS, device=probs.device)
    within = probs.gather(1, ids.clamp(max=v - 1)).masked_fill_(ids >= v, 0.0)
    return block * BLOCK_TOKENS + _first_above(within, uniforms[:, 1:])


def _block_sums(probs: Tensor) -> Tensor:
    """[n v] -> [n b]: sums of blocks of BLOCK_TOKENS; the last one may be shorter."""
    v = probs.shape[1]
    whole = v - v % BLOCK_TOKENS
    blocks = probs[:, :whole].unflatten(-1, (-1, BLOCK_TOKENS)).sum(-1)
    return blocks if whole == v else torch.cat((blocks, probs[:, whole:].sum(-1, keepdim=True)), dim=-1)


def _first_above(mass: Tensor, u: Tensor) -> Tensor:
    """[n 1] index of the first entry whose cumulative mass exceeds u times the total."""
    cumulative = mass.cumsum(-1)
    index = (cumulative <= u * cumulative[:, -1:]).sum(-1, keepdim=True).clamp_(max=mass.shape[1] - 1)
    if mass.device.type != "cpu":
        # A parallel scan may step down by a rounding error and so point at an entry without mass.
        index = torch.where(mass.gather(1, index) > 0, index, mass.argmax(-1, keepdim=True))
    return index


def _nucleus(mass: Tensor, top_p: float) -> Tensor:
    """`mass` with 0 outside the smallest set of largest entries that holds `top_p` of it."""
    ordered, ids = mass.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p * ordered.sum(-1, keepdim=True), ordered, 0.0)
    return torch.zeros_like(mass).scatter_(1, ids, kept)
