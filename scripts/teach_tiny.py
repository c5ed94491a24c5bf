"""Teach the tiny policy that the package ships: supervised, on noisy written-out arithmetic, one CPU core.

    python scripts/teach_tiny.py --out src/qae/policies/tiny

The demonstrations solve `a*b+c?` in four styles (the product directly; the first factor split; the second factor
split; the factors swapped and sometimes checked), each ending in `#answer`. Results of steps are wrong now and
then, and an error is carried on, so that a policy taught to imitate them is right about as often as they are
and reinforcement learning has something to find. Problems come from the task's training items, so no held-out
problem is ever shown. On one machine the run is reproducible bit for bit; another CPU rounds differently.
"""

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from qae.tasks.arithmetic import LEVELS, ArithmeticTask

ALPHABET = "0123456789*+=?,#hmsokn"
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
CONTEXT_TOKENS = 128


@dataclass(frozen=True)
class Phase:
    """A stretch of teaching with its own mix of levels, seed and fresh optimiser.

    Attributes:
        steps: of the optimiser.
        lr: at the peak of the cosine.
        levels: level -> weight.
        knows_table: whether a product of single digits that is written in one go is never wrong.
    """

    steps: int
    lr: float
    levels: dict[str, float]
    knows_table: bool


# The second phase lifts the easiest level, whose products are then known by heart, and leaves the others alone.
PHASES = (
    Phase(2500, 2e-3, {"1x1": 0.3, "2x1": 0.3, "2x2": 0.32, "3x2": 0.08}, knows_table=False),
    Phase(600, 7e-4, {"1x1": 0.6, "2x1": 0.2, "2x2": 0.15, "3x2": 0.05}, knows_table=True),
)
# Probability that one digit of a result is wrong.
WRONG_IN_PRODUCT = 0.05
WRONG_IN_SUM = 0.02
FILLER = 0.12
CHECK = 0.5


class Demonstrator:
    """Writes one noisy solution after another, all from one random stream."""

    def __init__(self, rng: Random, knows_table: bool):
        self.rng = rng
        self.knows_table = knows_table

    def solve(self, a: int, b: int, c: int) -> str:
        """A solution of `a*b+c?` in a random style, as the text of a completion."""
        style = self.rng.choice((self.direct, self.split_first, self.split_second, self.swap))
        steps, product = style(a, b)
        total = self.noisy(product + c, WRONG_IN_SUM)
        return f"{steps}{self.filler()}{product}+{c}={total}#{total}"

    def direct(self, a: int, b: int) -> tuple[str, int]:
        """The product in one step, and the product that was written."""
        by_heart = self.knows_table and max(a, b) < 10
        product = a * b if by_heart else self.noisy(a * b, WRONG_IN_PRODUCT)
        return f"{self.filler()}{a}*{b}={product},", product

    def split_first(self, a: int, b: int) -> tuple[str, int]:
        """The first factor as a sum, directly if it has none."""
        parts = self.parts(a)
        return self.add_up([(part, b) for part in parts]) if parts else self.direct(a, b)

    def split_second(self, a: int, b: int) -> tuple[str, int]:
        """The second factor as a sum, directly if it has none."""
        parts = self.parts(b)
        return self.add_up([(a, part) for part in parts]) if parts else self.direct(a, b)

    def swap(self, a: int, b: int) -> tuple[str, int]:
        """The factors swapped, sometimes checked by splitting; a check that disagrees wins."""
        steps, product = self.direct(b, a)
        if self.rng.random() > CHECK:
            return steps, product
        check, again = self.split_first(a, b)
        return f"{steps[:-1]}?{check}{'ok' if again == product else 'no'},", again

    def parts(self, factor: int) -> list[int]:
        """Leading digit and rest, or two smaller digits; nothing for a round number."""
        if factor < 10:
            first = self.rng.randint(1, factor - 1)
            return [first, factor - first]
        unit = 10 ** (len(str(factor)) - 1)
        return [factor - factor % unit, factor % unit] if factor % unit else []

    def add_up(self, products: list[tuple[int, int]]) -> tuple[str, int]:
        """Two products and their sum."""
        text, results = "", []
        for a, b in products:
            results.append(self.noisy(a * b, WRONG_IN_PRODUCT))
            text += f"{self.filler()}{a}*{b}={results[-1]},"
        total = self.noisy(sum(results), WRONG_IN_SUM)
        return f"{text}{self.filler()}{results[0]}+{results[1]}={total},", total

    def noisy(self, result: int, wrong: float) -> int:
        """The result with each digit replaced with probability `wrong`; the number of digits stays."""
        digits = [
            self.rng.choice("123456789" if at == 0 else "0123456789") if self.rng.random() < wrong else digit
            for at, digit in enumerate(str(result))
        ]
        return int("".join(digits))

    def filler(self) -> str:
        """Now and then a word that says nothing."""
        return self.rng.choice(("hm,", "so,")) if self.rng.random() < FILLER else ""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character of the alphabet; decoding gives the text back exactly."""
    vocabulary = {token: i for i, token in enumerate((PAD, EOS, UNK, *ALPHABET))}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=characters,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK,
        model_max_length=CONTEXT_TOKENS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast, layers: int) -> LlamaForCausalLM:
    """An untaught Llama of about 0.2M parameters a layer."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def batches(tokenizer: PreTrainedTokenizerFast, phase: Phase, rows: int, seed: int):
    """Endless (ids, labels), rows of like length together; labels are -100 on the prompt and on the padding."""
    task = ArithmeticTask(seed=seed, levels=phase.levels)
    demonstrator = Demonstrator(Random(f"demonstrations/{seed}"), phase.knows_table)
    order = Random(f"order/{seed}")
    next_item = 0
    while True:
        pool = []
        for item in map(task.train_item, range(next_item, next_item + 16 * rows)):
            a, b, c = (int(number) for number in item.prompt[:-1].replace("*", "+").split("+"))
            prompt = tokenizer.encode(item.prompt)
            solution = [*tokenizer.encode(demonstrator.solve(a, b, c)), tokenizer.eos_token_id]
            pool.append((prompt, solution))
        next_item += len(pool)
        pool.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        chunks = [pool[i : i + rows] for i in range(0, len(pool), rows)]
        order.shuffle(chunks)
        for chunk in chunks:
            width = max(len(prompt) + len(solution) for prompt, solution in chunk)
            ids = torch.full((rows, width), tokenizer.pad_token_id)
            labels = torch.full((rows, width), -100)
            for row, (prompt, solution) in enumerate(chunk):
                ids[row, : len(prompt) + len(solution)] = torch.tensor(prompt + solution)
                labels[row, len(prompt) : len(prompt) + len(solution)] = torch.tensor(solution)
            yield ids, labels


def teach(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, phase: Phase, rows: int, seed: int) -> None:
    """AdamW with a short warm-up and a cosine to zero; next-token loss on the completions only."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.lr, betas=(0.9, 0.95), weight_decay=0.1)
    warm = 100

    def scale(step: int) -> float:
        return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * step / phase.steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    source = batches(tokenizer, phase, rows, seed)
    started = time.perf_counter()
    model.train()
    for step in range(1, phase.steps + 1):
        ids, labels = next(source)
        logits = model(ids).logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == 1:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.perf_counter() - started:.0f} s", flush=True)


@torch.no_grad()
def sample(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str], max_tokens: int
) -> tuple[list[str], Tensor]:
    """One completion a prompt at temperature 1, and the mean entropy of each in nats. For measuring only."""
    model.eval()
    texts, entropies = [""] * len(prompts), torch.zeros(len(prompts))
    by_length: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(row)
    for rows in by_length.values():
        ids = torch.tensor([tokenizer.encode(prompts[row]) for row in rows])
        drawn = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=True,
            top_k=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        completions = drawn.sequences[:, ids.shape[1] :]
        logprobs = torch.stack(drawn.logits, 1).log_softmax(-1)
        sampled = completions != tokenizer.pad_token_id
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        entropies[rows] = entropy.where(sampled, 0.0).sum(1) / sampled.sum(1)
        for row, text in zip(rows, tokenizer.batch_decode(completions, skip_special_tokens=True), strict=True):
            texts[row] = text
    return texts, entropies


def measure(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: int, samples: int, max_tokens: int
) -> dict[str, dict[str, float]]:
    """Held-out pass@1, pass@`samples` and the share of problems that are mixed at 8 samples, by level."""
    table = {}
    for level in LEVELS:
        task = ArithmeticTask(levels=[level])
        items = [item for item in task.heldout_items(problems) for _ in range(samples)]
        texts, entropies = sample(model, tokenizer, [item.prompt for item in items], max_tokens)
        grades = task.grade(list(zip(items, texts, strict=True)))
        right = torch.tensor([grade.outcome for grade in grades]).reshape(problems, samples)
        eight = right.reshape(-1, 8)
        table[level] = {
            "pass@1": right.mean().item(),
            f"pass@{samples}": (right.amax(1) > 0).float().mean().item(),
            "mixed_at_8": ((eight.amax(1) > 0) & (eight.amin(1) < 1)).float().mean().item(),
            "entropy_nats": entropies.mean().item(),
            "characters": sum(map(len, texts)) / len(texts),
        }
        print(level, {name: round(value, 3) for name, value in table[level].items()}, *texts[:3], flush=True)
    return table


def main() -> None:
    """Teach, save, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--rows", type=int, default=64, help="demonstrations a step")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=200, help="held-out problems a level in the measurement")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, args.layers)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    for number, phase in enumerate(PHASES):
        teach(model, tokenizer, phase, args.rows, args.seed + number)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    for file in args.out.iterdir():
        file.chmod(0o644)  # safetensors keeps its file to its owner, which a wheel would pass on
    table = measure(model, tokenizer, args.problems, samples=16, max_tokens=72)
    (args.out / "pass_rates.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
