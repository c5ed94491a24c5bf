"""What a step costs against group size, completion length and vocabulary: which exponent, and where it bends.

A small Llama-shaped model with random weights samples completions of exactly the length asked for (no token ends
them) and is updated on all of them, one mini-batch, every row with an advantage. One size moves at a time, the others
stay at their base. `sample` and `update` (forward, backward, AdamW) are timed apart. Sizes alternate: every pass goes
through all of them, and the median over passes counts.

`exponent` is the slope of log seconds against log size by least squares, `local` the slopes between neighbours. Of a
cost a + b x the slope goes from 0 to 1, and is 1/2 at x = a / b; an x^2 term takes it on to 2. `bends_at` is the size
around which the local slope changes most, with the slopes before and after.

Prints one JSON object; `--out` also writes it to a file.
"""

import math
import random
import statistics
from itertools import pairwise
from time import perf_counter
from typing import Any

import harness
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from qae.policies.policy import Policy
from qae.sampling import SamplingParams, make_engine
from qae.sampling.rng import row_key
from qae.trainer.config import TrainConfig
from qae.trainer.step import Learner, Rows

BASE = {"group_size": 8, "completion_tokens": 32, "vocabulary": 1024}
SIZES = {
    "group_size": [4, 8, 16, 32, 64],
    "completion_tokens": [16, 32, 64, 128, 256],
    "vocabulary": [1024, 4096, 16384, 65536],
}


def random_policy(vocabulary: int, width: int, layers: int) -> Policy:
    """A policy that no token ends, with a tokenizer of one word a token."""
    words = {f"w{i} ": i for i in range(vocabulary)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0 ")), pad_token="w0 "
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Policy(
        model=AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval(),
        tokenizer=tokenizer,
        eos_ids=(),
        pad_id=0,
        context_tokens=1024,
        name="random",
        compute_dtype=torch.float32,
        device=torch.device("cpu"),
    )


class Step:
    """One size: its policy, prompts and learner."""

    def __init__(self, sizes: dict[str, int], args: Any) -> None:
        self.sizes = sizes
        self.policy = random_policy(sizes["vocabulary"], args.width, args.layers)
        rng = random.Random(0)
        prefix = [rng.randrange(sizes["vocabulary"]) for _ in range(args.prompt_tokens // 2)]
        self.prompts = [
            prefix + [rng.randrange(sizes["vocabulary"]) for _ in range(args.prompt_tokens - len(prefix))]
            for _ in range(args.prompts)
        ]
        self.group = [g for g in range(args.prompts) for _ in range(sizes["group_size"])]
        self.engine = make_engine("builtin", self.policy)
        self.engine.refresh()
        config = TrainConfig.load(
            "tiny",
            "update.minibatches=1",
            "update.behaviour_logprobs=sampler",
            f"rollout.max_tokens={sizes['completion_tokens']}",
        )
        self.learner = Learner(config, self.policy)

    def run(self, seed: int) -> tuple[float, float]:
        """Seconds of sampling and of updating."""
        tokens = self.sizes["completion_tokens"]
        keys = [row_key(seed, row) for row in range(len(self.group))]
        started = perf_counter()
        made = self.engine.generate(self.prompts, self.group, keys, SamplingParams(max_tokens=tokens))
        sampled = perf_counter()
        if any(len(c.token_ids) != tokens for c in made):
            raise RuntimeError(f"completions were to be {tokens} tokens long and are not: their cost means nothing")
        rows = Rows(
            prompts=self.prompts,
            group=self.group,
            completions=[c.token_ids for c in made],
            behaviour_logprobs=torch.stack([c.logprobs for c in made]),
            advantages=torch.tensor([1.0 if i % 2 else -1.0 for i in range(len(made))]),
            mask=torch.ones(len(made), tokens, dtype=torch.bool),
        )
        before = perf_counter()
        self.learner.learn(rows, step=seed + 1)
        return sampled - started, perf_counter() - before


def slopes(sizes: list[int], seconds: list[float]) -> dict[str, Any]:
    """The exponent of a power law through the points, and the change of its slope along them."""
    x, y = [math.log(s) for s in sizes], [math.log(s) for s in seconds]
    mx, my = statistics.mean(x), statistics.mean(y)
    exponent = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
    local = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(zip(x, y, strict=True))]
    bend = max(range(1, len(local)), key=lambda i: abs(local[i] - local[i - 1])) if len(local) > 1 else None
    return {
        "sizes": sizes,
        "seconds": seconds,
        "exponent": exponent,
        "local": local,
        "bends_at": None
        if bend is None
        else {"size": sizes[bend], "slope_before": local[bend - 1], "slope_after": local[bend]},
    }


def measure(axis: str, sizes: list[int], args: Any) -> dict[str, Any]:
    """Median seconds of every size of one axis, and their slopes."""
    steps = [Step(BASE | {axis: size}, args) for size in sizes]
    seconds: list[list[tuple[float, float]]] = [[] for _ in sizes]
    for alternation in range(args.alternations + 1):  # the first is a warm-up
        for step, found in zip(steps, seconds, strict=True):
            taken = step.run(alternation)
            if alternation:
                found.append(taken)
    return {
        name: slopes(sizes, [statistics.median(one[i] for one in found) for found in seconds])
        for i, name in enumerate(("sample", "update"))
    }


def main(argv: list[str] | None = None) -> None:
    """Parse the arguments, measure, print."""
    parser = harness.parser(__doc__)
    for axis, sizes in SIZES.items():
        parser.add_argument(f"--{axis.replace('_', '-')}", type=int, nargs="*", default=sizes)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    started = perf_counter()
    axes = {axis: measure(axis, getattr(args, axis), args) for axis in SIZES if getattr(args, axis)}
    result = {
        "benchmark": "scaling",
        **harness.environment("qae", "torch", "transformers"),
        "threads": args.threads,
        "config": {
            "base": BASE,
            "prompts": args.prompts,
            "prompt_tokens": args.prompt_tokens,
            "width": args.width,
            "layers": args.layers,
            "alternations": args.alternations,
        },
        "axes": axes,
        "seconds": perf_counter() - started,
    }
    harness.finish(result, args.out)


if __name__ == "__main__":
    main()
