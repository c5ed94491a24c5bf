"""Samples from a policy on this machine."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from qae.evaluation.samples import EvalSettings, Progress, Request, Sample, random_stream
from qae.policies.policy import Policy
from qae.sampling import Engine, SamplingParams, make_engine
from qae.sampling.rng import row_key
from qae.tasks.prompts import encode_prompt

ROWS_AT_ONCE = 256
DEFAULT_MAX_TOKENS = 4_096
_STREAM = 3


@dataclass
class LocalSampler:
    """Draws with the built-in engine (or another engine of `qae.sampling`).

    The random stream of a completion depends on seed, problem and sample number only, so an evaluation that
    was interrupted gives what an uninterrupted one would have given.

    Args:
        policy: the model.
        name: for tables.
        engine: name of the engine.
        progress: told of (finished, all, tokens) while rows are drawn.
    """

    policy: Policy
    name: str = ""
    engine: str = "builtin"
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Name the model after its path, if no name was given."""
        self.name = self.name or Path(self.policy.name).name
        self.about = {"engine": self.engine, "weights": weights_id(self.policy)}
        self._engine: Engine | None = None

    def sample(self, requests: Sequence[Request], settings: EvalSettings, suffix: str) -> Iterator[list[Sample]]:
        """The samples, some hundred rows at a time, a problem's samples together."""
        if not requests:
            return
        if self._engine is None:
            self._engine = make_engine(self.engine, self.policy)
            self._engine.refresh()
        prompts = {request.item.id: self._encode(request, settings, suffix) for request in requests}
        params = SamplingParams(
            max_tokens=self._max_tokens(max(map(len, prompts.values())), settings.max_tokens),
            temperature=settings.temperature,
            top_p=settings.top_p,
            stop=settings.stop,
        )
        for start in range(0, len(requests), ROWS_AT_ONCE):
            yield self._chunk(requests[start : start + ROWS_AT_ONCE], prompts, params, settings.seed)

    def _chunk(
        self, requests: Sequence[Request], prompts: dict[str, list[int]], params: SamplingParams, seed: int
    ) -> list[Sample]:
        ids = list(dict.fromkeys(request.item.id for request in requests))
        place = {problem: i for i, problem in enumerate(ids)}
        assert self._engine is not None
        completions = self._engine.generate(
            [prompts[problem] for problem in ids],
            [place[request.item.id] for request in requests],
            [row_key(seed, _STREAM, random_stream(request.item.id), request.sample) for request in requests],
            params,
            self.progress,
        )
        return [
            Sample(
                request.item.id,
                request.sample,
                done.text,
                len(done.token_ids),
                done.truncated,
                float(done.entropies.mean()) if len(done.token_ids) else None,
            )
            for request, done in zip(requests, completions, strict=True)
        ]

    def _encode(self, request: Request, settings: EvalSettings, suffix: str) -> list[int]:
        messages = chat_messages(request, settings, suffix, bool(self.policy.tokenizer.chat_template))
        prompt = messages if messages is not None else f"{request.item.prompt}{suffix}"
        return encode_prompt(prompt, self.policy.tokenizer)

    def _max_tokens(self, longest_prompt: int, asked: int | None) -> int:
        room = self.policy.context_tokens - longest_prompt
        if room < 1:
            raise ValueError(
                f"the longest prompt has {longest_prompt} tokens, the context of {self.name} only "
                f"{self.policy.context_tokens}; leave out long problems or take a model with a longer context"
            )
        if asked is not None and asked > room:
            raise ValueError(
                f"max_tokens={asked} and the longest prompt ({longest_prompt} tokens) do not fit into the context of "
                f"{self.name} ({self.policy.context_tokens} tokens); set max_tokens={room} or less"
            )
        return asked or min(room, DEFAULT_MAX_TOKENS)


def weights_id(policy: Policy) -> str:
    """A hash of the first values of every tensor: another checkpoint under the same name has another.

    Args:
        policy: the model.

    Returns:
        A short text.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(policy.model.state_dict().items()):
        values = tensor.detach().flatten()[:256].to(device="cpu", dtype=torch.float32)
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + values.numpy().tobytes())
    return digest.hexdigest()[:16]


def chat_messages(
    request: Request, settings: EvalSettings, suffix: str, default_chat: bool
) -> tuple[dict[str, str], ...] | None:
    """The messages of a request, or None if its prompt is raw text."""
    prompt = request.item.prompt
    if isinstance(prompt, str):
        if not (default_chat if settings.chat is None else settings.chat):
            return None
        prompt = ({"role": "user", "content": prompt + suffix},)
    if settings.system is not None and prompt[0]["role"] != "system":
        prompt = ({"role": "system", "content": settings.system}, *prompt)
    return prompt
