"""On-policy, in expectation: every baseline pulls a prompt along the gradient of its pass rate, so the paper's knob
cannot act there. Checked by brute force over every group that a small sequence policy can produce.

The policy draws tokens 0, 1 and STOP from one table of logits indexed by the previous token, at most three of
them: its parameters are shared between steps, and its completions have lengths 1 to 3.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from qae.advantages import leave_one_out_advantages, mean_advantages, quantile_advantages

STOP, START = 2, 3
LOGITS = torch.tensor([[0.3, -0.8, 0.1], [-0.2, 0.5, 0.4], [0.0, 0.0, 0.0], [0.6, 0.2, -0.4]], dtype=torch.float64)
COMPLETIONS = [
    tokens
    for length in (1, 2, 3)
    for tokens in itertools.product((0, 1, STOP), repeat=length)
    if STOP not in tokens[:-1] and (length == 3 or tokens[-1] == STOP)
]
# A completion is right if it holds a 1 and stops in time, so that successes and failures differ in length.
REWARDS = torch.tensor([1.0 if 1 in tokens and tokens[-1] == STOP else 0.0 for tokens in COMPLETIONS]).double()
LENGTHS = torch.tensor([len(tokens) for tokens in COMPLETIONS]).double()


def completion_logprobs(logits: Tensor) -> Tensor:
    table = logits.log_softmax(-1)
    return torch.stack(
        [
            sum(table[before, token] for before, token in zip((START, *tokens), tokens, strict=False))
            for tokens in COMPLETIONS
        ]
    )


def gradient(objective_of_logprobs) -> Tensor:
    logits = LOGITS.clone().requires_grad_()
    objective_of_logprobs(completion_logprobs(logits)).backward()
    return logits.grad.flatten()


def pass_rate() -> float:
    return float(completion_logprobs(LOGITS).exp() @ REWARDS)


def expected_update(estimator, size: int, row_weight: Tensor, **options) -> Tensor:
    """E over all groups of `size` completions of 1/size sum_i A_i row_weight_i grad log pi(o_i)."""
    groups = torch.cartesian_prod(*[torch.arange(len(COMPLETIONS))] * size)
    group_ids = torch.arange(len(groups)).repeat_interleave(size)
    advantages = estimator(REWARDS[groups].flatten(), group_ids, **options).view(-1, size)
    probability = completion_logprobs(LOGITS)[groups].sum(1).exp()
    assert probability.sum() == pytest.approx(1)
    return gradient(lambda logprobs: (probability[:, None] * advantages * (row_weight * logprobs)[groups]).sum() / size)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a, b, dim=0))


def class_weights(estimator, size: int, p: float, **options) -> tuple[float, float]:
    """E over groups of the mean advantage that falls on successes, and of minus that on failures."""
    wins = torch.arange(size + 1)
    rewards = (torch.arange(size) < wins[:, None]).double()
    advantages = estimator(rewards.flatten(), wins.repeat_interleave(size), **options).view(-1, size)
    binomial = [math.comb(size, c) * p**c * (1 - p) ** (size - c) for c in range(size + 1)]
    probability = torch.tensor(binomial, dtype=torch.float64)
    successes = probability @ (advantages * rewards).mean(1)
    failures = probability @ (advantages * (1 - rewards)).mean(1)
    return float(successes), float(-failures)


def factor(estimator, size: int, p: float, **options) -> float:
    """The expected update over the gradient of p: E+ grad log pi = grad p / p, E- grad log pi = -grad p / (1-p)."""
    successes, failures = class_weights(estimator, size, p, **options)
    return successes / p + failures / (1 - p)


ESTIMATORS = [
    pytest.param(mean_advantages, {}, id="mean"),
    pytest.param(mean_advantages, {"scale": "none"}, id="mean without scale"),
    pytest.param(leave_one_out_advantages, {}, id="leave_one_out"),
    *(pytest.param(quantile_advantages, {"k": k}, id=f"quantile {k}") for k in (0.2, 0.4, 0.6, 0.8)),
    pytest.param(quantile_advantages, {"k": 0.4, "scale": "none"}, id="quantile without scale"),
    pytest.param(quantile_advantages, {"k": 0.4, "method": "linear"}, id="quantile linear"),
]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("estimator", "options"), ESTIMATORS)
def test_per_sequence_sums_are_parallel_with_the_stated_factor(estimator, options, size):
    ascent = gradient(lambda logprobs: logprobs.exp() @ REWARDS)
    update = expected_update(estimator, size, torch.ones_like(LENGTHS), **options)
    torch.testing.assert_close(update, factor(estimator, size, pass_rate(), **options) * ascent, rtol=1e-9, atol=1e-12)


def test_leave_one_out_is_the_gradient_itself_and_the_plain_mean_shrinks_it():
    for size in (2, 4, 16):
        assert factor(leave_one_out_advantages, size, 0.3) == pytest.approx(1)
        assert factor(mean_advantages, size, 0.3, scale="none") == pytest.approx((size - 1) / size)


@pytest.mark.parametrize(
    ("p", "of_mean", "of_quantile"), [(0.23, 2.2513, 2.3528), (0.47, 1.9373, 1.7988), (0.78, 2.2808, 2.2648)]
)
def test_factors_at_group_size_16(p, of_mean, of_quantile):
    """Mean and quantile (K = 0.4) climb the same pass rate at nearly the same rate: 1/sqrt(p (1-p)), large groups."""
    assert factor(mean_advantages, 16, p) == pytest.approx(of_mean, abs=5e-5)
    assert factor(quantile_advantages, 16, p, k=0.4) == pytest.approx(of_quantile, abs=5e-5)
    limit = (p * (1 - p)) ** -0.5
    assert factor(mean_advantages, 800, p) == pytest.approx(limit, rel=0.005)
    assert factor(quantile_advantages, 800, p, k=0.4) == pytest.approx(limit, rel=0.005)


def test_per_sequence_means_are_not_parallel():
    """With 1/|o| the two classes' gradients are no longer opposite, so the class that is kept turns the update.

    On this policy (p = 0.23, groups of 4) the cosine with the mean baseline's update falls to 0.83 at K = 0.8.
    """
    of_mean = expected_update(mean_advantages, 4, 1 / LENGTHS)
    for k, expected in ((0.2, 0.9619), (0.4, 0.9668), (0.6, 0.9996), (0.8, 0.8301)):
        of_quantile = expected_update(quantile_advantages, 4, 1 / LENGTHS, k=k)
        assert cosine(of_quantile, of_mean) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("estimator", "options"), ESTIMATORS)
def test_per_sequence_means_mix_two_directions_by_the_class_weights(estimator, options):
    """W+ E+[grad log pi / |o|] - W- E-[grad log pi / |o|]: a hard prompt has only the first, an easy one the second."""
    p = pass_rate()
    successes = gradient(lambda logprobs: (logprobs.exp().detach() * REWARDS / LENGTHS) @ logprobs / p)
    failures = gradient(lambda logprobs: (logprobs.exp().detach() * (1 - REWARDS) / LENGTHS) @ logprobs / (1 - p))
    w_successes, w_failures = class_weights(estimator, 4, p, **options)
    update = expected_update(estimator, 4, 1 / LENGTHS, **options)
    torch.testing.assert_close(update, w_successes * successes - w_failures * failures, rtol=1e-9, atol=1e-12)
    assert cosine(successes, -failures) == pytest.approx(0.6459, abs=5e-5)


def test_per_sequence_means_are_parallel_again_where_lengths_are_equal():
    of_mean = expected_update(mean_advantages, 4, torch.full_like(LENGTHS, 1 / 3))
    of_quantile = expected_update(quantile_advantages, 4, torch.full_like(LENGTHS, 1 / 3), k=0.4)
    assert cosine(of_quantile, of_mean) == pytest.approx(1)
