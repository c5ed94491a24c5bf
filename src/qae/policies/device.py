"""Where a policy lives and in which dtype its matrix products run."""

import functools
import time

import torch

from qae.policies.policy import PolicyError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Below this width the cost of casting eats what a bfloat16 product gains.
_NARROW = 256
# A probe that chooses on a hair would choose differently on the next start.
_CLEARLY_FASTER = 1.25
_PROBE_TOKENS = 64
_PROBE_WIDTH = 1024
_PROBE_REPEATS = 5


def resolve_device(device: str) -> torch.device:
    """The device for `auto`, `cpu`, `cuda` or `mps`; auto takes the first of cuda, mps and cpu that is there.

    Args:
        device: the name.

    Returns:
        The device.

    Raises:
        PolicyError: the device is not available here.

    Example:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    available = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available, "cpu": lambda: True}
    if device == "auto":
        device = next(name for name, is_there in available.items() if is_there())
    kind = device.partition(":")[0]
    if kind not in available:
        raise PolicyError(f"policy.device={device}: must be auto, cpu, cuda or mps")
    if not available[kind]():
        raise PolicyError(f"policy.device={device}: torch {torch.__version__} sees no {kind} device here; use auto")
    return torch.device(device)


def resolve_compute_dtype(dtype: str, device: torch.device, width: int) -> torch.dtype:
    """Dtype of matrix products for `auto`, `float32` or `bfloat16`.

    On a CPU, auto measures one product in both dtypes (once per process and width) and takes bfloat16 only if it
    is clearly faster; a narrow model is always float32. On cuda, auto takes bfloat16 where the hardware has it.

    Args:
        dtype: the name.
        device: where the model lives.
        width: hidden size of the model.

    Returns:
        torch.float32 or torch.bfloat16.

    Raises:
        PolicyError: an unknown name.

    Example:
        >>> resolve_compute_dtype("auto", torch.device("cpu"), width=128)
        torch.float32
    """
    if dtype in _DTYPES:
        return _DTYPES[dtype]
    if dtype != "auto":
        raise PolicyError(f"policy.dtype={dtype}: must be auto, {' or '.join(_DTYPES)}")
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    if device.type == "cpu" and width >= _NARROW and bfloat16_speedup(min(width, _PROBE_WIDTH)) > _CLEARLY_FASTER:
        return torch.bfloat16
    return torch.float32


@functools.cache
def bfloat16_speedup(width: int) -> float:
    """How many times faster a [64 width] @ [width 4*width] product is in bfloat16 than in float32 on this CPU.

    Args:
        width: inner size of the product.

    Returns:
        Seconds in float32 over seconds in bfloat16, best of a few repeats, in turns.
    """
    operands = [
        (torch.ones(_PROBE_TOKENS, width, dtype=dtype), torch.ones(4 * width, width, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    ]
    best_seconds = [float("inf"), float("inf")]
    with torch.inference_mode():
        for _ in range(_PROBE_REPEATS):
            for which, (hidden, weight) in enumerate(operands):
                started = time.perf_counter()
                torch.nn.functional.linear(hidden, weight)
                best_seconds[which] = min(best_seconds[which], time.perf_counter() - started)
    return best_seconds[0] / best_seconds[1]
