from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loss_cases import Batch, batches, law, loss_of, seeded_batch
from qae.losses import LOSSES
from qae.reduce import REDUCTIONS, sequence_mean, sequence_sum, sequence_sum_norm, token_mean, update_counts

every_reduction = pytest.mark.parametrize("name", REDUCTIONS)
PER_TOKEN = torch.tensor([[1.0, 3.0, 5.0], [7.0, 9.0, 100.0], [100.0, 100.0, 100.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])


def reduced(name: str, per_token: Tensor, mask: Tensor, of_update: Tensor | None = None) -> Tensor:
    """Any reduction of the table, with the counts of the update's mask."""
    tokens, completions = update_counts(mask if of_update is None else of_update)
    counts = {
        "token_mean": {"update_tokens": tokens},
        "sequence_mean": {"update_completions": completions},
        "sequence_sum": {"update_completions": completions},
        "sequence_sum_norm": {"update_completions": completions, "horizon_tokens": 20},
    }
    return REDUCTIONS[name](per_token, mask, **counts[name])


@st.composite
def dyadic(draw) -> tuple[Tensor, Tensor]:
    """Losses in eighths with a mask that keeps at least one token."""
    n, t = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    values = draw(st.lists(st.integers(-80, 80).map(lambda x: x / 8), min_size=n * t, max_size=n * t))
    mask = torch.tensor(draw(st.lists(st.booleans(), min_size=n * t, max_size=n * t))).view(n, t)
    mask[draw(st.integers(0, n - 1)), draw(st.integers(0, t - 1))] = True
    return torch.tensor(values, dtype=torch.float64).view(n, t), mask


def test_the_table_holds_the_agreed_names():
    assert list(REDUCTIONS) == ["token_mean", "sequence_mean", "sequence_sum", "sequence_sum_norm"]


def test_counts_of_an_update_leave_out_masked_tokens_and_empty_completions():
    assert update_counts(MASK) == (5, 2)
    assert update_counts(torch.zeros(3, 4, dtype=torch.bool)) == (0, 0)
    assert update_counts(torch.zeros(0, 4, dtype=torch.bool)) == (0, 0)


def test_values_by_hand():
    """25 over 5 tokens; (9/3 + 16/2) and 25 over 2 completions, the latter also over 20 tokens each."""
    assert token_mean(PER_TOKEN, MASK, update_tokens=5) == 5.0
    assert sequence_mean(PER_TOKEN, MASK, update_completions=2) == 5.5
    assert sequence_sum(PER_TOKEN, MASK, update_completions=2) == 12.5
    assert sequence_sum_norm(PER_TOKEN, MASK, update_completions=2, horizon_tokens=20) == 0.625


@law
@given(case=dyadic())
def test_each_equals_its_definition_in_exact_arithmetic(case):
    per_token, mask = case
    kept = [
        [Fraction(x) for x, m in zip(*row, strict=True) if m]
        for row in zip(per_token.tolist(), mask.tolist(), strict=True)
    ]
    kept = [row for row in kept if row]
    expected = {
        "token_mean": sum(map(sum, kept)) / sum(map(len, kept)),
        "sequence_mean": sum(sum(row) / len(row) for row in kept) / len(kept),
        "sequence_sum": sum(map(sum, kept)) / len(kept),
        "sequence_sum_norm": sum(map(sum, kept)) / len(kept) / 20,
    }
    for name, value in expected.items():
        assert float(reduced(name, per_token, mask)) == pytest.approx(float(value), rel=1e-14, abs=1e-14)


@every_reduction
@law
@given(case=dyadic(), cut=st.integers(0, 6))
def test_micro_batches_add_up_to_the_whole(name, case, cut):
    per_token, mask = case
    parts = [reduced(name, per_token[rows], mask[rows], of_update=mask) for rows in (slice(cut), slice(cut, None))]
    torch.testing.assert_close(sum(parts), reduced(name, per_token, mask), rtol=1e-14, atol=1e-14)


def test_token_mean_over_micro_batches_of_10_and_90_tokens():
    """Case P31: a mean per micro-batch weighs a token of the small one nine times."""
    mask = torch.arange(90) < torch.tensor([[10], [90]])
    per_token = torch.tensor([[1.0], [2.0]]).expand(2, 90)
    parts = [token_mean(per_token[[i]], mask[[i]], update_tokens=100) for i in range(2)]
    assert float(sum(parts)) == pytest.approx(1.9, rel=1e-6)
    of_means = [token_mean(per_token[[i]], mask[[i]], update_tokens=int(mask[i].sum())) for i in range(2)]
    assert float(sum(of_means)) / 2 == pytest.approx(1.5, rel=1e-6)


@every_reduction
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("pieces", [1, 2, 4, 6])
def test_accumulating_over_micro_batches_gives_the_same_gradient(name, loss, pieces):
    """Case P30: nothing is divided by the number of micro-batches."""
    batch = seeded_batch(7)
    chosen = {"selected": torch.rand(6, 9, generator=torch.Generator().manual_seed(1)) < 0.3} if "cov" in loss else {}
    grads = []
    for cut in ([torch.arange(6)], torch.arange(6).chunk(pieces)):
        logprobs = batch.logprobs.clone().requires_grad_()
        for rows in cut:
            micro = Batch(logprobs[rows], *(x[rows] for x in batch.args[1:]))
            per_token = loss_of(loss, micro, **{k: v[rows] for k, v in chosen.items()})
            reduced(name, per_token, micro.mask, of_update=batch.mask).backward()
        grads.append(logprobs.grad)
    torch.testing.assert_close(*grads, rtol=1e-14, atol=0)
    assert grads[0].abs().sum() > 0


@every_reduction
@pytest.mark.parametrize("loss", LOSSES)
@settings(deadline=None, max_examples=15)
@given(batch=batches())
def test_dropping_rows_of_advantage_zero_leaves_the_gradient(name, loss, batch):
    kept = batch.advantages != 0
    if not batch.mask.any():
        return
    grads = []
    for rows in (torch.ones_like(kept), kept):
        logprobs = batch.logprobs.clone().requires_grad_()
        part = Batch(logprobs[rows], *(x[rows] for x in batch.args[1:]))
        # KL-Cov's and Clip-Cov's choice is made before rows are dropped; here it is no token.
        nothing = {"selected": torch.zeros_like(part.mask)} if "cov" in loss else {}
        reduced(name, loss_of(loss, part, **nothing), part.mask, of_update=batch.mask).backward()
        grads.append(logprobs.grad)
    torch.testing.assert_close(*grads, rtol=1e-14, atol=0)


@every_reduction
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
def test_masked_tokens_reach_neither_value_nor_gradient(name, garbage):
    dirty = PER_TOKEN.where(MASK, garbage).requires_grad_()
    value = reduced(name, dirty, MASK)
    value.backward()
    torch.testing.assert_close(value.detach(), reduced(name, PER_TOKEN, MASK), rtol=0, atol=0)
    assert dirty.grad is not None
    assert not dirty.grad[~MASK].any()
    assert (dirty.grad[MASK] > 0).all()


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("token_mean", [1 / 5, 1 / 5]),
        ("sequence_mean", [1 / 6, 1 / 4]),
        ("sequence_sum", [1 / 2, 1 / 2]),
        ("sequence_sum_norm", [1 / 40, 1 / 40]),
    ],
)
def test_the_gradient_is_the_weight_of_a_token(name, weights):
    per_token = PER_TOKEN.clone().requires_grad_()
    reduced(name, per_token, MASK).backward()
    assert per_token.grad is not None
    expected = torch.tensor([*weights, 0.0], dtype=torch.float64)[:, None].expand(3, 3).where(MASK, 0.0)
    torch.testing.assert_close(per_token.grad, expected, rtol=1e-15, atol=0)


@every_reduction
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_dtype_is_kept_and_an_empty_micro_batch_gives_zero(name, dtype):
    assert reduced(name, PER_TOKEN.to(dtype), MASK).dtype == dtype
    for empty in (PER_TOKEN[:0], PER_TOKEN[:, :0]):
        part = reduced(name, empty.to(dtype), MASK[: len(empty), : empty.shape[1]], of_update=MASK)
        assert part.dtype == dtype
        assert part == 0


@every_reduction
def test_an_update_without_tokens_is_an_error_and_not_a_loss_of_0(name):
    """Case P36."""
    count = "update_tokens" if name == "token_mean" else "update_completions"
    message = f"{count} is 0: every token of this update is masked, so there is nothing to learn from; skip the opt"
    with pytest.raises(ValueError, match=message):
        reduced(name, PER_TOKEN, torch.zeros_like(MASK))


def test_a_horizon_below_1_is_refused():
    with pytest.raises(ValueError, match="horizon_tokens is 0 but must be at least 1; use the longest completion"):
        sequence_sum_norm(PER_TOKEN, MASK, update_completions=2, horizon_tokens=0)
