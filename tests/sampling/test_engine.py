"""The engine against transformers: same tokens, same log-probs, whatever the batching."""

import dataclasses

import pytest
import torch

from qae.sampling import SamplingParams, batch, make_engine
from qae.sampling.builtin import BuiltinEngine
from qae.sampling.fallback import ForwardEngine
from qae.sampling.rng import row_key
from random_policies import EOS, VOCAB, make_policy

COMMON = [5, 9, 200, 31, 7, 7, 90]
PROMPTS = [
    [*COMMON, 3],
    [*COMMON, 44, 45, 46, 47, 48, 49, 50, 51, 52],
    [*COMMON, 44, 45],
    [*COMMON, 8, 3, 100, 4],
]
RAGGED = [[17], [5, 6, 7, 8, 9], [5, 6], list(range(20, 60))]


def rows(prompts, samples):
    row_prompt = [i for i in range(len(prompts)) for _ in range(samples)]
    return row_prompt, [row_key(3, row) for row in range(len(row_prompt))]


def sample(policy, prompts, samples=3, *, engine=None, **params):
    engine = engine or make_engine("builtin", policy)
    row_prompt, keys = rows(prompts, samples)
    return engine.generate(prompts, row_prompt, keys, SamplingParams(**({"max_tokens": 16} | params)))


@torch.no_grad()
def reference(policy, prompt, token_ids, temperature=1.0):
    """Log-probs and entropies of a completion by a fresh forward pass."""
    logits = policy.model(torch.tensor([prompt + token_ids])).logits[0, len(prompt) - 1 : -1].float()
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(token_ids)[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


def test_llama_shapes_take_the_fused_decoder_and_others_the_forward_pass(policy):
    expected = ForwardEngine if policy.name == "gpt2" else BuiltinEngine
    assert type(make_engine("builtin", policy)) is expected


@pytest.mark.parametrize("prompts", [PROMPTS, RAGGED, PROMPTS[:1]], ids=["common", "ragged", "single"])
def test_greedy_equals_generate_up_to_the_first_near_tie(policy, prompts):
    got = sample(policy, prompts, samples=1, temperature=0.0, max_tokens=20)
    compared = 0
    for prompt, completion in zip(prompts, got, strict=True):
        out = policy.model.generate(
            torch.tensor([prompt]),
            max_new_tokens=20,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        gaps = [step[0].topk(2).values.diff().abs().item() for step in out.logits]
        until = next((i for i, gap in enumerate(gaps) if gap < 1e-3), len(gaps))
        expected = out.sequences[0, len(prompt) :].tolist()
        assert completion.token_ids[:until] == expected[:until]
        compared += until
    assert compared >= 8 * len(prompts)


@pytest.mark.parametrize("prompts", [PROMPTS, RAGGED], ids=["common", "ragged"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_entropies_equal_a_fresh_forward_pass(policy, prompts, temperature):
    for completion in sample(policy, prompts, temperature=temperature):
        prompt = prompts[completion.prompt_index]
        logprobs, entropies = reference(policy, prompt, completion.token_ids, temperature)
        torch.testing.assert_close(completion.logprobs, logprobs, atol=1e-4, rtol=0)
        torch.testing.assert_close(completion.entropies, entropies, atol=1e-4, rtol=0)


@pytest.mark.parametrize("prompts", [PROMPTS, RAGGED], ids=["common", "ragged"])
def test_batching_changes_no_token(policy, prompts):
    params = SamplingParams(max_tokens=14)
    row_prompt, keys = rows(prompts, 3)
    whole = make_engine("builtin", policy).generate(prompts, row_prompt, keys, params)
    for max_rows in (1, 5):
        few = make_engine("builtin", policy, max_rows=max_rows).generate(prompts, row_prompt, keys, params)
        assert [c.token_ids for c in few] == [c.token_ids for c in whole]
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = make_engine("builtin", policy).generate(
        prompts, [row_prompt[i] for i in order], [keys[i] for i in order], params
    )
    for place, row in enumerate(order):
        assert shuffled[place].token_ids == whole[row].token_ids
        torch.testing.assert_close(shuffled[place].logprobs, whole[row].logprobs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("look_every", [1, 3, 8])
@pytest.mark.parametrize("max_rows", [1, 5, 64])
def test_rows_that_wait_enter_where_others_ended_early(llama, monkeypatch, look_every, max_rows):
    """Also with looks every few tokens, as on a GPU, where a row is drawn for beyond its end."""
    ending = dataclasses.replace(llama, eos_ids=tuple(range(0, VOCAB, 7)))
    expected = sample(ending, PROMPTS, samples=6, engine=make_engine("builtin", ending))
    lengths = {len(completion.token_ids) for completion in expected}
    assert len(lengths) > 4
    decoding = batch.Batch.__init__

    def begin(self, *args, **more):
        decoding(self, *args, **more)
        self._look_every = look_every

    monkeypatch.setattr(batch.Batch, "__init__", begin)
    got = sample(ending, PROMPTS, samples=6, engine=make_engine("builtin", ending, max_rows=max_rows))
    for a, b in zip(got, expected, strict=True):
        assert (a.token_ids, a.text, a.truncated) == (b.token_ids, b.text, b.truncated)
        torch.testing.assert_close(a.logprobs, b.logprobs, atol=1e-4, rtol=0)
        torch.testing.assert_close(a.entropies, b.entropies, atol=1e-4, rtol=0)


def test_rows_in_row_order_with_their_prompt(llama):
    got = sample(llama, RAGGED, samples=2)
    assert [c.prompt_index for c in got] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert got[0].token_ids != got[1].token_ids


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_every_eos_id_ends_a_completion(name):
    policy = make_policy(name)
    ends = tuple(range(40))
    got = sample(dataclasses.replace(policy, eos_ids=ends), RAGGED, samples=8)
    assert any(not c.truncated for c in got)
    for c in got:
        assert not any(t in ends for t in c.token_ids[:-1])
        assert c.truncated == (c.token_ids[-1] not in ends)
        assert c.truncated == (len(c.token_ids) == 16 and c.token_ids[-1] not in ends)
        assert len(c.token_ids) == len(c.logprobs) == len(c.entropies)
        assert c.logprobs.dtype == c.entropies.dtype == torch.float32


def test_the_eos_token_is_no_part_of_the_text(llama):
    got = sample(dataclasses.replace(llama, eos_ids=tuple(range(2, VOCAB, 9))), RAGGED, samples=4)
    for c in got:
        body = c.token_ids if c.truncated else c.token_ids[:-1]
        assert c.text == llama.tokenizer.decode(body, skip_special_tokens=True)


def test_same_tokens_with_eos_on_or_off_up_to_the_end(llama):
    free = sample(dataclasses.replace(llama, eos_ids=()), PROMPTS)
    stopped = sample(dataclasses.replace(llama, eos_ids=tuple(range(60))), PROMPTS)
    for a, b in zip(free, stopped, strict=True):
        assert b.token_ids == a.token_ids[: len(b.token_ids)]


def test_results_can_enter_a_differentiable_computation(policy):
    completion = sample(policy, RAGGED)[0]
    weight = torch.ones(len(completion.logprobs), requires_grad=True)
    (weight * completion.logprobs * completion.entropies).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_max_tokens_of_one(name):
    got = sample(make_policy(name), RAGGED, max_tokens=1)
    assert all(len(c.token_ids) == 1 and c.truncated == (c.token_ids[0] != EOS) for c in got)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_refresh_takes_over_changed_weights(name):
    policy = make_policy(name)
    engine = make_engine("builtin", policy)
    before = sample(policy, PROMPTS, engine=engine)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    engine.refresh()
    after = sample(policy, PROMPTS, engine=engine)
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    logprobs, _ = reference(policy, PROMPTS[0], after[0].token_ids)
    torch.testing.assert_close(after[0].logprobs, logprobs, atol=1e-4, rtol=0)


def test_the_engine_leaves_the_policy_as_it_was(policy):
    policy.model.train()
    before = {name: p.clone() for name, p in policy.model.named_parameters()}
    sample(policy, RAGGED)
    assert policy.model.training
    policy.model.eval()
    for name, p in policy.model.named_parameters():
        assert p.requires_grad and torch.equal(p, before[name])


def test_bfloat16_stays_near_float32(llama):
    got = sample(dataclasses.replace(llama, compute_dtype=torch.bfloat16), PROMPTS)
    gaps = torch.cat([c.logprobs - reference(llama, PROMPTS[c.prompt_index], c.token_ids)[0] for c in got])
    assert 1e-6 < gaps.abs().mean() < 0.05


def test_progress_ends_with_all_rows(policy):
    calls = []
    row_prompt, keys = rows(RAGGED, 2)
    engine = make_engine("builtin", policy)
    got = engine.generate(
        RAGGED, row_prompt, keys, SamplingParams(max_tokens=16), lambda *numbers: calls.append(numbers)
    )
    assert calls[-1] == (8, 8, sum(len(c.token_ids) for c in got))
    assert calls == sorted(calls)


def test_no_rows_give_no_completions(policy):
    assert make_engine("builtin", policy).generate(PROMPTS, [], [], SamplingParams(max_tokens=4)) == []


@pytest.mark.parametrize(
    ("prompts", "row_prompt", "params", "message"),
    [
        ([[]], [0], {}, "prompt 0 is empty"),
        (
            [[5] * 100],
            [0],
            {"max_tokens": 40},
            "together 140, but the policy's context is 128. Lower max_tokens to 28",
        ),
        ([[5]], [1], {}, "row_prompt holds 1, but there are 1 prompts"),
        ([[5]], [0, 0], {}, "row_prompt has 2 rows and row_keys 1"),
        ([[5]], [0], {"max_tokens": 0}, "max_tokens is 0"),
        ([[5]], [0], {"stop": ("",)}, "empty string"),
    ],
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_what_cannot_be_served_is_refused(name, prompts, row_prompt, params, message):
    engine = make_engine("builtin", make_policy(name))
    with pytest.raises(ValueError, match=message):
        engine.generate(prompts, row_prompt, [1], SamplingParams(**({"max_tokens": 4} | params)))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_weights_that_are_not_finite_are_said(name):
    policy = make_policy(name)
    with torch.no_grad():
        next(policy.model.parameters()).fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="NaN or infinite numbers"):
        sample(policy, RAGGED)


def test_rows_at_a_time_follow_the_memory_for_keys_and_values(llama):
    row_prompt, keys = rows(RAGGED, 3)
    per_row = 2 * 2 * 2 * 8 * (40 + 16) * 4  # layers, k and v, heads, head_dim, tokens, bytes
    engine = make_engine("builtin", llama, cache_gb=2.5 * per_row / 2**30)
    few = engine.generate(RAGGED, row_prompt, keys, SamplingParams(max_tokens=16))
    assert engine._rows(RAGGED, row_prompt, SamplingParams(max_tokens=16)) == 2
    whole = make_engine("builtin", llama).generate(RAGGED, row_prompt, keys, SamplingParams(max_tokens=16))
    assert [c.token_ids for c in few] == [c.token_ids for c in whole]


def test_an_unknown_engine_names_the_known(llama):
    with pytest.raises(ValueError, match="'sglang' is unknown: choose one of builtin, vllm"):
        make_engine("sglang", llama)
