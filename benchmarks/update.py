"""The update phase on one real batch: what computing prompts once and skipping rows with advantage 0 are worth.

A batch is sampled and graded once. Then the same update phase (the run's mini-batches, one epoch) is timed in three
forms, alternating, each from the same weights:

    padded        one padded row a completion, every row: the plain computation
    shared        every distinct prompt token once, every row
    shared_skip   the same, without the rows whose advantage is 0

`gradient_difference` is the norm of the difference of the first update's gradient to the padded one's, over its norm.
`work_bound` is the share of tokens (prompts counted once) that skipping leaves: forward and backward cannot cost less
of the shared computation than that. The optimiser's step is timed apart, since skipping does not touch it.
`of_matrix_rate`: 6 operations a weight and token (padding included), and 6 v d a scored token, attention left out,
over the seconds, over what a product of 512 rows with a d x 4d matrix reaches here in the products' dtype.

Prints one JSON object; `--out` also writes it to a file.
"""

import copy
import gc
import statistics
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import harness
import torch

from qae.policies import Policy, load_policy
from qae.sampling import make_engine
from qae.tasks import make_task
from qae.trainer.batch import Batch, collect
from qae.trainer.config import TrainConfig
from qae.trainer.loop import advantages_of, rows_of
from qae.trainer.step import Learner, Rows

FORMS = {
    "padded": (False, "algorithm.skip_zero_advantage=off"),
    "shared": (True, "algorithm.skip_zero_advantage=off"),
    "shared_skip": (True, "algorithm.skip_zero_advantage=auto"),
}


class Timed:
    """One update phase with the optimiser timed apart and the first gradient kept."""

    def __init__(self, config: TrainConfig, policy: Policy, share_prompts: bool) -> None:
        self.learner = Learner(config, policy, share_prompts=share_prompts)
        self.optimizer_seconds = 0.0
        self.first_gradient: torch.Tensor | None = None
        self.operations = 0.0
        self._step, self._pack = self.learner.optimizer.step, self.learner._pack
        self.learner.optimizer.step = self.step  # type: ignore[method-assign]
        self.learner._pack = self.pack  # type: ignore[method-assign]
        head: Any = policy.model.get_output_embeddings()
        tied = head.weight is policy.model.get_input_embeddings().weight
        self._head = head.weight.numel()
        self._layers = sum(p.numel() for p in policy.model.parameters()) - self._head * (1 if tied else 2)

    def step(self) -> Any:
        """The optimiser's step, timed."""
        if self.first_gradient is None:
            self.first_gradient = torch.cat([p.grad.flatten() for p in self.learner.parameters if p.grad is not None])
        started = perf_counter()
        self._step()
        self.optimizer_seconds += perf_counter() - started

    def pack(self, rows: Rows, micro: Any) -> Any:
        """A micro-batch, counted if it is differentiated."""
        packed = self._pack(rows, micro)
        if torch.is_grad_enabled():
            self.operations += 6 * (self._layers * packed.input_ids.numel() + self._head * packed.targets.numel())
        return packed

    def run(self, rows: Rows) -> dict[str, float]:
        """One update phase: seconds and what was kept."""
        self.optimizer_seconds = 0.0
        stats = self.learner.learn(rows, step=1)
        return {
            "forward_backward_seconds": stats.seconds - self.optimizer_seconds,
            "gflops": self.operations / (stats.seconds - self.optimizer_seconds) / 1e9,
            "optimizer_seconds": self.optimizer_seconds,
            "rows_kept_frac": stats.rows_kept / stats.rows,
            "completion_tokens_kept_frac": stats.tokens_kept / stats.tokens,
        }


def sample(config: TrainConfig, policy: Policy) -> Batch:
    """One batch of the run's first step."""
    task = make_task(config.task.model_dump(), config.seed)
    engine = make_engine(config.rollout.engine, policy)
    engine.refresh()
    return collect(config, policy, task, engine, step=1, cursor=0, phase=lambda *_: None)


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = harness.parser(__doc__)
    parser.add_argument("recipe", nargs="?", default="stage")
    parser.add_argument("overrides", nargs="*", help="key=value, as for `qae train`")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    # Gradients are compared as they are: clipping would hide a factor.
    base = ("update.behaviour_logprobs=sampler", "update.max_grad_norm=1e9", *args.overrides)
    config = TrainConfig.load(args.recipe, *base)
    policy = load_policy(config.policy.path, dtype=config.policy.dtype, device=config.policy.device)
    batch = sample(config, policy)
    rows = rows_of(policy, batch.groups, advantages_of(config, batch.groups))
    kept = [i for i, a in enumerate(rows.advantages.tolist()) if a != 0]
    everyone = range(len(rows.completions))

    seconds: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
    gradients: dict[str, torch.Tensor] = {}
    for alternation in range(args.alternations + 1):  # the first is a warm-up
        for form, (share_prompts, skip) in FORMS.items():
            own = replace(policy, model=copy.deepcopy(policy.model))
            timed = Timed(TrainConfig.load(args.recipe, *base, skip), own, share_prompts)
            found = timed.run(rows)
            if alternation:
                seconds[form].append(found)
            elif timed.first_gradient is not None:
                gradients[form] = timed.first_gradient
            # The wrapped optimiser refers to itself: without this all policies and moments stay until memory ends.
            del own, timed
            gc.collect()

    medians = {
        form: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for form, runs in seconds.items()
    }

    def ratio(slow: str, fast: str) -> float:
        pairs = zip(seconds[slow], seconds[fast], strict=True)
        key = "forward_backward_seconds"
        return statistics.median(a[key] / b[key] for a, b in pairs)

    width = policy.model.config.get_text_config().hidden_size
    rate = harness.matrix_gflops(policy.compute_dtype, rows=512, inner=width, outer=4 * width)
    settings = config.model_dump(mode="json")
    settings["policy"]["path"] = Path(config.policy.path).name  # a result names no directory of a machine
    result = {
        "benchmark": "update",
        "policy": Path(config.policy.path).name,
        "compute_dtype": str(policy.compute_dtype).removeprefix("torch."),
        "config": settings,
        "environment": harness.environment("qae", "torch", "transformers"),
        "threads": torch.get_num_threads(),
        "groups": len(batch.groups),
        "completions": len(rows.completions),
        "medians": medians,
        "matrix_gflops": rate,
        "of_matrix_rate": {form: found["gflops"] / rate for form, found in medians.items()},
        "padded_over_shared": ratio("padded", "shared"),
        "shared_over_shared_skip": ratio("shared", "shared_skip"),
        "padded_over_shared_skip": ratio("padded", "shared_skip"),
        "work_bound": rows.tokens(kept) / rows.tokens(everyone),
        "gradient_difference": {
            form: float((g - gradients["padded"]).norm() / gradients["padded"].norm()) for form, g in gradients.items()
        },
        "alternations": args.alternations,
    }
    harness.finish(result, args.out)


if __name__ == "__main__":
    main()
