"""verl on processors alone, for development and CI: `engine.platform=cpu`.

verl 0.9.1 has no CPU platform and no rollout without a GPU. Four things make its own trainer run there unchanged:

    VERL_PLATFORM=cpu            `CpuPlatform`, by verl's registry of platforms
    VERL_ENGINE_DEVICE=cuda      verl's own switch: its FSDP engine is registered for cuda and npu only
    gloo                         verl would name it twice ("cpu:gloo,cpu:gloo"), which torch refuses: the one patch
    rollout.name=qae_cpu         our sampler behind verl's interface (`rollout`, `server`)
"""

import logging
import os
import types
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

ROLLOUT = "qae_cpu"


def register() -> None:
    """Register platform and rollout; repeating it is harmless."""
    from verl.plugin.platform import PlatformRegistry  # pyright: ignore[reportMissingImports]
    from verl.workers.rollout import base  # pyright: ignore[reportMissingImports]
    from verl.workers.rollout.replica import RolloutReplicaRegistry  # pyright: ignore[reportMissingImports]

    if "cpu" not in PlatformRegistry._platforms:
        PlatformRegistry.register(platform="cpu")(_platform())
    _one_gloo()
    # One warning a request that a Llama-shaped model has verl's default chat tokens.
    logging.getLogger("verl.utils.tokenizer.continuous_token_wiring").setLevel(logging.ERROR)

    def replica() -> Any:
        from qae.integrations.verl.rollout import CpuReplica

        return CpuReplica

    RolloutReplicaRegistry.register(ROLLOUT, replica)
    base._ROLLOUT_REGISTRY[(ROLLOUT, "async")] = "qae.integrations.verl.rollout.WeightSender"


def _one_gloo() -> None:
    from verl.utils import distributed  # pyright: ignore[reportMissingImports]

    theirs = distributed.initialize_global_process_group_ray
    if getattr(theirs, "by_qae", False):
        return

    def start(timeout_second: float | None = None, backend: str | None = None) -> Any:
        return theirs(timeout_second, backend or "gloo")

    start.by_qae = True  # pyright: ignore[reportFunctionMemberAccess]
    distributed.initialize_global_process_group_ray = start


def _device_module() -> types.ModuleType:
    """torch.cpu, with what verl calls on torch.cuda: nothing is allocated on a device, so every figure is 0."""
    module = types.ModuleType("qae_torch_cpu")
    for name in dir(torch.cpu):
        if not name.startswith("_"):
            setattr(module, name, getattr(torch.cpu, name))

    def zero(*_: Any, **__: Any) -> int:
        return 0

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def get_rng_state(*_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)

    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, zero)
    for name in (
        "empty_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats", "ipc_collect",
        "set_per_process_memory_fraction", "synchronize", "set_device",
    ):  # fmt: skip
        setattr(module, name, nothing)
    named: dict[str, Any] = {
        "get_device_name": lambda *_: "cpu",
        "mem_get_info": lambda *_: (0, 0),
        "is_available": lambda: False,  # verl's memory reports then return early
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
    }
    for name, value in named.items():
        setattr(module, name, value)
    return module


def _platform() -> type[Any]:
    from verl.plugin.platform import PlatformBase  # pyright: ignore[reportMissingImports]

    device_module = _device_module()

    class CpuPlatform(PlatformBase):  # pyright: ignore[reportUntypedBaseClass]
        """verl's platform interface on processors."""

        device_name = property(lambda self: "cpu")
        vendor_name = property(lambda self: "cpu")
        device_module = property(lambda self: device_module)

        def is_available(self) -> bool:
            return True

        def is_platform_available(self, use_smi_check: bool = False) -> bool:
            return os.environ.get("VERL_PLATFORM", "").lower() == "cpu"  # never chosen by itself

        def current_device(self) -> str:
            return "cpu"  # verl passes it on to `.to(...)` and `device=`

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None:
            pass

        def synchronize(self, device_index: int | None = None) -> None:
            pass

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        def manual_seed_all(self, seed: int) -> None:
            torch.manual_seed(seed)

        def set_allocator_settings(self, settings: str) -> None:
            pass

        def empty_cache(self) -> None:
            pass

        def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CUDA_VISIBLE_DEVICES"

        @contextmanager
        def nvtx_range(self, msg: str) -> Generator[None]:
            yield

        def profiler_start(self) -> None:
            pass

        def profiler_stop(self) -> None:
            pass

        def ray_resource_name(self) -> str:
            return "GPU"  # slots that ray.init(num_gpus=N) makes up

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False

        def cudart(self) -> None:
            return None

    return CpuPlatform
