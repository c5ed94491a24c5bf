"""Answers a second of the math grader, beside math-verify called in this process.

Three sets: numbers (fractions, decimals, integers, thousands), formulas (every one needs computer algebra), and a mix
of nine numbers to one hostile answer. Completions are long, as a model's are. math-verify grades the first two sets
with its time-outs off, as one must in a thread; it cannot be given the third, which hangs it. Starting the workers is
not counted. Prints one JSON object; `--out` also writes it to a file.
"""

import argparse
import json
import os
import platform
import random
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path

from qae.rewards import MathGrader

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
REASONING = "First we look at the numbers 12 and 7, and then we add them up, which gives 19. " * 20


def numbers(count: int, rng: random.Random) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for _ in range(count):
        value, wrong = rng.randint(-10_000, 10_000), rng.random() < 0.5
        forms = [f"{value}", f"{value}.0", f"{value:,}", rf"\frac{{{2 * value}}}{{2}}", rf"{value}\text{{ cm}}"]
        pairs.append((rf"{REASONING}So the answer is $\boxed{{{rng.choice(forms)}}}$.", str(value + wrong)))
    return pairs


def formulas(count: int, rng: random.Random) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for _ in range(count):
        a, b, c = (rng.randint(2, 99) for _ in range(3))
        gold, answer = rng.choice(
            [
                (rf"\frac{{{a}\sqrt{{{b}}}}}{{{c}}}", rf"\frac{{{a}}}{{{c}}}\sqrt{{{b}}}"),
                (f"{a}x^2+{b}x+{c}", f"{c}+x({a}x+{b})"),
                (rf"{a}\pi+{b}", rf"{b}+\pi \cdot {a}"),
            ]
        )
        pairs.append((rf"{REASONING}\boxed{{{answer}}}", gold if rng.random() < 0.5 else gold + "+1"))
    return pairs


def mixed(count: int, rng: random.Random) -> list[tuple[str, str]]:
    from rewards.hostile import hostile_pairs

    pairs = numbers(count - count // 10, rng) + hostile_pairs(count // 10, seed=7)
    rng.shuffle(pairs)
    return pairs


def by_qae(pairs: list[tuple[str, str]], workers: int) -> dict:
    with MathGrader(workers=workers) as grader:
        grader.grade([(r"\boxed{\sqrt{8}}", r"2\sqrt{2}"), (r"\boxed{\sqrt{12}}", r"2\sqrt{3}")] * workers)
        grader.counts.clear()
        begin, cpu = time.perf_counter(), time.process_time()
        grader.grade(pairs)
        seconds, own = time.perf_counter() - begin, time.process_time() - cpu
        verdicts = dict(grader.counts)
    return {
        "answers": len(pairs),
        "seconds": round(seconds, 3),
        "answers_a_second": round(len(pairs) / seconds, 1),
        "own_cpu_seconds": round(own, 3),
        "verdicts": verdicts,
    }


def by_math_verify(pairs: list[tuple[str, str]]) -> dict:
    from math_verify import parse, verify

    right = 0
    begin = time.perf_counter()
    for completion, gold in pairs:
        expected = parse(f"${gold}$", parsing_timeout=None)
        right += verify(expected, parse(completion, parsing_timeout=None), timeout_seconds=None)
    seconds = time.perf_counter() - begin
    return {
        "answers": len(pairs),
        "seconds": round(seconds, 3),
        "answers_a_second": round(len(pairs) / seconds, 1),
        "correct": right,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--answers", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rng = random.Random(0)
    sets = {
        "numbers": numbers(options.answers, rng),
        "formulas": formulas(options.answers // 5, rng),
        "mixed": mixed(options.answers, rng),
    }
    result: dict = {
        "benchmark": "grading",
        "config": {"answers": options.answers, "workers": options.workers},
        "machine": {
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "platform": platform.platform(),
            "python": platform.python_version(),
        },
        "versions": {name: version(name) for name in ("qae", "math-verify", "sympy", "pebble")},
    }
    for name, pairs in sets.items():
        result[name] = {"qae": by_qae(pairs, options.workers)}
        if name != "mixed":
            compared = pairs[: 200 if name == "numbers" else 100]
            result[name]["math_verify"] = by_math_verify(compared)
            result[name]["ratio"] = round(
                result[name]["qae"]["answers_a_second"] / result[name]["math_verify"]["answers_a_second"], 1
            )
    result["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
