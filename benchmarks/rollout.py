"""Sampling completions: the built-in engine against Hugging Face's `generate`, and vLLM where it is installed.

Same weights, dtype, prompts, number of completions, end tokens, full-vocabulary sampling at temperature 1. Three
workloads on SmolLM2-135M-Instruct:

    few_shot    32 prompts of four solved additions x 8, at most 8 tokens, a newline ends
    words       8 prompts of step.py's work of that name (arithmetic in words, chat template) x 8, at most 128
                tokens, EOS ends
    words_full  8 longer questions x 8, and nothing ends before 128 tokens: no gain from dropping finished rows

Sides alternate in one process (vLLM in a child, `--vllm /path/to/its/python`). The random numbers of the sides differ,
so completions differ in length; seconds, completions a second and tokens a second are given. A ratio
`qae_over_generate/...` is how many times better qae is, pair by pair, then the median. Prints one JSON object;
`--out` also writes it to a file.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

SHOTS = "3 + 5 = 8\n12 + 7 = 19\n48 + 36 = 84\n125 + 310 = 435\n"
QUESTIONS = (
    "Tom has {a} apples and buys {b} more. He eats {c}. How many apples are left?",
    "A shelf holds {a} books. {b} are added and {c} are lent out. How many remain?",
    "Anna walks {a} steps, then {b}, then goes back {c}. How far is she from the start?",
    "A tank has {a} litres. {b} litres flow in and {c} leak out. How much water is in it?",
)
# completions, tokens
Counts = tuple[int, int]


@dataclass(frozen=True)
class Work:
    """Prompts and limits that every side gets."""

    prompts: list[list[int]]
    samples: int
    max_tokens: int
    end_ids: tuple[int, ...]


def make_works(tokenizer: Any, scale: float) -> dict[str, Work]:
    from qae.tasks import make_task

    def count(n: int) -> int:
        return max(1, round(n * scale))

    newline = tokenizer("\n", add_special_tokens=False).input_ids[0]
    few_shot = [
        tokenizer(f"{SHOTS}{11 + 37 * i % 88} + {12 + 53 * i % 87} =", add_special_tokens=False).input_ids
        for i in range(count(32))
    ]
    task = make_task({"name": "worded_arithmetic"}, 0)
    words = [task.encode(task.train_item(i), tokenizer) for i in range(count(8))]
    full = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": QUESTIONS[i % 4].format(a=20 + 7 * i, b=11 + i, c=3 + i)}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for i in range(count(8))
    ]
    eos = tokenizer.eos_token_id
    return {
        "few_shot": Work(few_shot, 8, 8, (eos, newline)),
        "words": Work(words, 8, 128, (eos,)),
        "words_full": Work(full, 8, 128, ()),
    }


def qae_side(policy: Any) -> Callable[[Work, int], Counts]:
    """The built-in engine; copying the weights, which every training step has to do, is inside the time."""
    from qae.sampling import SamplingParams, make_engine
    from qae.sampling.rng import row_key

    def run(work: Work, seed: int) -> Counts:
        engine = make_engine("builtin", replace(policy, eos_ids=work.end_ids))
        engine.refresh()
        rows = [i for i in range(len(work.prompts)) for _ in range(work.samples)]
        keys = [row_key(seed, row) for row in range(len(rows))]
        made = engine.generate(work.prompts, rows, keys, SamplingParams(max_tokens=work.max_tokens))
        return len(made), sum(len(c.token_ids) for c in made)

    return run


def generate_side(model: Any, pad_id: int) -> Callable[[Work, int], Counts]:
    """Hugging Face: prompts padded on the left, `num_return_sequences`."""
    import torch

    def run(work: Work, seed: int) -> Counts:
        torch.manual_seed(seed)
        longest = max(map(len, work.prompts))
        ids = torch.tensor([[pad_id] * (longest - len(p)) + p for p in work.prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in work.prompts])
        ends = {"eos_token_id": list(work.end_ids)} if work.end_ids else {"min_new_tokens": work.max_tokens}
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=work.max_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=work.samples,
            pad_token_id=pad_id,
            **ends,
        )
        new = out[:, longest:]
        ended = torch.isin(new, torch.tensor(work.end_ids)).int()
        return len(new), int((ended.cumsum(1) - ended == 0).sum())

    return run


class VllmSide:
    """vLLM in a child process of its own environment: it imports nothing of ours."""

    def __init__(self, python: str, model: str, dtype: str, threads: int) -> None:
        command = [python, str(Path(__file__).resolve()), "--serve-vllm", model, "--dtype", dtype]
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": str(threads)}
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, env=environment
        )
        self.version = self._answer()["version"]

    def __call__(self, work: Work, seed: int) -> Counts:
        """One batch."""
        assert self._child.stdin is not None
        request = {"prompts": work.prompts, "samples": work.samples, "seed": seed}
        self._child.stdin.write(json.dumps(request | {"tokens": work.max_tokens, "ends": work.end_ids}) + "\n")
        self._child.stdin.flush()
        answer = self._answer()
        return answer["completions"], answer["tokens"]

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise RuntimeError("the vLLM process ended: its messages are above")


def serve_vllm(model: str, dtype: str) -> None:
    """The child: one request a line."""
    import vllm  # type: ignore[import-not-found]

    llm = vllm.LLM(model=model, dtype=dtype, max_model_len=512, enable_prefix_caching=True)
    print("@" + json.dumps({"version": vllm.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        params = vllm.SamplingParams(
            n=request["samples"],
            max_tokens=request["tokens"],
            temperature=1.0,
            top_k=0,
            seed=None,
            ignore_eos=True,
            stop_token_ids=request["ends"],
            logprobs=0,
            detokenize=False,
        )
        outputs = llm.generate([{"prompt_token_ids": p} for p in request["prompts"]], params, use_tqdm=False)
        made = [completion for output in outputs for completion in output.outputs]
        tokens = sum(len(completion.token_ids) for completion in made)
        print("@" + json.dumps({"completions": len(made), "tokens": tokens}), flush=True)


def measure(sides: dict[str, Callable[[Work, int], Counts]], work: Work, alternations: int) -> dict[str, Any]:
    """Alternate the sides; medians of each and of the ratios of neighbours."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for alternation in range(alternations + 1):  # the first is a warm-up
        for name, side in sides.items():
            started, cpu_started = perf_counter(), process_time()
            completions, tokens = side(work, alternation)
            seconds, cpu_seconds = perf_counter() - started, process_time() - cpu_started
            if alternation:
                found[name].append(
                    {
                        "seconds": seconds,
                        "cpu_seconds": cpu_seconds,
                        "completions_per_second": completions / seconds,
                        "tokens_per_second": tokens / seconds,
                        "tokens": tokens,
                    }
                )
    result: dict[str, Any] = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()
    }
    for other in found:
        if other == "qae":
            continue
        # Processor time tells more than wall time when other jobs hold the cores; a child's is not seen.
        for unit in ("completions_per_second", "tokens_per_second", *([] if other == "vllm" else ["cpu_seconds"])):
            pairs = zip(found["qae"], found[other], strict=True)
            ratios = [b[unit] / a[unit] if unit == "cpu_seconds" else a[unit] / b[unit] for a, b in pairs]
            result[f"qae_over_{other}/{unit}"] = statistics.median(ratios)
            result[f"qae_over_{other}/{unit}/range"] = [min(ratios), max(ratios)]
    return result


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="smollm2", help="as policy.path in a config")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--works", nargs="+", default=["few_shot", "words", "words_full"])
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of prompts")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter of an environment that has vLLM")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve-vllm", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_vllm:
        serve_vllm(args.serve_vllm, args.dtype)
        return

    import torch
    from transformers import AutoModelForCausalLM

    from qae.policies import load_policy
    from qae.policies.source import resolve_source

    torch.set_num_threads(args.threads)
    policy = load_policy(args.policy, dtype=args.dtype, device="cpu")
    source = resolve_source(args.policy)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, args.dtype)).eval()
    sides: dict[str, Callable[[Work, int], Counts]] = {
        "qae": qae_side(policy),
        "generate": generate_side(model, policy.pad_id),
    }
    versions = {name: importlib.metadata.version(name) for name in ("qae", "torch", "transformers")}
    if args.vllm:
        sides["vllm"] = vllm = VllmSide(args.vllm, str(source), args.dtype, args.threads)
        versions["vllm"] = vllm.version
    load_before = os.getloadavg()[0]
    works = make_works(policy.tokenizer, args.scale)
    results = {name: measure(sides, works[name], args.alternations) for name in args.works}
    if args.vllm:
        vllm.close()
    report = {
        "benchmark": "rollout",
        "policy": Path(args.policy).name,  # a result names no directory of a machine
        "dtype": args.dtype,
        "config": {
            name: {
                "prompts": len(works[name].prompts),
                "prompt_tokens": [len(p) for p in works[name].prompts],
                "samples": works[name].samples,
                "max_tokens": works[name].max_tokens,
            }
            for name in args.works
        },
        "alternations": args.alternations,
        "threads": args.threads,
        "versions": versions | {"python": platform.python_version()},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "results": results,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
