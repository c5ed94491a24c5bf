"""Whole training steps: `qae train` against TRL's GRPOTrainer on the same machine.

A step is one rollout batch and its updates: sample 32 prompts x 8, grade, 8 mini-batches, 8 optimiser steps. Same
weights (SmolLM2-135M-Instruct), prompts in the same order, token limits, end tokens, bfloat16 products over fp32
weights, AdamW, Clip-Higher .2/.28, token-mean, no KL, temperature 1 over the whole vocabulary. Four sides:

    trl          GRPOTrainer, loss_type dapo, no gradient checkpointing
    trl_skip     the same with qae's QuantileGRPOTrainer: rows with advantage 0 are left out of the loss
    qae_dense    `qae train` with the mean as baseline, every row in the update: equal work, done differently
    qae          `qae train` with QAE at K = .4, rows with advantage 0 left out

Two works: `few_shot`, sums after four solved lines, at most 8 tokens, a newline ends; `words`, arithmetic in words
without examples through the chat template, at most 128 tokens.

Every side is a process of its own that waits for its turn, so they alternate step by step; only one computes at a time,
and gives back the memory that it freed before the next one's turn: TRL's steps of `words` take 10 GB each.
The first step of each (allocations, thread pools) is not counted, unless `--warmup 0`. Sides draw different random
numbers, so lengths and the share of rows with advantage 0 differ from step to step: both are given. A ratio
`trl_over_qae` is how many times longer TRL takes, pair by pair, then the median.

Run it with an environment that has trl 1.16 and qae (`make test-host-trl` makes .venv-trl), or give `--trl-python`.
Prints one JSON object; `--out` also writes it to a file, after every alternation. Alternations take minutes: where that
file is there already, with the same configuration and versions, the new ones are added to it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import harness

SIDES = ("trl", "trl_skip", "qae_dense", "qae")
TASKS: dict[str, dict[str, Any]] = {
    "few_shot": {"name": "few_shot_arithmetic", "levels": {"add2": 1}},
    "words": {"name": "worded_arithmetic"},
}
MAX_TOKENS = {"few_shot": 8, "words": 128}
GROUP, MINIBATCHES = 8, 8
LR = 1e-6


def turns() -> Iterator[None]:
    """One item for each line that the parent sends; ends with the input."""
    for _ in sys.stdin:
        yield


def say(**values: Any) -> None:
    """Answer the parent."""
    print("@" + json.dumps(values), flush=True)


def run_ours(side: str, work: str, prompts: int, steps: int, policy: str, threads: int) -> None:
    """`qae train`, stopped at every step until it is told to go on."""
    from qae.trainer.config import TrainConfig
    from qae.trainer.loop import train

    mean = ("algorithm.advantage=mean", "algorithm.skip_zero_advantage=off") if side == "qae_dense" else ()
    config = TrainConfig.load(
        {
            "name": side,
            "steps": steps,
            "threads": threads,
            "policy": {"path": policy, "dtype": "bfloat16"},
            "task": TASKS[work],
            "algorithm": {
                "preset": "dapo",
                "advantage": {"k": 0.4},
                "dynamic_sampling": {"enabled": False},
                "overlong": {"max_tokens": None, "buffer_tokens": 0},
            },
            "rollout": {"prompts": prompts, "group_size": GROUP, "max_tokens": MAX_TOKENS[work]},
            "update": {"minibatches": MINIBATCHES, "lr": LR, "warmup": 0, "tokens_per_microbatch": 4096},
            "eval": {"every": 0, "problems": 0},
            "checkpoint": {"every": steps, "keep": 1},
        },
        *mean,
    )

    class Turns:
        def __init__(self) -> None:
            self.turns = turns()
            self.began = 0.0

        def event(self, name: str, /, **data: Any) -> None:
            if name == "step":
                m = data["metrics"]
                say(
                    seconds=perf_counter() - self.began,
                    sample=m["seconds/sample"],
                    tokens=m["tokens/sampled"],
                    zero_frac=m["advantage/zero_frac"],
                    reward=m["reward"],
                )
            if name in ("start", "step"):
                harness.give_back()
                if next(self.turns, "end") == "end":
                    os._exit(0)
                self.began = perf_counter()

    with tempfile.TemporaryDirectory() as directory:
        train(config, run_dir=Path(directory) / "run", observer=Turns())


def run_trl(side: str, work: str, prompts: int, steps: int, policy: str, threads: int) -> None:
    """GRPOTrainer, stopped after every MINIBATCHES optimiser steps until it is told to go on."""
    import logging

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from qae.integrations.trl import QuantileGRPOTrainer
    from qae.policies.source import resolve_source
    from qae.tasks import make_task

    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    task = make_task(TASKS[work], 0)
    items = [task.train_item(i) for i in range(prompts * steps)]
    by_prompt = {json.dumps(item.prompt): item for item in items}
    source = resolve_source(policy)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    ends = [tokenizer.eos_token_id]
    if task.stop:
        ends += tokenizer(task.stop[0], add_special_tokens=False).input_ids
    model.generation_config.eos_token_id = ends

    def correct(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        """The task's own grade."""
        texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
        pairs = [(by_prompt[json.dumps(p)], text) for p, text in zip(prompts, texts, strict=True)]
        return [grade.reward or 0.0 for grade in task.grade(pairs)]

    class Turns(TrainerCallback):
        def __init__(self) -> None:
            self.turns = turns()
            self.began = 0.0

        def go_on(self) -> None:
            harness.give_back()
            if next(self.turns, "end") == "end":
                os._exit(0)
            self.began = perf_counter()

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.go_on()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % MINIBATCHES == 0:
                say(seconds=perf_counter() - self.began, **seen)
                self.go_on()

    seen: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        args = GRPOConfig(
            output_dir=directory,
            use_cpu=True,
            bf16=True,
            seed=0,
            max_steps=steps * MINIBATCHES,
            per_device_train_batch_size=prompts * GROUP // MINIBATCHES,
            steps_per_generation=MINIBATCHES,
            gradient_accumulation_steps=1,
            num_generations=GROUP,
            max_completion_length=MAX_TOKENS[work],
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            loss_type="dapo",
            epsilon=0.2,
            epsilon_high=0.28,
            beta=0.0,
            learning_rate=LR,
            lr_scheduler_type="constant",
            weight_decay=0.1,
            max_grad_norm=1.0,
            gradient_checkpointing=False,
            shuffle_dataset=False,
            save_strategy="no",
            logging_steps=MINIBATCHES,
            report_to="none",
            disable_tqdm=True,
        )
        more = {"quantile_k": 0.4, "entropy_rows": "kept"} if side == "trl_skip" else {}
        trainer: Any = (QuantileGRPOTrainer if more else GRPOTrainer)(
            model=model,
            reward_funcs=correct,
            args=args,
            train_dataset=Dataset.from_list([{"prompt": _as_list(item.prompt)} for item in items]),
            processing_class=tokenizer,
            callbacks=[turn := Turns()],
            **more,
        )
        generate = trainer._generate_and_score_completions

        def timed(inputs: Any) -> Any:
            began = perf_counter()
            made = generate(inputs)
            seen.update(
                sample=perf_counter() - began,
                tokens=int(made["completion_mask"].sum()),
                zero_frac=float((made["advantages"] == 0).float().mean()),
                reward=trainer._metrics["train"]["reward"][-1],
            )
            return made

        trainer._generate_and_score_completions = timed
        assert turn in trainer.callback_handler.callbacks
        trainer.train()


def _as_list(prompt: Any) -> Any:
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]


class Side:
    """A child process that does one step a turn."""

    def __init__(self, name: str, python: str, args: argparse.Namespace, work: str) -> None:
        steps = args.alternations + args.warmup
        command = [python, __file__, "--side", name, "--works", work, "--prompts", str(args.prompts)]
        command += ["--alternations", str(steps), "--policy", args.policy, "--threads", str(args.threads)]
        self.name = name
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(args.threads)},
        )  # fmt: skip

    def step(self) -> dict[str, float]:
        """One step."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        for line in self._child.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise RuntimeError(f"the process of {self.name} ended: its messages are above")

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


# side -> its steps, one an alternation
Steps = dict[str, list[dict[str, float]]]


def measure(args: argparse.Namespace, work: str) -> Iterator[Steps]:
    """Alternate the sides; what each did, alternation by alternation."""
    sides = [Side(name, args.trl_python if name.startswith("trl") else sys.executable, args, work) for name in SIDES]
    for alternation in range(args.alternations + args.warmup):
        found: Steps = {}
        for side in sides:
            found[side.name] = [side.step()]
            print(f"{work} {alternation} {side.name}: {json.dumps(found[side.name][0])}", file=sys.stderr, flush=True)
        if alternation >= args.warmup:
            yield found
    for side in sides:
        side.close()


def summary(found: Steps) -> dict[str, Any]:
    """The steps themselves, spreads, and ratios of neighbours."""
    seconds = {name: [step["seconds"] for step in steps] for name, steps in found.items()}
    pairs = [("trl", "trl_skip"), ("trl", "qae_dense"), ("trl", "qae"), ("trl_skip", "qae"), ("qae_dense", "qae")]
    return {
        "steps": found,
        "sides": {
            name: {key: harness.spread([step[key] for step in steps]) for key in steps[0]}
            for name, steps in found.items()
        },
        "ratios": {f"{a}_over_{b}": harness.ratios(seconds[a], seconds[b]) for a, b in pairs},
    }


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = harness.parser(__doc__)
    harness.add_trl(parser)
    parser.add_argument("--works", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=1, help="steps of each side that are not counted")
    parser.add_argument("--policy", default="smollm2", help="as policy.path in a config")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        run = run_trl if args.side.startswith("trl") else run_ours
        run(args.side, args.works[0], args.prompts, args.alternations, args.policy, args.threads)
        return
    if not args.trl_python:
        harness.skip("it needs TRL: give --trl-python or set TRL_PYTHON")
    environment = harness.environment("qae", "torch", "transformers")
    trl = subprocess.run(
        [args.trl_python, "-c", "from importlib.metadata import version; print(version('trl'), version('torch'))"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    result: dict[str, Any] = {
        "benchmark": "step",
        "policy": Path(args.policy).name,  # a result names no directory of a machine
        "config": {
            "prompts": args.prompts, "group_size": GROUP, "minibatches": MINIBATCHES, "max_tokens": MAX_TOKENS,
            "dtype": "bfloat16", "threads": args.threads,
        },
        "warmup": args.warmup,
        "environment": environment | {"trl": trl[0], "trl_torch": trl[1]},
    }  # fmt: skip
    kept = kept_steps(args.out, result)
    for work in args.works:
        for more in measure(args, work):
            before = kept.get(work, {})
            kept[work] = {side: [*before.get(side, []), *steps] for side, steps in more.items()}
            result["works"] = {name: summary(found) for name, found in kept.items()}
            if args.out:
                args.out.write_text(json.dumps(result, indent=1) + "\n")
    harness.finish(result, args.out)


def kept_steps(out: Path | None, now: dict[str, Any]) -> dict[str, Steps]:
    """The steps of an earlier call, work by work; nothing if there is no such file."""
    if out is None or not out.is_file():
        return {}
    before = json.loads(out.read_text())

    def settings(result: dict[str, Any]) -> list[Any]:
        kept = result["environment"]
        return [result["config"], result["policy"], result["warmup"], kept["versions"], kept["trl"], kept["trl_torch"]]

    if settings(before) != settings(now) or any("steps" not in found for found in before["works"].values()):
        raise SystemExit(f"{out} was made with another configuration or other versions: give another --out")
    return {work: found["steps"] for work, found in before["works"].items()}


if __name__ == "__main__":
    main()
