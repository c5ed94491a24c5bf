"""Would grading one half of a batch while the other half is sampled be faster than one after the other?

Samples the first rollout batch of a recipe whole and in two halves of its prompts, and grades as many completions:
numbers (every built-in task, AIME, GSM8K) and formulas, all different, which is the worst case (a group's answers
repeat). Prints one JSON object with the seconds of both ways; the overlapped ones are what a perfect overlap on idle
cores would take.
"""

import argparse
import json
import random
import time

from grading import formulas, numbers

from qae.policies import load_policy
from qae.rewards import MathGrader
from qae.sampling import SamplingParams, make_engine
from qae.sampling.rng import row_key
from qae.tasks import make_task
from qae.trainer.config import TrainConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", nargs="?", default="smollm2-addition")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    config = TrainConfig.load(options.recipe)
    policy = load_policy(config.policy.path, dtype=config.policy.dtype)
    task = make_task(config.task.model_dump(), config.seed)
    engine = make_engine("builtin", policy)
    engine.refresh()
    items = [task.train_item(i) for i in range(config.rollout.prompts)]
    size = config.rollout.group_size
    params = SamplingParams(max_tokens=config.rollout.max_tokens, stop=task.stop)

    def sample(first: int, last: int) -> float:
        began = time.perf_counter()
        engine.generate(
            [task.encode(item, policy.tokenizer) for item in items[first:last]],
            [i for i in range(last - first) for _ in range(size)],
            [row_key(0, i, j) for i in range(first, last) for j in range(size)],
            params,
        )
        return time.perf_counter() - began

    def grade(pairs: list[tuple[str, str]]) -> float:
        with MathGrader() as grader:
            grader.grade([(r"\boxed{\sqrt{8}}", r"2\sqrt{2}"), (r"\boxed{\sqrt{12}}", r"2\sqrt{3}")])
            began = time.perf_counter()
            grader.grade(pairs)
            return time.perf_counter() - began

    n, half = len(items), len(items) // 2
    sample(0, n)
    whole = min(sample(0, n) for _ in range(options.repeats))
    halves = [min(sample(*part) for _ in range(options.repeats)) for part in ((0, half), (half, n))]
    result = {
        "recipe": options.recipe,
        "completions": n * size,
        "sample_whole_seconds": round(whole, 3),
        "sample_halves_seconds": [round(s, 3) for s in halves],
    }
    for name, make in (("numbers", numbers), ("formulas", formulas)):
        seconds = grade(make(n * size, random.Random(0)))
        overlapped = halves[0] + max(halves[1], seconds / 2) + seconds / 2
        result[name] = {
            "grade_seconds": round(seconds, 4),
            "one_after_the_other_seconds": round(whole + seconds, 3),
            "overlapped_seconds": round(overlapped, 3),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
