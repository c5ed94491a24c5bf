"""The trainer's own parts, without Ray: settings refused early, whole groups in a mini-batch, shares."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.verl


def settings(*overrides: str) -> Any:
    from qae.integrations.verl.checks import compose

    return compose(list(overrides))


def test_it_is_registered() -> None:
    from verl.trainer.ppo.v1 import get_trainer_cls

    from qae.integrations.verl import trainer

    assert get_trainer_cls("qae_sync") is trainer.QaeTrainer


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.adv_estimator=qae", "+algorithm.qae_k=40"], "must be a fraction"),
        (["algorithm.adv_estimator=grpo", "+algorithm.qae_on=outcome"], "no effect on algorithm.adv_estimator=grpo"),
        (["algorithm.adv_estimator=qae_rloo", "+algorithm.qae_on=outcome"], "gates a quantile, not qae_rloo"),
        (
            ["algorithm.adv_estimator=qae_loo", "+algorithm.qae_k=0.4", "+algorithm.qae_on=outcome"],
            "gates a quantile, not qae_loo",
        ),
        (["algorithm.adv_estimator=grpo", "+algorithm.qae_on=acc"], "must be one of shaped, outcome"),
        (["algorithm.adv_estimator=grpo", "+algorithm.qae_cut=group"], "must be one of rows, groups"),
    ],
)
def test_refused_before_anything_is_sampled(overrides: list[str], message: str) -> None:
    from qae.integrations.verl.trainer import check_settings

    with pytest.raises(ValueError, match=message):
        check_settings(settings(*overrides))


def test_accepted() -> None:
    from qae.integrations.verl.trainer import check_settings

    check_settings(settings("algorithm.adv_estimator=qae", "+algorithm.qae_k=0.4", "+algorithm.qae_on=outcome"))
    check_settings(settings("algorithm.adv_estimator=grpo"))


def test_a_mini_batch_holds_whole_groups() -> None:
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    from qae.integrations.verl.trainer import whole_group_partitions

    made = torch.Generator().manual_seed(0)
    names = [f"g{i}" for i in range(7) for _ in range(4)] + ["g7"] * 2 + ["padx"] * 2
    order = torch.randperm(len(names), generator=made).tolist()
    groups = [names[i] for i in order]
    cost = torch.randint(1, 50, (len(groups),), generator=made)
    parts = whole_group_partitions(groups, cost, minibatch=8, ranks=2, balance=get_seqlen_balanced_partitions)
    assert sorted(row for part in parts for row in part) == list(range(len(groups)))
    for start in range(0, 16, 4):
        members = [groups[row] for part in parts for row in part[start : start + 4]]
        assert len(members) == 8
        counts = {name: members.count(name) for name in members}
        assert set(counts.values()) == {4} or counts == {"g7": 2, "padx": 2} | {
            name: 4 for name in counts if name not in ("g7", "padx")
        }


def test_shares() -> None:
    from qae.integrations.verl.trainer import shares

    rows = [{"advantage": a, "group": g, "regime": r} for a, g, r in ((1.0, "a", "hard"), (0.0, "a", "hard"))]
    rows += [{"advantage": 0.0, "group": "b", "regime": "flat"}] * 2
    found = shares(rows)
    assert found["qae/zero_frac"] == 0.75 and found["qae/positive_frac"] == 0.25 and found["qae/negative_frac"] == 0
    assert found["qae/hard_frac"] == 0.5 and found["qae/flat_frac"] == 0.5 and found["qae/easy_frac"] == 0


def test_trainer_and_engine_are_loaded_where_they_are_needed_only() -> None:
    """In a process of its own: `import verl` alone loads neither; the registries have both."""
    program = """
import sys, verl
heavy = [n for n in ("qae.integrations.verl.trainer", "qae.integrations.verl.skip") if n in sys.modules]
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.workers.engine import EngineRegistry
print(heavy, get_trainer_cls("qae_sync").__name__, EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__)
"""
    env = os.environ | {
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "QAE_SKIP_ZERO_ADVANTAGE": "1",
        "VERL_USE_EXTERNAL_MODULES": "qae.integrations.verl.load",
    }
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert done.stdout.splitlines()[-1:] == ["[] QaeTrainer SkippingEngine"], done.stderr[-2000:]
