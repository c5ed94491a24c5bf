"""How far the gradient scatters under each arm of a study, beside what all batches share.

On independent batches of the study's size, from its initial policy or another: the gradient of each arm's loss at a
ratio of one, split into its expectation (signal) and its scatter (noise) as `qae audit --measure` does it for its
baselines. Prints one JSON object; `--out` also writes it to a file.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import harness
import torch

from qae.audit.measure import Scatter, contexts_of, gradient_lengths
from qae.noise import least_noise_k
from qae.policies import load_policy
from qae.sampling import make_engine
from qae.study.plan import load_study
from qae.tasks import make_task
from qae.trainer.batch import collect
from qae.trainer.loop import advantages_of

STUDY = Path(__file__).parent.parent / "studies" / "cause.yaml"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = harness.parser(__doc__, alternations=16)
    parser.add_argument("--study", type=Path, default=STUDY, help="its arms are measured, in its first block")
    parser.add_argument("--policy", help="directory of another policy, such as a checkpoint")
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    study = load_study(asked.study)
    block, seed = next(iter(study.config.blocks)), study.config.first_seed
    arms = {run.arm: run.config for run in study.runs if (run.block, run.seed) == (block, seed)}
    config = arms[study.config.baseline]
    path = asked.policy or config.policy.path
    policy = load_policy(path, dtype="float32", device=config.policy.device)
    task, engine = make_task(config.task.model_dump(), seed), make_engine("builtin", policy)
    engine.refresh()
    scatter, lengths = {arm: Scatter() for arm in arms}, list[tuple[float, float]]()
    for i in range(asked.alternations):
        print(f"batch {i + 1} of {asked.alternations}", file=sys.stderr)
        cursor = i * config.rollout.prompts
        batch = collect(config, policy, task, engine, step=i, cursor=cursor, phase=lambda *a, **b: None)
        groups = [group for group in batch.groups if group.is_mixed]
        contexts = contexts_of(policy, groups, config.rollout.temperature)
        lengths.append(gradient_lengths(contexts, groups, seed + i))
        for arm, found in scatter.items():
            advantages = advantages_of(arms[arm], groups, step=i).nan_to_num().to(policy.device)
            found.add(contexts.gradient(lambda logprobs, entropies, rows, a=advantages: a[rows] * logprobs))
    success, failure = (statistics.fmean(both[i] for both in lengths) for i in range(2))
    result = {
        "benchmark": "gradient_noise",
        "config": {
            "study": study.config.name,
            "policy": Path(path).name,
            "batches": asked.alternations,
            "prompts": config.rollout.prompts,
            "group_size": config.rollout.group_size,
        },
        "environment": harness.environment("qae", "torch"),
        "success_norm2": success,
        "failure_norm2": failure,
        "least_noise_k": least_noise_k(success_norm2=success, failure_norm2=failure),
        "arms": {arm: found.norms() for arm, found in scatter.items()},
    }
    harness.finish(result, asked.out)


if __name__ == "__main__":
    main()
