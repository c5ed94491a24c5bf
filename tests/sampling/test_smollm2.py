"""The engine on real weights: SmolLM2-135M, where `qae fetch smollm2` has put it."""

import dataclasses

import pytest
import torch

from qae.policies import load_policy
from qae.policies.policy import PolicyError
from qae.sampling import SamplingParams, make_engine
from qae.sampling.rng import row_key

pytestmark = pytest.mark.slow
SHOTS = "3 + 5 = 8\n12 + 7 = 19\n48 + 36 = 84\n125 + 310 = 435\n"


@pytest.fixture(scope="module")
def smollm2():
    try:
        return load_policy("smollm2", dtype="float32", device="cpu")
    except PolicyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def prompts(smollm2):
    tokenizer = smollm2.tokenizer
    few_shot = [tokenizer(f"{SHOTS}{a} + {b} =").input_ids for a, b in ((23, 45), (7, 9), (310, 42))]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Tell me a story about a fox."}], add_generation_prompt=True, return_dict=False
    )
    return [*few_shot, chat]


def test_greedy_equals_generate_up_to_the_first_near_tie(smollm2, prompts):
    params = SamplingParams(max_tokens=48, temperature=0.0)
    got = make_engine("builtin", smollm2).generate(prompts, [0, 1, 2, 3], [0] * 4, params)
    for prompt, completion in zip(prompts, got, strict=True):
        out = smollm2.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=48,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        gaps = [step[0].topk(2).values.diff().abs().item() for step in out.logits]
        until = next((i for i, gap in enumerate(gaps) if gap < 1e-3), len(gaps))
        assert completion.token_ids[:until] == out.sequences[0, len(prompt) :].tolist()[:until]
        assert until >= 6


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_entropies_equal_a_fresh_forward_pass(smollm2, prompts, temperature):
    params = SamplingParams(max_tokens=40, temperature=temperature)
    row_prompt = [i for i in range(4) for _ in range(4)]
    got = make_engine("builtin", smollm2, max_rows=7).generate(
        prompts, row_prompt, [row_key(1, i) for i in range(16)], params
    )
    for completion in got:
        prompt = prompts[completion.prompt_index]
        with torch.no_grad():
            logits = smollm2.model(torch.tensor([prompt + completion.token_ids])).logits[0, len(prompt) - 1 : -1]
        logprobs = (logits.double() / temperature).log_softmax(-1)
        expected = logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(completion.logprobs.double(), expected, atol=1e-4, rtol=0)
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        torch.testing.assert_close(completion.entropies.double(), entropies, atol=1e-4, rtol=0)


def test_bfloat16_log_probs_are_within_the_noise_of_bfloat16(smollm2, prompts):
    lower = dataclasses.replace(smollm2, compute_dtype=torch.bfloat16)
    rows = [3] * 12
    got = make_engine("builtin", lower).generate(
        prompts, rows, [row_key(2, i) for i in range(12)], SamplingParams(max_tokens=60)
    )
    gaps = []
    for completion in got:
        with torch.no_grad():
            logits = smollm2.model(torch.tensor([prompts[3] + completion.token_ids])).logits[0]
        logprobs = logits[len(prompts[3]) - 1 : -1].log_softmax(-1)
        gaps.append(completion.logprobs - logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0])
    gap = torch.cat(gaps)
    assert gap.std() < 0.06
    assert gap.mean().abs() < 0.01
