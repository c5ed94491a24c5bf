"""Prompts -> completions with log-probs and entropies: the built-in engine and vllm behind one interface."""

from typing import Any

from qae.policies.policy import Policy
from qae.sampling.types import Completion, Engine, SamplingParams

__all__ = ["Completion", "Engine", "SamplingParams", "make_engine"]

ENGINES = ("builtin", "vllm")


def make_engine(name: str, policy: Policy, **options: Any) -> Engine:
    """The sampling engine called `name`.

    "builtin" decodes Llama-, Qwen2- and Qwen3-shaped policies with fused weights and any other through its own
    forward pass. "vllm" (extra, experimental) hands the weights to vLLM.

    Args:
        name: "builtin" or "vllm".
        policy: to sample from.
        **options: of the engine, such as max_rows.

    Raises:
        ValueError: for an unknown name.
    """
    if name == "builtin":
        from qae.sampling.builtin import BuiltinEngine
        from qae.sampling.fallback import ForwardEngine
        from qae.sampling.weights import why_not_fused

        return (
            BuiltinEngine(policy, **options)
            if why_not_fused(policy.model) is None
            else ForwardEngine(policy, **options)
        )
    if name == "vllm":
        from qae.sampling.vllm import VllmEngine

        return VllmEngine(policy, **options)
    raise ValueError(f"rollout engine {name!r} is unknown: choose one of {', '.join(ENGINES)}")
