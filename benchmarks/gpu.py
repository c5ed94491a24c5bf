"""One prepared run for a CUDA machine: sampling, update, memory, gradients and attention, in under eight minutes.

Nothing is downloaded: the model has Qwen3-0.6B's shape and random weights, the policy that trains is the shipped tiny
one. Sections, each of which may fail without ending the others (`error` then stands in its place):

    attention  which of torch's attention backends take the update's masks and the sampler's, in bf16, with grouped
               keys, how fast, and how far from the computation in fp32
    sampling   tokens a second, ours against Hugging Face's `generate`, same weights and prompts, no token ends
    update     seconds and peak memory of one update, padded, shared, and shared with rows of advantage 0 left out
    gradients  fp32 without TF32: norm of the difference to the padded gradient over its norm, for each form
    training   a few steps of `qae train` on the tiny policy, with the peaks of its phases

`--device cpu --small` runs the same code in well under a minute, as a test does. Prints one JSON object; `--out` also
writes it to a file.
"""

import copy
import random
import statistics
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import harness
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

from qae.advantages import quantile_advantages
from qae.policies import Policy
from qae.records import read_metrics
from qae.sampling import SamplingParams, make_engine
from qae.sampling.rng import row_key
from qae.trainer.config import TrainConfig
from qae.trainer.loop import train
from qae.trainer.memory import phase_peak
from qae.trainer.step import Learner, Rows

QWEN3_06B = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
# prompts, group size, prompt tokens, of which common, completion tokens, tokens of a micro-batch
SIZES = {"full": (16, 16, 128, 64, 256, 8192), "small": (2, 8, 12, 6, 8, 4096)}
FORMS = {"padded": (False, "off"), "shared": (True, "off"), "shared_skip": (True, "auto")}
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)


class Bench:
    """Device, sizes, model and rows that the sections share."""

    def __init__(self, device: torch.device, small: bool, alternations: int) -> None:
        self.device, self.small, self.alternations = device, small, alternations
        self.shape = SMALL if small else QWEN3_06B
        prompts, self.group_size, length, common, self.tokens, self.budget = SIZES["small" if small else "full"]
        rng = random.Random(0)
        prefix = self._ids(rng, common)
        self.prompts = [prefix + self._ids(rng, length - common) for _ in range(prompts)]
        self.group = [g for g in range(prompts) for _ in range(self.group_size)]
        # A quarter to all of the tokens: a batch whose completions end at different places.
        self.completions = [self._ids(rng, rng.randint(self.tokens // 4, self.tokens)) for _ in self.group]
        rewards = [float(rng.random() < (g + 1) / (prompts + 1)) for g in self.group]
        self.advantages = quantile_advantages(torch.tensor(rewards), torch.tensor(self.group), k=0.4)

    def _ids(self, rng: random.Random, count: int) -> list[int]:
        return [rng.randrange(self.shape["vocab_size"]) for _ in range(count)]

    def policy(self, dtype: torch.dtype) -> Policy:
        """Random weights, always the same."""
        torch.manual_seed(0)
        config = Qwen3Config(
            **self.shape,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
        )
        tokenizer = Tokenizer(models.WordLevel({f"w{i} ": i for i in range(self.shape["vocab_size"])}, unk_token="w0 "))
        return Policy(
            model=AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval().to(self.device),
            tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0 "),
            eos_ids=(),
            pad_id=0,
            context_tokens=1024,
            name="random",
            compute_dtype=dtype,
            device=self.device,
        )

    def rows(self) -> Rows:
        """The batch as the update sees it."""
        lengths = torch.tensor([len(c) for c in self.completions])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        return Rows(
            prompts=self.prompts,
            group=self.group,
            completions=self.completions,
            behaviour_logprobs=torch.zeros(mask.shape, device=self.device),
            advantages=self.advantages.to(self.device),
            mask=mask.to(self.device),
        )

    def config(self, skip: str) -> TrainConfig:
        return TrainConfig.load(
            "tiny",
            f"algorithm.skip_zero_advantage={skip}",
            "update.minibatches=1",
            "update.behaviour_logprobs=recompute",
            f"update.tokens_per_microbatch={self.budget}",
            "update.max_grad_norm=1e9",  # clipping would hide a gradient that is off by a factor
            f"rollout.max_tokens={self.tokens}",
        )

    def wait(self) -> None:
        """Until the device has done everything that was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(self, function: Callable[[], Any]) -> float:
        self.wait()
        started = perf_counter()
        function()
        self.wait()
        return perf_counter() - started


def attention(bench: Bench) -> dict[str, Any]:
    """Backends on the shapes of the update's segments and of a prompt's prefill behind a prefix."""
    heads, keys, width = (bench.shape[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    length, prompt = bench.tokens, len(bench.prompts[0])
    generator = torch.Generator().manual_seed(0)
    rows = min(16, len(bench.group))

    def random_heads(count: int, tokens: int) -> Tensor:
        return torch.randn(rows, count, tokens, width, generator=generator).to(bench.device)

    query, key, value = (
        random_heads(h, n) for h, n in ((heads, length), (keys, prompt + length), (keys, prompt + length))
    )
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.cat([torch.ones(length, prompt, dtype=torch.bool), causal], 1).to(bench.device)
    mask = mask.expand(rows, 1, length, prompt + length)
    with sdpa_kernel(SDPBackend.MATH):
        exact = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)

    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The update's form: keys are shared by query heads."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keys repeated for each query head: what a backend without grouping needs."""
        k, v = (x.repeat_interleave(heads // keys, 1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    half = [x.bfloat16() for x in (query, key, value)]
    found: dict[str, Any] = {}
    for form in (grouped, repeated):
        for backends in (None, *BACKENDS):
            name = f"{form.__name__}/{'chosen' if backends is None else backends.name.lower()}"
            # Why a backend is refused is told as warnings.
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    found[name] = _time_attention(bench, form, half, exact, backends)
                except RuntimeError as error:
                    why = [str(error), *(str(one.message) for one in said)]
                    found[name] = {"works": False, "why": [line.partition("\n")[0] for line in why]}
    return found


def _time_attention(
    bench: Bench, form: Callable[..., Tensor], half: list[Tensor], exact: Tensor, backend: SDPBackend | None
) -> dict[str, Any]:
    leaves = [x.clone().requires_grad_() for x in half]

    def once() -> Tensor:
        out = form(*leaves)
        out.sum().backward()
        return out

    def run() -> list[float]:
        once()
        return [bench.timed(once) for _ in range(bench.alternations)]

    if backend is None:
        seconds, out = run(), form(*leaves)
    else:
        with sdpa_kernel(backend):
            seconds, out = run(), form(*leaves)
    error = float((out.detach().float() - exact).norm() / exact.norm())
    return {"works": True, "forward_backward_seconds": statistics.median(seconds), "relative_error": error}


def sampling(bench: Bench) -> dict[str, Any]:
    """Ours against `generate`, both in bf16 (fp32 in the small form), every completion of full length."""
    dtype = torch.float32 if bench.small else torch.bfloat16
    policy = bench.policy(dtype)
    plain: Any = copy.deepcopy(policy.model).to(dtype)
    engine = make_engine("builtin", policy)
    made: list[int] = []

    def ours() -> None:
        engine.refresh()
        keys = [row_key(len(made), row) for row in range(len(bench.group))]
        params = SamplingParams(max_tokens=bench.tokens)
        made.append(sum(len(c.token_ids) for c in engine.generate(bench.prompts, bench.group, keys, params)))

    ids = torch.tensor(bench.prompts, device=bench.device)

    def theirs() -> None:
        out = plain.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=bench.tokens,
            max_new_tokens=bench.tokens,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            num_return_sequences=bench.group_size,
            pad_token_id=0,
        )
        if out.shape != (len(bench.group), ids.shape[1] + bench.tokens):
            raise RuntimeError(f"generate returned {tuple(out.shape)}: the sides do not do the same work")

    seconds: dict[str, list[float]] = {"qae": [], "generate": []}
    peaks: dict[str, float | None] = {}
    for alternation in range(bench.alternations + 1):  # the first is a warm-up
        for name, side in (("qae", ours), ("generate", theirs)):
            with phase_peak(bench.device) as peak:
                taken = bench.timed(side)
            if alternation:
                seconds[name].append(taken)
                peaks[name] = peak.mb
    tokens = len(bench.group) * bench.tokens
    if set(made) != {tokens}:
        raise RuntimeError(f"ours sampled {sorted(set(made))} tokens, not {tokens}: the sides do not do the same work")
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "tokens": tokens,
        "seconds": {name: harness.spread(taken) for name, taken in seconds.items()},
        "tokens_per_second": {name: tokens / statistics.median(taken) for name, taken in seconds.items()},
        "generate_over_qae": harness.ratios(seconds["generate"], seconds["qae"]),
        "peak_mb": peaks,
    }


def update(bench: Bench) -> dict[str, Any]:
    """One update in each form, alternating; a peak above that of the state needs the state's size beside it."""
    policy = bench.policy(torch.float32 if bench.small else torch.bfloat16)
    learners = {form: Learner(bench.config(skip), policy, share_prompts=s) for form, (s, skip) in FORMS.items()}
    rows = bench.rows()
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    peaks: dict[str, float | None] = {}
    kept: dict[str, float] = {}
    for alternation in range(bench.alternations + 1):  # the first is a warm-up
        for form, learner in learners.items():
            with phase_peak(bench.device) as peak:
                started = perf_counter()
                stats = learner.learn(rows, step=1)
                bench.wait()
            kept[form] = stats.rows_kept / stats.rows
            if alternation:
                seconds[form].append(perf_counter() - started)
                peaks[form] = peak.mb
    parameters = sum(p.numel() for p in policy.model.parameters())
    return {
        "parameters": parameters,
        # One set of weights and gradients, and each form's own moments.
        "state_mb": parameters * (8 + 8 * len(FORMS)) / 2**20,
        "seconds": {form: harness.spread(taken) for form, taken in seconds.items()},
        "padded_over_shared": harness.ratios(seconds["padded"], seconds["shared"]),
        "padded_over_shared_skip": harness.ratios(seconds["padded"], seconds["shared_skip"]),
        "rows_kept_frac": kept,
        "peak_mb": peaks,
    }


def gradients(bench: Bench) -> dict[str, Any]:
    """The first update's gradient of each form against the padded one's, in fp32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Tensor] = {}
    try:
        policy = bench.policy(torch.float32)
        for form, (share, skip) in FORMS.items():
            own = replace(policy, model=copy.deepcopy(policy.model))
            learner = Learner(bench.config(skip), own, share_prompts=share)
            step = learner.optimizer.step

            def kept(form: str = form, learner: Learner = learner, step: Callable[[], Any] = step) -> Any:
                found[form] = torch.cat([p.grad.flatten() for p in learner.parameters if p.grad is not None]).cpu()
                return step()

            learner.optimizer.step = kept  # type: ignore[method-assign]
            learner.learn(bench.rows(), step=1)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    exact = found["padded"].double()
    return {
        "padded_norm": float(exact.norm()),
        "relative_difference": {f: float((g.double() - exact).norm() / exact.norm()) for f, g in found.items()},
    }


def training(bench: Bench) -> dict[str, Any]:
    """`qae train` on the tiny policy, on this device."""
    steps = 1 if bench.small else 5
    few = ["rollout.prompts=2", "update.minibatches=1", "task.levels=[1x1]"] if bench.small else []
    config = TrainConfig.load(
        "tiny", f"policy.device={bench.device.type}", f"steps={steps}", "eval.problems=0", "checkpoint.every=0", *few
    )
    with tempfile.TemporaryDirectory() as folder:
        started = perf_counter()
        records = read_metrics(train(config, run_dir=Path(folder) / "run"))
        names = (
            "seconds/step", "seconds/sample", "seconds/update", "memory/sample_peak_mb", "memory/update_peak_mb",
            "logprob_gap_max", "grad_norm", "tokens/sampled",
        )  # fmt: skip
        return {
            "seconds": perf_counter() - started,
            "steps": [{name: record.get(name) for name in names} for record in records],
        }


SECTIONS = {f.__name__: f for f in (attention, sampling, update, gradients, training)}


def main(argv: list[str] | None = None) -> None:
    """Parse the arguments, measure, print."""
    parser = harness.parser(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a model and batch of a test's size")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        harness.skip("torch sees no CUDA device; --device cpu --small runs the same code on a processor")
    bench = Bench(torch.device(args.device), args.small, args.alternations)
    result: dict[str, Any] = {
        "benchmark": "gpu",
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "cuda": torch.version.cuda,
        **harness.environment("qae", "torch", "transformers"),
        "config": {
            "shape": bench.shape,
            "prompts": len(bench.prompts),
            "group_size": bench.group_size,
            "prompt_tokens": len(bench.prompts[0]),
            "completion_tokens": bench.tokens,
            "tokens_per_microbatch": bench.budget,
            "alternations": args.alternations,
        },
    }
    started, failed = perf_counter(), False
    for name in args.sections:
        try:
            result[name] = SECTIONS[name](bench)
        except Exception as error:  # one section must not cost the run on a lent machine the others
            traceback.print_exc()
            result[name], failed = {"error": f"{type(error).__name__}: {error}"}, True
        if args.device == "cuda":
            torch.cuda.empty_cache()
    result["seconds"] = perf_counter() - started
    harness.finish(result, args.out)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
