"""The Ray actor that draws completions for `engine.platform=cpu`. It imports no verl, which would take seconds.

Requests of a moment are drawn together; weights come in after every update through verl's own synchronisation.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import torch

from qae.sampling import SamplingParams, make_engine
from qae.sampling.rng import row_key

ROLLOUT_STREAM = 5
GATHER_SECONDS = 0.05
MOST_ROWS = 512


@dataclass(frozen=True)
class Drawn:
    """A completion on its way to verl, where it arrives as verl's own `TokenOutput`.

    Attributes:
        token_ids: with the EOS token that ended it.
        log_probs: one a token, in nats.
        extra_fields: which weights drew it.
    """

    token_ids: list[int]
    log_probs: list[float]
    extra_fields: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        """Become verl's class in the process that reads it."""
        return as_token_output, (self.token_ids, self.log_probs, self.extra_fields)


def as_token_output(token_ids: list[int], log_probs: list[float], extra_fields: dict[str, Any]) -> Any:
    """Verl's form of a completion."""
    from verl.workers.rollout.replica import TokenOutput  # pyright: ignore[reportMissingImports]

    return TokenOutput(token_ids=token_ids, log_probs=log_probs, stop_reason="completed", extra_fields=extra_fields)


class CpuServer:
    """A Ray actor that draws completions for verl's agent loops.

    Args:
        path: the model.
        max_tokens: longest completion.
        seed: of the random streams; of each replica its own.
    """

    def __init__(self, path: str, max_tokens: int, seed: int) -> None:
        """Load the model."""
        from qae.policies import load_policy

        torch.set_num_threads(1)
        self._policy = load_policy(path, dtype="float32", device="cpu")
        self._engine = make_engine("builtin", self._policy)
        self._max_tokens, self._seed = max_tokens, seed
        self._version, self._drawn = 0, 0
        self._waiting: list[tuple[list[int], SamplingParams, asyncio.Future[Any]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def generate(self, request_id: str, prompt_ids: Any, sampling_params: dict[str, Any], **_: Any) -> Any:
        """One completion, drawn together with the others that were asked for at about the same time."""
        params = self._params(sampling_params)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(([int(i) for i in prompt_ids], params, done))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await done

    async def load_weights(self, weights: dict[str, torch.Tensor], version: int | None) -> None:
        """Take over new weights; a name that the model does not have, or lacks, is an error."""
        own = self._policy.model.state_dict()
        tied = {"lm_head.weight"} if self._policy.model.config.tie_word_embeddings else set[str]()
        missing, unknown = own.keys() - weights.keys() - tied, weights.keys() - own.keys()
        if missing or unknown:
            raise ValueError(f"weights from the trainer: missing {sorted(missing)[:3]}, unknown {sorted(unknown)[:3]}")
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)
        self._engine.refresh()
        self._version = self._version if version is None else version

    async def ready(self) -> bool:
        """Whether the model is loaded: a call returns once it is."""
        return True

    async def wake_up(self) -> None:
        """Nothing sleeps here."""

    async def sleep(self) -> None:
        """Nothing to free."""

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Requests are drawn to their end."""

    async def resume_generation(self) -> None:
        """It never stopped."""

    async def clear_kv_cache(self) -> None:
        """There is none between calls."""

    async def release_kv_cache(self) -> None:
        """There is none between calls."""

    async def resume_kv_cache(self) -> None:
        """There is none between calls."""

    async def start_profile(self, **_: Any) -> None:
        """No profiler."""

    async def stop_profile(self) -> None:
        """No profiler."""

    def _params(self, given: dict[str, Any]) -> SamplingParams:
        top_k = given.get("top_k", -1)
        if top_k not in (-1, 0):
            raise ValueError(f"the rollout qae_cpu has no top_k, got top_k={top_k}; set it to -1")
        if given.get("repetition_penalty", 1.0) != 1.0:
            raise ValueError(f"the rollout qae_cpu has no repetition_penalty, got {given['repetition_penalty']}")
        most = given.get("max_tokens") or given.get("max_new_tokens") or self._max_tokens
        return SamplingParams(
            max_tokens=int(most), temperature=float(given.get("temperature", 1.0)), top_p=float(given.get("top_p", 1.0))
        )

    async def _work(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        while self._waiting:
            params = self._waiting[0][1]
            batch = [row for row in self._waiting if row[1] == params][:MOST_ROWS]
            taken = {id(row) for row in batch}
            self._waiting = [row for row in self._waiting if id(row) not in taken]
            try:
                outputs = await asyncio.to_thread(self._draw, [row[0] for row in batch], params)
            except Exception as error:
                for _, _, done in batch:
                    done.set_exception(error)
                continue
            for (_, _, done), output in zip(batch, outputs, strict=True):
                done.set_result(output)

    def _draw(self, rows: list[list[int]], params: SamplingParams) -> list[Any]:
        prompts = list({tuple(row) for row in rows})
        index = {prompt: i for i, prompt in enumerate(prompts)}
        room = self._policy.context_tokens - max(map(len, prompts))
        keys = [row_key(self._seed, ROLLOUT_STREAM, self._drawn + i) for i in range(len(rows))]
        self._drawn += len(rows)
        completions = self._engine.generate(
            [list(prompt) for prompt in prompts],
            [index[tuple(row)] for row in rows],
            keys,
            replace(params, max_tokens=min(params.max_tokens, room)),
        )
        return [
            Drawn(token_ids=c.token_ids, log_probs=c.logprobs.tolist(), extra_fields={"global_steps": self._version})
            for c in completions
        ]
