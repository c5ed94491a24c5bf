"""One call of the built-in engine: continuous batching over a static cache, prompts computed once."""

from collections import deque

import torch
from torch import Tensor

from qae.sampling.decoder import Cache, Decoder
from qae.sampling.draw import draw
from qae.sampling.finish import Finish
from qae.sampling.rng import uniform_pairs
from qae.sampling.types import Completion, Progress, SamplingParams

_REPORT_EVERY = 8
# Off the CPU, whether rows have finished is asked every few tokens: each question waits for the device.
_DEVICE_LOOK_EVERY = 8


class _Prompts:
    """Prompts computed a chunk ahead of the rows that need them, behind their common prefix."""

    def __init__(self, decoder: Decoder, prompts: list[list[int]], order: list[int], chunk_tokens: int) -> None:
        self._decoder = decoder
        self._waiting = deque(order)
        self._chunk_tokens = chunk_tokens
        self._done: dict[int, tuple[Cache, Tensor, int]] = {}
        # The last token of a prompt is never part of the prefix: its hidden state gives the first logits.
        shared = common_prefix([prompts[i] for i in order])
        self._shared = shared
        self._suffix = {i: prompts[i][shared:] for i in order}
        self.prefix = None
        if shared:
            head = torch.tensor([prompts[order[0]][:shared]], device=decoder.device)
            self.prefix = decoder.prefill(head, None)[1]
        self.longest = max(map(len, self._suffix.values()))

    def length(self, index: int) -> int:
        return len(self._suffix[index])

    def take(self, index: int) -> tuple[Cache, Tensor, int]:
        """Chunk's keys and values, its last hidden states, and the place of prompt `index` in them."""
        while index not in self._done:
            self._compute_chunk()
        return self._done[index]

    def drop(self, index: int) -> None:
        del self._done[index]

    def _compute_chunk(self) -> None:
        chunk = [self._waiting.popleft()]
        longest = self.length(chunk[0])
        while self._waiting:
            longest = max(longest, self.length(self._waiting[0]))
            count = len(chunk) + 1
            # The second bound is on the copies of the prefix's keys that the prompts of a chunk attend to.
            if count * longest > self._chunk_tokens or count * (longest + self._shared) > 8 * self._chunk_tokens:
                break
            chunk.append(self._waiting.popleft())
        longest = max(map(self.length, chunk))
        ids = [self._suffix[i] + [0] * (longest - self.length(i)) for i in chunk]
        device = self._decoder.device
        hidden, key_values = self._decoder.prefill(torch.tensor(ids, device=device), self.prefix)
        ends = torch.tensor([self.length(i) - 1 for i in chunk], device=device)
        last = hidden[torch.arange(len(chunk), device=device), ends]
        for place, index in enumerate(chunk):
            self._done[index] = (key_values, last, place)


def common_prefix(prompts: list[list[int]]) -> int:
    """Tokens that all prompts start with, the last token of the shortest left out.

    Example:
        >>> common_prefix([[1, 2, 3], [1, 2, 4, 5]]), common_prefix([[1, 2], [1, 2, 3]])
        (2, 1)
    """
    low, high = min(prompts), max(prompts)
    limit = min(map(len, prompts)) - 1
    return next((i for i in range(limit) if low[i] != high[i]), limit)


class Batch:
    """One call of `generate`: rows enter slots, are decoded in lockstep, and leave."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: list[list[int]],
        row_prompt: list[int],
        row_keys: list[int],
        params: SamplingParams,
        finish: Finish,
        *,
        slots: int,
        prefill_tokens: int,
    ) -> None:
        self._decoder = decoder
        self._row_prompt = row_prompt
        self._params = params
        self._max_tokens = params.max_tokens
        self._finish = finish
        # Siblings wait side by side, so that a prompt's keys and values are needed for a short time only.
        self._waiting = deque(sorted(range(len(row_prompt)), key=row_prompt.__getitem__))
        self._uses: dict[int, int] = {}
        for row in self._waiting:
            self._uses[row_prompt[row]] = self._uses.get(row_prompt[row], 0) + 1
        self._prompts = _Prompts(decoder, prompts, list(self._uses), prefill_tokens)
        device = decoder.device
        self._cache = decoder.allocate(slots, self._prompts.longest + params.max_tokens)
        self._keys = torch.tensor(row_keys, dtype=torch.int64, device=device)
        self._slots = slots
        self._look_every = 1 if device.type == "cpu" else _DEVICE_LOOK_EVERY
        # Of the slots in use, in order: the row, its tokens in the cache, its tokens drawn, and on the device the
        # same again and the hidden state to draw from.
        self._rows: list[int] = []
        self._lengths: list[int] = []
        self._drawn: list[int] = []
        self._row_ids = torch.zeros(0, dtype=torch.int64, device=device)
        self._places = torch.zeros(0, dtype=torch.int64, device=device)
        self._positions = torch.zeros(0, dtype=torch.int64, device=device)
        self._hidden = torch.zeros(0, decoder.weights.embed.shape[1], device=device)
        self._centre: float | None = None if decoder.dtype == torch.bfloat16 else 0.0
        self._tokens: list[list[int]] = [[] for _ in row_prompt]
        self._log: list[tuple[Tensor, Tensor, Tensor]] = []

    @torch.inference_mode()
    def run(self, progress: Progress | None) -> None:
        """Decode until every row has ended."""
        total, looks = len(self._row_prompt), 0
        while self._rows or self._waiting:
            self._admit()
            drawn: list[Tensor] = []
            for _ in range(min(self._look_every, self._max_tokens - max(self._drawn))):
                if drawn:
                    self._advance(drawn[-1])
                drawn.append(self._draw())
            keep = self._collect(drawn)
            tokens = drawn[-1] if len(keep) == len(self._rows) else drawn[-1][self._compact(keep)]
            if self._rows:
                self._advance(tokens)
            looks += 1
            if progress is not None and (looks % _REPORT_EVERY == 0 or not (self._rows or self._waiting)):
                progress(total - len(self._rows) - len(self._waiting), total, sum(map(len, self._tokens)))

    def _admit(self) -> None:
        """Waiting rows take the free slots behind the rows in use."""
        count = min(self._slots - len(self._rows), len(self._waiting))
        entering = [self._waiting.popleft() for _ in range(count)]
        hidden = [self._hidden]
        while entering:
            index = self._row_prompt[entering[0]]
            siblings = [row for row in entering if self._row_prompt[row] == index]
            entering = entering[len(siblings) :]
            chunk, last, place = self._prompts.take(index)
            length, slot = self._prompts.length(index), len(self._rows)
            end = slot + len(siblings)
            self._cache[:, :, slot:end, :, :length] = chunk[:, :, place : place + 1, :, :length]
            hidden.append(last[place].expand(len(siblings), -1))
            self._rows += siblings
            self._lengths += [length] * len(siblings)
            self._drawn += [0] * len(siblings)
            self._uses[index] -= len(siblings)
            if self._uses[index] == 0:
                self._prompts.drop(index)
        if count:
            device = self._decoder.device
            self._hidden = torch.cat(hidden)
            self._row_ids = torch.tensor(self._rows, device=device)
            self._places = torch.tensor(self._lengths, device=device)
            self._positions = torch.tensor(self._drawn, device=device)

    def _draw(self) -> Tensor:
        """The next token of every row in use."""
        if self._centre is None:
            # A multiple of 8, so that another set of prompts seldom changes how logits are rounded.
            self._centre = 8.0 * round(self._decoder.logits(self._hidden).amax(-1).float().mean().item() / 8)
        uniforms = uniform_pairs(self._keys[self._row_ids], self._positions)
        logits = self._decoder.logits(self._hidden, self._centre)
        drawn = draw(logits, uniforms, temperature=self._params.temperature, top_p=self._params.top_p)
        self._log.append((self._row_ids, drawn.logprobs, drawn.entropies))
        self._positions = self._positions + 1
        self._drawn = [n + 1 for n in self._drawn]
        return drawn.tokens

    def _advance(self, tokens: Tensor) -> None:
        """Put the drawn tokens through the model."""
        self._hidden = self._decoder.step(tokens, self._lengths, self._places, self._cache, self._prompts.prefix)
        self._lengths = [n + 1 for n in self._lengths]
        self._places = self._places + 1

    def _collect(self, drawn: list[Tensor]) -> list[int]:
        """Bring drawn tokens to the host; the slots whose rows go on."""
        keep: list[int] = []
        for slot, (row, new) in enumerate(zip(self._rows, torch.stack(drawn, 1).tolist(), strict=True)):
            tokens = self._tokens[row]
            for token in new:
                tokens.append(token)
                if self._finish.ended(tokens):
                    break
            else:
                keep.append(slot)
        return keep

    def _compact(self, keep: list[int]) -> Tensor:
        """Rows behind the new end move into the slots that were left; returns the slots' old places."""
        n = len(keep)
        staying = {slot for slot in keep if slot < n}
        movers = [slot for slot in keep if slot >= n]
        holes = [slot for slot in range(n) if slot not in staying]
        old = list(range(n))
        for hole, mover in zip(holes, movers, strict=True):
            old[hole] = mover
        if movers:
            end = max(self._lengths[mover] for mover in movers)
            self._cache[:, :, holes, :, :end] = self._cache[:, :, movers, :, :end]
        index = torch.tensor(old, dtype=torch.int64, device=self._decoder.device)
        self._rows, self._lengths, self._drawn = (
            [values[slot] for slot in old] for values in (self._rows, self._lengths, self._drawn)
        )
        self._row_ids, self._places = self._row_ids[index], self._places[index]
        self._positions = self._positions[index]
        self._hidden = self._hidden[index]
        return index

    def completions(self) -> list[Completion]:
        """What `run` made, in row order; outside of inference mode, so that training can use the tensors."""
        rows, logprobs, entropies = (torch.cat(column).cpu() for column in zip(*self._log, strict=True))
        order = rows.argsort(stable=True)
        # Between two looks a row may be drawn for beyond its end: only its first tokens count.
        counts = rows.bincount(minlength=len(self._row_prompt)).tolist()
        values = zip(logprobs[order].split(counts), entropies[order].split(counts), strict=True)
        return [
            self._finish.completion(self._row_prompt[row], ids, lp[: len(ids)].clone(), h[: len(ids)].clone())
            for row, (ids, (lp, h)) in enumerate(zip(self._tokens, values, strict=True))
        ]
