"""Our sampler behind verl's rollout interface, for `engine.platform=cpu`: a server a replica, and its feeder."""

from typing import Any

import ray  # pyright: ignore[reportMissingImports]
from verl.workers.rollout.base import BaseRollout  # pyright: ignore[reportMissingImports]
from verl.workers.rollout.replica import RolloutMode, RolloutReplica  # pyright: ignore[reportMissingImports]

from qae.integrations.verl.server import CpuServer


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
