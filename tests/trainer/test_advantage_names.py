"""Every estimator of the table from the configuration: composed, called with its own settings, skipping zero rows."""

from inspect import signature
from typing import Any

import pytest
import torch

from qae.advantages import ADVANTAGES
from qae.engines.verl.refusals import refusals
from qae.rewards import Grade
from qae.tasks import Item
from qae.trainer.batch import Group
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError
from qae.trainer.loop import advantages_of

OUTCOMES = [[1.0, 0, 0, 0, 0, 0, 0, 0], [1.0, 1, 1, 1, 1, 1, 0, 1], [0.0] * 8, [1.0, 0, 1, 0, 1, 0, 1, 0]] * 4
OWN = {"fixed": ("baseline", 1.0), "asymre": ("shift", 0.2), "w_reinforce": ("positive_weight", 0.3)}


def groups() -> list[Group]:
    return [
        Group(Item(str(i), "?", "!"), [1], [], [Grade(o, o) for o in outcomes], [0.0] * 8)
        for i, outcomes in enumerate(OUTCOMES)
    ]


@pytest.mark.parametrize("name", ADVANTAGES)
def test_the_configuration_reaches_the_estimator(name: str) -> None:
    """Zero rows may be left out with every one of them: that depends on the loss, not on the baseline."""
    setting, value = OWN.get(name, ("divisor", "n-1"))
    overrides = (f"algorithm.advantage={name}", f"algorithm.advantage.{setting}={value}")
    config = TrainConfig.load({}, *overrides, "algorithm.skip_zero_advantage=on")
    options: dict[str, Any] = {setting: value} if setting in signature(ADVANTAGES[name]).parameters else {}
    rewards = torch.tensor(OUTCOMES).flatten()
    group_ids = torch.arange(len(OUTCOMES)).repeat_interleave(8)
    found = advantages_of(config, groups(), step=3)
    if name == "random_mask":
        options["row_keys"] = torch.arange(len(rewards))
        right = ADVANTAGES[name](rewards, group_ids, **options)
        assert (found != 0).sum() == (right != 0).sum()
    else:
        assert torch.equal(found, ADVANTAGES[name](rewards, group_ids, **options))
    assert (found[16:24] == 0).all()
    assert (found != 0).any()


def test_the_random_mask_is_new_each_step_and_the_same_again() -> None:
    config = TrainConfig.load({}, "algorithm.advantage=random_mask")
    first, again, later = (advantages_of(config, groups(), step=step) for step in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    other = TrainConfig.load({}, "algorithm.advantage=random_mask", "seed=1")
    assert not torch.equal(first, advantages_of(other, groups(), step=1))


@pytest.mark.parametrize("name", [name for name in ADVANTAGES if name != "mean"])
def test_maxrl_s_scale_belongs_to_the_mean(name: str) -> None:
    with pytest.raises(ConfigError, match=r"scale=mean belongs to algorithm\.advantage=mean \(MaxRL\)"):
        TrainConfig.load({}, f"algorithm.advantage={name}", "algorithm.advantage.scale=mean")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.advantage\.name='median': input should be 'asymre', 'fixed'"):
        TrainConfig.load({}, "algorithm.advantage=median")


@pytest.mark.parametrize("name", ["asymre", "fixed", "random_mask", "w_reinforce"])
def test_verl_is_refused_what_its_estimators_do_not_get(name: str) -> None:
    config = TrainConfig.load({}, f"algorithm.advantage={name}", "engine=verl", "engine.workers=1")
    assert any(text.startswith(f"algorithm.advantage={name} is a control of the study") for text in refusals(config))
