"""The sampler's small operations as they are, and compiled: does `torch.compile` pay in the decoder?

One layer of SmolLM2-135M with 64 rows of 110 tokens, bfloat16, one thread: what stands between the products with the
weights. Both sides alternate; processor time of the thread, so that other work on the machine counts little.
`torch.compile` needs a C++ compiler on the machine. Prints one JSON object; `--out` also writes it to a file.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

import harness
import torch
import torch.nn.functional as F
from torch import Tensor

ROWS, WIDTH, HEADS, KEY_HEADS, HEAD_DIM, TOKENS = 64, 576, 9, 3, 64, 110
TURNED = HEADS + KEY_HEADS
CALLS = 50


def residual_norm(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Residual sum, RMSNorm, bfloat16 for the next product."""
    x = x + y
    return x, F.rms_norm(x, x.shape[-1:], weight, 1e-5).to(torch.bfloat16)


def rotate(qkv: Tensor, rotation: Tensor) -> Tensor:
    """Rotary positions, as the decoder has them: pairs as complex numbers."""
    qk = qkv[:, :TURNED].float()
    torch.view_as_complex(qk.unflatten(-1, (-1, 2))).mul_(rotation)
    return qk.to(torch.bfloat16)


def rotate_real(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same in real numbers: the compiler does not fuse complex ones."""
    even, odd = qkv[:, :TURNED, 0::2].float(), qkv[:, :TURNED, 1::2].float()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(torch.bfloat16)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Attention probabilities."""
    return (scores + mask).softmax(-1)


def make_works() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Name -> (as it is, compiled)."""
    x, y, weight = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH).bfloat16(), torch.randn(WIDTH)
    qkv = torch.randn(ROWS, HEADS + 2 * KEY_HEADS, HEAD_DIM).bfloat16()
    angles = torch.randn(ROWS, 1, HEAD_DIM // 2)
    rotation, cos, sin = torch.polar(torch.ones_like(angles), angles), angles.cos(), angles.sin()
    scores = torch.randn(ROWS, KEY_HEADS, HEADS // KEY_HEADS, TOKENS).bfloat16()
    mask = torch.zeros(ROWS, 1, 1, TOKENS, dtype=torch.bfloat16)
    norm_c, rotate_c, softmax_c = (torch.compile(f, dynamic=True) for f in (residual_norm, rotate_real, masked_softmax))
    return {
        "residual_norm": (lambda: residual_norm(x, y, weight), lambda: norm_c(x, y, weight)),
        "rotate": (lambda: rotate(qkv, rotation), lambda: rotate_c(qkv, cos, sin)),
        "masked_softmax": (lambda: masked_softmax(scores, mask), lambda: softmax_c(scores, mask)),
    }


def microseconds(work: Callable[[], Any]) -> float:
    """Of one call, on average."""
    began = thread_time()
    for _ in range(CALLS):
        work()
    return (thread_time() - began) / CALLS * 1e6


@torch.inference_mode()
def measure(alternations: int) -> dict[str, Any]:
    """Both sides of each operation, alternating."""
    found: dict[str, Any] = {}
    for name, sides in make_works().items():
        for work in sides:
            microseconds(work)  # compiles, warms up
        eager, compiled = zip(*([microseconds(work) for work in sides] for _ in range(alternations)), strict=True)
        found[name] = {
            "eager_us": harness.spread(eager),
            "compiled_us": harness.spread(compiled),
            "eager_over_compiled": harness.ratios(eager, compiled),
        }
    return found


def main() -> None:
    """Parse the arguments, measure, print."""
    parser: argparse.ArgumentParser = harness.parser(__doc__)
    args = parser.parse_args()
    torch.set_num_threads(1)
    out: Path | None = args.out
    result = {
        "benchmark": "small_ops",
        "config": {"rows": ROWS, "tokens": TOKENS, "dtype": "bfloat16", "calls": CALLS},
        "environment": harness.environment("qae", "torch"),
        "operations": measure(args.alternations),
    }
    harness.finish(result, out)


if __name__ == "__main__":
    main()
