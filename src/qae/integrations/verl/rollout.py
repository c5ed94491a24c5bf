"""Our sampler behind verl's rollout interface, for `engine.platform=cpu`: one Ray actor for each replica.

Requests of a moment are drawn together; weights come in after every update through verl's own synchronisation.
"""

import asyncio
from dataclasses import replace
from typing import Any

import ray  # pyright: ignore[reportMissingImports]
import torch
from verl.workers.rollout.base import BaseRollout  # pyright: ignore[reportMissingImports]
from verl.workers.rollout.replica import (  # pyright: ignore[reportMissingImports]
    RolloutMode,
    RolloutReplica,
    TokenOutput,
)

from qae.sampling import SamplingParams, make_engine
from qae.sampling.rng import row_key

ROLLOUT_STREAM = 5
GATHER_SECONDS = 0.05
MOST_ROWS = 512


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
            TokenOutput(
                token_ids=c.token_ids,
                log_probs=c.logprobs.tolist(),
                stop_reason="completed",
                extra_fields={"global_steps": self._version},
            )
            for c in completions
        ]


class CpuReplica(RolloutReplica):  # pyright: ignore[reportUntypedBaseClass]
    """verl's handle of one server."""

    async def launch_servers(self) -> None:
        """Start the server and wait for its model."""
        if self.rollout_mode != RolloutMode.HYBRID:
            raise ValueError(f"the rollout qae_cpu runs beside the trainer only, not in mode {self.rollout_mode}")
        server = (
            ray.remote(CpuServer)
            .options(name=server_name(self.replica_rank), num_cpus=0.1, max_concurrency=self.max_concurrency)
            .remote(self.model_config.path, self.config.response_length, self.config.seed + self.replica_rank)
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = server_name(self.replica_rank)


class WeightSender(BaseRollout):  # pyright: ignore[reportUntypedBaseClass]
    """Lives in each training worker and sends its weights to the replica's server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, *args: Any, **kwargs: Any) -> None:
        """Know which replica this worker belongs to."""
        super().__init__(config, model_config, device_mesh)
        self._rank = device_mesh["dp"].get_local_rank()

    async def resume(self, tags: list[str]) -> None:
        """Nothing sleeps here."""

    async def release(self) -> None:
        """Nothing to free."""

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", global_steps: int | None = None, **_: Any
    ) -> None:
        """Send full tensors. Every rank reads the generator to its end: gathering a tensor is collective."""
        if wire_format != "named_tensors":
            raise ValueError(f"the rollout qae_cpu takes named tensors, not {wire_format}; use the naive engine")
        named = {name: tensor.detach().cpu().float().clone() for name, tensor in weights}
        await ray.get_actor(server_name(self._rank)).load_weights.remote(named, global_steps)


def server_name(rank: int) -> str:
    """Ray's name of the server of replica `rank`."""
    return f"qae_cpu_server_{rank}"
