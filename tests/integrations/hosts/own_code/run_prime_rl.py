"""The `grpo` of prime-rl's table of algorithms scoring groups of its own traces."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

from host_stubs import Stubs, report

checkout = Path(sys.argv[1])
sys.path.insert(0, str(checkout / "src"))
stubs = Stubs(
    "verifiers", "renderers", "httpx", "openai",
    instead=("prime_rl.configs", "prime_rl.utils", "prime_rl.transports"),
)  # fmt: skip

from qae.integrations import prime_rl

prime_rl.install(0.4)
from prime_rl.orchestrator.algo import ALGORITHM_CLASSES, GRPOAlgorithm


def trace(reward: float, tokens: int = 3, error: bool = False):
    node = SimpleNamespace(mask=[False, *[True] * tokens], token_ids=[0] * (tokens + 1), advantages=None)
    return SimpleNamespace(
        reward=reward, has_error=error, agent=SimpleNamespace(trainable=True), nodes=[node], id="t",
        num_output_tokens=tokens, num_total_tokens=tokens + 1, num_turns=1,
    )  # fmt: skip


def score(cls: type, traces, length_penalty=None) -> list[float | None]:
    algorithm = cls(SimpleNamespace(length_penalty=length_penalty), None)
    asyncio.run(algorithm.score_group([SimpleNamespace(traces=[t]) for t in traces]))
    return [t.nodes[0].advantages[0] if t.nodes[0].advantages else None for t in traces]


rewards = [1.0, 0.0, 0.0, 0.0, 0.0]
penalty = SimpleNamespace(num_output_tokens_weight=0.1, num_input_tokens_weight=0.0, num_turns_weight=0.0)
ragged = [trace(r, tokens=n) for r, n in zip([1.0, 1.0, 1.0, 0.0], [2, 4, 8, 8], strict=True)]
report(
    checkout,
    stubs,
    quantile=score(ALGORITHM_CLASSES["grpo"], [trace(r) for r in rewards]),
    easy=score(ALGORITHM_CLASSES["grpo"], [trace(r) for r in (1.0, 1.0, 1.0, 0.0)]),
    flat=score(ALGORITHM_CLASSES["grpo"], [trace(0.95) for _ in range(7)]),
    with_error=score(ALGORITHM_CLASSES["grpo"], [trace(1.0), trace(0.0), trace(0.0), trace(9.0, error=True)]),
    penalised=score(ALGORITHM_CLASSES["grpo"], ragged, penalty),
    own_mean=score(GRPOAlgorithm, [trace(r) for r in rewards]),
)
