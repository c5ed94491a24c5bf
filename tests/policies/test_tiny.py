"""The shipped policy: what the quick start, the recipes and many tests rest on."""

import functools
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from qae.policies import load_policy
from qae.policies.quiet import no_progress_bars
from qae.policies.source import TINY
from qae.sampling import SamplingParams, make_engine
from qae.sampling.rng import row_key
from qae.tasks import make_task

PROBLEMS, SAMPLES = 40, 8


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny", device="cpu")


@pytest.fixture(scope="module")
def draw(policy):
    """(items, completions) of a level: held-out problems, 8 completions each, at temperature 1."""
    engine = make_engine("builtin", policy)
    engine.refresh()

    @functools.cache
    def run(level):
        task = make_task({"name": "arithmetic", "levels": [level]}, seed=0)
        items = task.heldout_items(PROBLEMS)
        rows = [index for index in range(PROBLEMS) for _ in range(SAMPLES)]
        prompts = [task.encode(item, policy.tokenizer) for item in items]
        completions = engine.generate(
            prompts, rows, [row_key(0, row) for row in range(len(rows))], SamplingParams(max_tokens=72)
        )
        grades = task.grade([(items[c.prompt_index], c.text) for c in completions])
        return completions, torch.tensor([grade.outcome for grade in grades]).reshape(PROBLEMS, SAMPLES)

    return run


def test_it_is_small_and_an_ordinary_hugging_face_llama():
    assert sum(file.stat().st_size for file in TINY.iterdir()) <= 4 * 2**20
    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(TINY)
    assert isinstance(model, LlamaForCausalLM)
    assert 500_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 1_000_000
    assert all(torch.isfinite(tensor).all() for tensor in load_file(TINY / "model.safetensors").values())


def test_every_character_is_a_token_and_comes_back():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    text = "0123456789*+=?,#hmsokn12*3+4?hm,12*3=36?no,#40"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.encode("x") == [tokenizer.unk_token_id]


def test_one_eos_that_is_not_the_padding(policy):
    generation = json.loads((TINY / "generation_config.json").read_text())
    assert policy.eos_ids == (generation["eos_token_id"],)
    assert policy.pad_id not in policy.eos_ids
    assert policy.context_tokens == 128


@pytest.mark.parametrize(("level", "low", "high"), [("1x1", 0.65, 0.87), ("2x1", 0.38, 0.60), ("2x2", 0.05, 0.22)])
def test_pass_rates_are_those_that_its_readme_states(draw, level, low, high):
    completions, right = draw(level)
    assert low < right.mean() < high
    assert sum(completion.truncated for completion in completions) <= 0.02 * len(completions)
    if level == "2x1":
        mixed = (right.amax(1) == 1) & (right.amin(1) == 0)
        assert mixed.float().mean() > 0.8


def test_a_completion_ends_with_an_eos_right_behind_its_answer(draw, policy):
    completions, _ = draw("2x1")
    finished = [completion for completion in completions if not completion.truncated]
    assert all(completion.token_ids[-1] in policy.eos_ids for completion in finished)
    answered = [c for c in finished if c.text.rpartition("#")[2].isdigit()]
    assert len(answered) >= 0.98 * len(finished)
