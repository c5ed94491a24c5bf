"""prime-rl: its algorithm `grpo`, length penalty included, with the quantile for a baseline.

    python -m qae.integrations.prime_rl --k 0.4 @ orchestrator.toml

stands for the command `orchestrator`. prime-rl subtracts its group's mean; a quantile does not care about a constant,
so ours is taken of what prime-rl assigned: its own shaping stays.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from qae.advantages import quantile_advantages
from qae.integrations.rows import level, run_script
from qae.integrations.status import warn_if_experimental


def quantile_algorithm(host: type, k: float) -> type:
    """A subclass of prime-rl's GRPO algorithm.

    Args:
        host: `prime_rl.orchestrator.algo.grpo.GRPOAlgorithm`, or a subclass.
        k: level of the quantile.
    """
    base: Any = host
    routing: Any = import_module("prime_rl.orchestrator.algo.routing")
    traces_of: Any = import_module("prime_rl.orchestrator.algo.base").iter_trainable_traces

    class QuantileGRPOAlgorithm(base):
        """Group-relative credit over the group's K-quantile; no division, as in prime-rl."""

        async def score_group(self, episodes: Sequence[Any]) -> None:
            """Let prime-rl assign its advantages, then move their baseline."""
            await super().score_group(episodes)
            traces = [trace for _, trace in traces_of(episodes)]
            if not traces:
                return
            assigned = torch.tensor([_assigned(trace) for trace in traces], dtype=torch.float64)
            found = quantile_advantages(assigned, torch.zeros(len(traces), dtype=torch.int64), k, scale="none")
            for trace, advantage in zip(traces, found.tolist(), strict=True):
                routing.assign_advantages(trace, advantage)

    return QuantileGRPOAlgorithm


def install(k: float | None = None) -> None:
    """Let the name `grpo` mean ours in prime-rl's table of algorithms.

    Args:
        k: level of the quantile; default QAE_K, else 0.4.

    Raises:
        RuntimeError: the table is not where it was.
    """
    warn_if_experimental("prime_rl")
    algo: Any = import_module("prime_rl.orchestrator.algo")
    table = getattr(algo, "ALGORITHM_CLASSES", {})
    if "grpo" not in table or not hasattr(table["grpo"], "score_group"):
        raise RuntimeError(
            "prime_rl.orchestrator.algo.ALGORITHM_CLASSES has no 'grpo' with a method score_group: quantile advantages "
            "would not reach the trainer. Use prime-rl 0.8, or a newer qae"
        )
    table["grpo"] = quantile_algorithm(table["grpo"], level(k))


def _assigned(trace: Any) -> float:
    return next(float(node.advantages[0]) for node in trace.nodes if node.advantages)


def main(arguments: list[str] | None = None) -> None:
    """Install, then run prime-rl's orchestrator.

    Args:
        arguments: of the command line.
    """
    given = sys.argv[1:] if arguments is None else arguments
    run_script(f"python -m {__name__}", install, given, module="prime_rl.entrypoints.orchestrator")


if __name__ == "__main__":
    from qae.integrations.prime_rl import main as run

    run()
