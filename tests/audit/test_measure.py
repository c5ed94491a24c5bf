"""The measured step: the prediction is the derivative, and the policy is as it was afterwards."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fake_parts import TextTask
from qae.audit import measure
from qae.audit.measure import measure_entropy_steps
from qae.policies import load_policy, save_policy
from qae.trainer import loop
from qae.trainer.config import TrainConfig
from tiny_models import random_policy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measure")
    save_policy(random_policy(), folder / "policy")
    config = TrainConfig.load(
        {}, f"policy.path={folder / 'policy'}", "steps=1", "rollout.prompts=6", "rollout.group_size=4",
        "rollout.max_tokens=8", "update.minibatches=1", "eval.problems=0",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "make_task", make_task)
        return loop.train(config, run_dir=folder / "run")


def make_task(config: dict[str, Any], seed: int) -> TextTask:
    return TextTask()


def test_predictions_are_the_first_order_of_what_is_measured(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "make_task", make_task)
    said: list[str] = []
    found = measure_entropy_steps(run, relative_step=1e-5, tell=said.append)
    names = [step["baseline"] for step in found["steps"]]
    assert names == ["mean", "quantile K=0.2", "quantile K=0.4", "quantile K=0.6", "quantile K=0.8"]
    assert len({step["step_size"] for step in found["steps"]}) == 1
    for step in found["steps"]:
        assert step["measured_nats"] == pytest.approx(step["predicted_nats"], rel=0.02, abs=1e-9)
        assert step["measured_nats"] != 0.0
    larger = measure_entropy_steps(run, relative_step=1e-4)["steps"]
    assert larger[0]["predicted_nats"] == pytest.approx(10 * found["steps"][0]["predicted_nats"], rel=1e-6)
    assert said[0].startswith("loading ") and said[-1] == "one step of quantile K=0.8"


def test_a_step_is_taken_back() -> None:
    policy = random_policy()
    before = [p.detach().clone() for p in policy.model.parameters()]
    with pytest.raises(ZeroDivisionError), measure._moved(policy, [torch.ones_like(p) for p in before], 0.1):
        assert not any(torch.equal(p, old) for p, old in zip(policy.model.parameters(), before, strict=True))
        raise ZeroDivisionError
    assert all(torch.equal(p, old) for p, old in zip(policy.model.parameters(), before, strict=True))


def test_nothing_to_step_from_is_said(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"has no checkpoint to take a step from; set checkpoint\.every"):
        measure_entropy_steps(tmp_path)

    class AllWrong(TextTask):
        def grade(self, pairs: Any) -> Any:
            return [type(grade)(0.0, 0.0) for grade in super().grade(pairs)]

    monkeypatch.setattr(measure, "make_task", lambda config, seed: AllWrong())
    with pytest.raises(ValueError, match="no group of the batch is mixed: every advantage is 0"):
        measure_entropy_steps(run)


def test_the_checkpoint_itself_is_not_touched(run: Path) -> None:
    (last,) = (run / "checkpoints").iterdir()
    assert load_policy(str(last), dtype="float32").model.dtype == torch.float32
