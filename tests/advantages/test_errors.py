"""What a user reads after a wrong call: the argument, the value, the bound and the next step.

The calls run in a fresh interpreter, because in this one the shape hook answers before the library does.
"""

import json
import subprocess
import sys

import pytest

CALLS = {
    "quantile_advantages(r, g, k=40)": "k=40 must lie strictly between 0 and 1 (k is a fraction: 0.4?)",
    "quantile_advantages(r, g, k=12.5)": "k=12.5 must lie strictly between 0 and 1 (k is a fraction: 0.125?)",
    "quantile_advantages(r, g, k=1.0)": (
        "k=1.0 must lie strictly between 0 and 1 (0.4 is usual; for the mean use mean_advantages)"
    ),
    "quantile_advantages(r, g, k=0)": (
        "k=0 must lie strictly between 0 and 1 (0.4 is usual; for the mean use mean_advantages)"
    ),
    "quantile_advantages(r, g, k=-1)": (
        "k=-1 must lie strictly between 0 and 1 (0.4 is usual; for the mean use mean_advantages)"
    ),
    "quantile_advantages(r, g, k=float('nan'))": (
        "k=nan must lie strictly between 0 and 1 (0.4 is usual; for the mean use mean_advantages)"
    ),
    "quantile_advantages(r, g, k=1.5)": (
        "k=1.5 must lie strictly between 0 and 1 (0.4 is usual; for the mean use mean_advantages)"
    ),
    "quantile_advantages(r, g, k='a')": "k='a' is a str; pass a number strictly between 0 and 1, such as 0.4",
    "quantile_advantages(r, g, k=None)": "k=None is a NoneType; pass a number strictly between 0 and 1, such as 0.4",
    "quantile_advantages(r, g, k=[0.2])": "k=[0.2] is a list; pass a number strictly between 0 and 1, such as 0.4",
    "quantile_advantages(r, g, method='linaer')": (
        "method='linaer' must be one of 'exact', 'linear'; did you mean 'linear'?"
    ),
    "quantile_advantages(r, g, scale='mean')": "scale='mean' must be one of 'std', 'batch', 'none'",
    "mean_advantages(r, g, scale='x')": "scale='x' must be one of 'std', 'batch', 'mean', 'none'",
    "mean_advantages(r, g, divisor='n1')": "divisor='n1' must be one of 'n', 'n-1'; did you mean 'n-1'?",
    "mean_advantages(r, g, eps=-1e-6)": "eps=-1e-06 must be at least 0",
    "mean_advantages(r, g, flat_tolerance=-0.1)": "flat_tolerance=-0.1 must be at least 0",
    "leave_one_out_advantages(r, g, min_size=1)": "min_size=1 must be at least 2",
    "mean_advantages(r - 1, g, scale='mean')": (
        "rewards[1]=-1.0 must be at least 0, as scale='mean' divides by the mean reward; "
        "pass 0/1 outcomes, or scale='std'"
    ),
    "quantile_advantages([1.0, 0.0], g)": "rewards is a list; pass torch.tensor(rewards)",
    "quantile_advantages(r, ['a', 'a'])": "group_ids is a list; pass torch.tensor(group_ids)",
    "quantile_advantages(r.long(), g)": "rewards has dtype torch.int64; pass rewards.float()",
    "quantile_advantages(r, g.float())": (
        "group_ids has dtype torch.float32; pass integers, one value for each prompt"
    ),
    "quantile_advantages(r, g[:1])": (
        "rewards has shape [2] and group_ids has [1]; both must be [n], one number and one id for each completion"
    ),
    "quantile_advantages(r[:, None], g[:, None])": (
        "rewards has shape [2, 1] and group_ids has [2, 1]; both must be [n], one number and one id for each completion"
    ),
    "quantile_advantages(r / 0, g)": ("rewards[0]=inf is not finite; pass NaN for a row that was not scored"),
    "outcome_quantile_advantages(r, -r / 0, g)": (
        "penalties[0]=-inf is not finite; pass NaN for a row that was not scored"
    ),
    "outcome_quantile_advantages(r.long(), r, g)": "outcomes has dtype torch.int64; pass outcomes.float()",
    "outcome_quantile_advantages(r, r[:1], g)": (
        "penalties has shape [1] and group_ids has [2]; both must be [n], one number and one id for each completion"
    ),
    "random_mask_advantages(r, g)": (
        "random_mask needs row_keys, one random integer for each completion, and got none; pass for example "
        "torch.randint(2**62, rewards.shape, generator=...), new ones for each step"
    ),
    "random_mask_advantages(r, g, row_keys=g[:1])": (
        "random_mask needs row_keys, one random integer for each completion, and got shape [1] for rewards of shape "
        "[2]; pass for example torch.randint(2**62, rewards.shape, generator=...), new ones for each step"
    ),
    "w_reinforce_advantages(r, g, positive_weight=-0.1)": "positive_weight=-0.1 must be at least 0",
    "asymre_advantages(r, g, shift=float('nan'))": "shift=nan must be a finite number, in the unit of the reward",
    "fixed_advantages(r, g, baseline=float('inf'))": "baseline=inf must be a finite number, in the unit of the reward",
    "pos_mask_advantages(r, g, scale='mean')": "scale='mean' must be one of 'std', 'none'",
    "neg_mask_advantages(r, g, k=40)": "k=40 must lie strictly between 0 and 1 (k is a fraction: 0.4?)",
    "group_flat(r, g, tolerance=-1.0)": "tolerance=-1.0 must be at least 0",
    "regimes(r, g, k=40)": "k=40 must lie strictly between 0 and 1 (k is a fraction: 0.4?)",
    "regime_table(r, g, [0.4, 60])": "k=60 must lie strictly between 0 and 1 (k is a fraction: 0.6?)",
}

SCRIPT = """
import json, sys, torch
from qae.advantages import *
from qae.entropy import *
from qae.groups import *
r, g = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
for call in json.load(sys.stdin):
    try:
        print(json.dumps(f"no error: {eval(call)}"))
    except (TypeError, ValueError) as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def answers():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(list(CALLS)), capture_output=True, text=True, check=True
    )
    return dict(zip(CALLS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("call", CALLS)
def test_error_text(answers, call):
    assert answers[call] == CALLS[call]
