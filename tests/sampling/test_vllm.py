"""The requests that vLLM gets and what is made of its answers, with a stand-in for vLLM."""

import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from qae.sampling import SamplingParams, make_engine
from qae.sampling.rng import row_key
from qae.sampling.vllm import VllmEngine
from random_policies import EOS, make_policy

PROMPTS = [[5, 6, 7], [40, 41]]


class StandIn:
    """Answers with the built-in engine's completions in vLLM's form."""

    def __init__(self, policy):
        self.policy, self.sampling, self.loaded, self.forgot = policy, [], {}, 0

    def apply_model(self, function):
        return [function(SimpleNamespace(load_weights=lambda weights: self.loaded.update(weights)))]

    def reset_prefix_cache(self):
        self.forgot += 1

    def generate(self, requests, sampling, use_tqdm):
        assert not use_tqdm
        self.sampling = sampling
        params = SamplingParams(max_tokens=sampling[0].max_tokens, stop=tuple(sampling[0].stop))
        completions = make_engine("builtin", self.policy).generate(
            [r["prompt_token_ids"] for r in requests],
            list(range(len(requests))),
            [s.seed for s in sampling],
            params,
        )
        return [
            SimpleNamespace(
                outputs=[
                    SimpleNamespace(
                        token_ids=tuple(c.token_ids),
                        logprobs=[
                            {token: SimpleNamespace(logprob=lp)}
                            for token, lp in zip(c.token_ids, c.logprobs.tolist(), strict=True)
                        ],
                    )
                ]
            )
            for c in completions
        ]


@pytest.fixture
def engine(monkeypatch, llama):
    module = ModuleType("vllm")
    module.SamplingParams = SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", module)
    policy = dataclasses.replace(llama, eos_ids=(EOS, 9, 80, 120))
    return VllmEngine(policy, StandIn(policy))


def test_completions_have_vllms_tokens_and_logprobs_and_the_policys_entropies(engine):
    row_prompt, keys = [0, 0, 1, 1], [row_key(0, i) for i in range(4)]
    got = engine.generate(PROMPTS, row_prompt, keys, SamplingParams(max_tokens=12))
    seeds = [key & (2**63 - 1) for key in keys]
    expected = make_engine("builtin", engine._policy).generate(
        PROMPTS, row_prompt, seeds, SamplingParams(max_tokens=12)
    )
    for a, b in zip(got, expected, strict=True):
        assert (a.prompt_index, a.token_ids, a.text, a.truncated) == (
            b.prompt_index,
            b.token_ids,
            b.text,
            b.truncated,
        )
        torch.testing.assert_close(a.logprobs, b.logprobs)
        torch.testing.assert_close(a.entropies, b.entropies, atol=1e-4, rtol=0)


def test_every_row_is_a_request_with_its_own_seed_and_all_ends(engine):
    keys = [-5, 7]
    engine.generate(PROMPTS, [0, 1], keys, SamplingParams(max_tokens=3, temperature=0.8, stop=("\n",)))
    first, second = engine._llm.sampling
    assert (first.seed, second.seed) == (2**63 - 5, 7)
    assert (first.stop, first.stop_token_ids, first.ignore_eos) == (["\n"], [EOS, 9, 80, 120], True)
    assert (first.temperature, first.top_k, first.top_p, first.logprobs) == (0.8, 0, 1.0, 0)


def test_refresh_hands_over_all_weights_and_forgets_prefixes(engine):
    engine.refresh()
    state = engine._policy.model.state_dict()
    assert engine._llm.loaded.keys() == state.keys()
    assert all(torch.equal(engine._llm.loaded[name], tensor) for name, tensor in state.items())
    assert engine._llm.forgot == 1


def test_refused_on_a_cpu(llama):
    with pytest.raises(ValueError, match=r"needs the policy on a CUDA device, not on cpu.*rollout.engine=builtin"):
        make_engine("vllm", llama)


def test_a_missing_vllm_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    policy = dataclasses.replace(make_policy("llama"), device=torch.device("cuda"))
    with pytest.raises(ImportError, match=r"pip install 'qae\[vllm\]'"):
        make_engine("vllm", policy)
