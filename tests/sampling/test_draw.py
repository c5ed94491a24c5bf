"""Drawing a token: the right distribution, never a zero, exact log-prob and entropy."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qae.sampling.draw import BLOCK_TOKENS, draw
from qae.sampling.rng import row_key, uniform_pairs

# One block, exactly one, one and a bit, several, several and a bit.
VOCABULARIES = [5, BLOCK_TOKENS, BLOCK_TOKENS + 1, 4 * BLOCK_TOKENS, 3 * BLOCK_TOKENS + 77]


def uniforms(n: int, position: int = 0):
    return uniform_pairs(torch.tensor([row_key(11, i) for i in range(n)]), position)


@pytest.mark.parametrize("v", VOCABULARIES)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_are_the_softmax(v, temperature):
    n = 20_000
    logits = torch.randn(v, generator=torch.Generator().manual_seed(v)) * 2
    tokens = draw(logits.repeat(n, 1), uniforms(n), temperature=temperature).tokens
    probs = (logits.double() / temperature).softmax(-1)
    # Pool the tail, so that every cell expects at least 20.
    order = probs.argsort(descending=True)
    cells = int((probs[order] * n >= 20).sum())
    counts = tokens.bincount(minlength=v)[order].double()
    counts = torch.cat((counts[:cells], counts[cells:].sum()[None]))
    expected = torch.cat((probs[order][:cells], probs[order][cells:].sum()[None])) * n
    keep = expected > 0
    chi_square = ((counts - expected)[keep] ** 2 / expected[keep]).sum().item()
    degrees = int(keep.sum()) - 1
    assert chi_square < degrees + 4.5 * (2 * degrees) ** 0.5


@pytest.mark.parametrize("v", VOCABULARIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprob_and_entropy_are_exact(v, temperature):
    logits = torch.randn(40, v, generator=torch.Generator().manual_seed(v)) * 4 + 30
    drawn = draw(logits.clone(), uniforms(40), temperature=temperature)
    logprobs = (logits.double() / temperature).log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    torch.testing.assert_close(
        drawn.logprobs.double(), logprobs.gather(1, drawn.tokens[:, None])[:, 0], atol=5e-6, rtol=0
    )
    torch.testing.assert_close(drawn.entropies.double(), entropies, atol=5e-6, rtol=0)


@pytest.mark.parametrize("v", VOCABULARIES)
def test_inverts_the_cumulative_distribution(v):
    """The slow definition: the block by its cumulative mass, then the token within the block."""
    logits = torch.randn(60, v, generator=torch.Generator().manual_seed(1)) * 3
    pairs = uniforms(60)
    for row, token in zip(range(60), draw(logits.clone(), pairs).tokens.tolist(), strict=True):
        probs = logits[row].double().softmax(-1)
        start, part = 0, probs
        if v > BLOCK_TOKENS:
            blocks = torch.stack([b.sum() for b in probs.split(BLOCK_TOKENS)])
            start = int((blocks.cumsum(-1) <= pairs[row, 0]).sum())
            part = probs.split(BLOCK_TOKENS)[start] / blocks[start]
        target = pairs[row, 1 if v > BLOCK_TOKENS else 0]
        expected = start * BLOCK_TOKENS + int((part.cumsum(-1) <= target).sum())
        near = (part.cumsum(-1) - target).abs().min() < 1e-6
        assert token == expected or near


@given(
    v=st.sampled_from(VOCABULARIES),
    alive=st.lists(st.integers(0, 10_000), min_size=1, max_size=4),
    u=st.tuples(*[st.sampled_from([0.0, 2**-24, 0.25, 0.5, 1 - 2**-24])] * 2),
    dead=st.sampled_from([-float("inf"), -1e9, -200.0]),
)
def test_a_token_of_probability_zero_is_never_drawn(v, alive, u, dead):
    logits = torch.full((1, v), dead)
    ids = {i % v for i in alive}
    for i in ids:
        logits[0, i] = 0.0
    drawn = draw(logits.clone(), torch.tensor([u]))
    assert drawn.tokens.item() in ids
    torch.testing.assert_close(drawn.logprobs, -torch.tensor([float(len(ids))]).log())
    torch.testing.assert_close(drawn.entropies, torch.tensor([float(len(ids))]).log(), atol=1e-6, rtol=0)


def test_temperature_zero_is_greedy_and_reports_temperature_one():
    logits = torch.randn(30, 700, generator=torch.Generator().manual_seed(2))
    drawn = draw(logits.clone(), uniforms(30), temperature=0.0)
    assert torch.equal(drawn.tokens, logits.argmax(-1))
    expected = logits.log_softmax(-1)
    torch.testing.assert_close(drawn.logprobs, expected.amax(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(drawn.entropies, -(expected.exp() * expected).sum(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("v", [6, 700])
def test_top_p_keeps_the_smallest_set_that_holds_it(v):
    probs = torch.full((v,), 1e-9)
    probs[[1, 3, 4]] = torch.tensor([0.5, 0.3, 0.2])
    n = 4000
    drawn = draw(probs.log().repeat(n, 1), uniforms(n), top_p=0.7)
    counts = drawn.tokens.bincount(minlength=v)
    assert counts[1] + counts[3] == n
    assert abs(counts[1].item() / n - 0.625) < 0.03
    torch.testing.assert_close(drawn.logprobs.exp(), probs[drawn.tokens], atol=1e-5, rtol=0)


def test_top_p_of_zero_mass_still_keeps_the_likeliest():
    logits = torch.tensor([[0.0, 2.0, 1.0]]).repeat(50, 1)
    assert set(draw(logits, uniforms(50), top_p=1e-6).tokens.tolist()) == {1}


def test_rows_in_chunks_equal_rows_at_once(monkeypatch):
    logits = torch.randn(50, 900, generator=torch.Generator().manual_seed(3))
    whole = draw(logits.clone(), uniforms(50))
    monkeypatch.setattr("qae.sampling.draw._CPU_CHUNK", 7 * 900)
    for a, b in zip(whole, draw(logits.clone(), uniforms(50)), strict=True):
        assert torch.equal(a, b)


def test_no_rows():
    drawn = draw(torch.zeros(0, 700), torch.zeros(0, 2))
    assert [x.shape for x in drawn] == [(0,)] * 3
