"""The measured step: the prediction is the derivative, and the policy is as it was afterwards."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fake_parts import TextTask
from qae.advantages import fixed_advantages
from qae.audit import measure
from qae.audit.measure import measure_entropy_steps
from qae.entropy import predicted_entropy_change
from qae.policies import load_policy, save_policy
from qae.sampling import Completion
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
    assert names == ["mean", *(f"quantile K={k}" for k in (0.2, 0.4, 0.6, 0.8)), "fixed 0", "fixed 1"]
    assert len({step["step_size"] for step in found["steps"]}) == 1
    for step in found["steps"]:
        assert step["measured_nats"] == pytest.approx(step["predicted_nats"], rel=0.02, abs=1e-9)
        assert step["own_measured_nats"] == pytest.approx(step["own_predicted_nats"], rel=0.02, abs=1e-9)
        assert step["measured_nats"] != 0.0
    larger = measure_entropy_steps(run, relative_step=1e-4)["steps"]
    assert larger[0]["predicted_nats"] == pytest.approx(10 * found["steps"][0]["predicted_nats"], rel=1e-6)
    assert said[0].startswith("loading ") and said[-1] == "one step of fixed 1"


def test_with_lora_the_step_starts_from_the_adapted_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint holds the merged model; the configuration's policy knows nothing of the run."""
    pytest.importorskip("peft")
    save_policy(random_policy(), tmp_path / "policy")
    for module in (loop, measure):
        monkeypatch.setattr(module, "make_task", make_task)
    config = TrainConfig.load(
        {"policy": {"lora": {"r": 2}}}, f"policy.path={tmp_path / 'policy'}", "steps=1", "rollout.prompts=6",
        "rollout.group_size=4", "rollout.max_tokens=8", "update.minibatches=1", "eval.problems=0",
    )  # fmt: skip
    run = loop.train(config, run_dir=tmp_path / "run")
    loaded: list[str] = []
    monkeypatch.setattr(measure, "load_policy", lambda path, **more: loaded.append(path) or load_policy(path, **more))
    found = measure_entropy_steps(run)
    assert loaded == [found["checkpoint"]]
    assert found["steps"][0]["measured_nats"] == pytest.approx(found["steps"][0]["predicted_nats"], rel=0.02, abs=1e-9)


def test_several_batches_are_averaged_and_compared_in_pairs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "make_task", make_task)
    one, two = (measure_entropy_steps(run, batches=n) for n in (1, 2))
    assert one["steps"][0]["measured_se_nats"] is None
    assert (one["batches"], two["batches"]) == (1, 2)
    mean, *others = two["steps"]
    assert one["steps"][0]["signal_norm"] is None
    for step in two["steps"]:
        assert step["signal_norm"] ** 2 + step["noise_norm"] ** 2 >= step["gradient_norm"] ** 2 > 0
    assert (mean["from_mean_nats"], mean["from_mean_se_nats"]) == (0.0, 0.0)
    first = {step["baseline"]: step["measured_nats"] for step in one["steps"]}
    for step in others:
        name, both = step["baseline"], step["measured_nats"]
        assert step["from_mean_nats"] == pytest.approx(both - mean["measured_nats"])
        # of two values, the standard error is half their distance, and the mean lies between them
        assert step["measured_se_nats"] == pytest.approx(abs(both - first[name]), rel=1e-6)


def test_shared_gradient_and_scatter_are_told_apart() -> None:
    """Gradients 3 e_1 plus unit noise of ten coordinates: signal 3, noise sqrt(10), whatever the number of batches."""
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(400):
        scatter = measure.Scatter()
        for _ in range(4):
            noise = torch.randn(10, generator=generator, dtype=torch.float64)
            noise[0] += 3
            scatter.add([noise[:4].reshape(2, 2), noise[4:]])
        found.append(scatter.norms())
    assert sum(f["signal_norm"] ** 2 for f in found) / 400 == pytest.approx(9, rel=0.05)
    assert sum(f["noise_norm"] ** 2 for f in found) / 400 == pytest.approx(10, rel=0.05)
    one = measure.Scatter()
    one.add([torch.ones(3)])
    assert one.norms() == {"signal_norm": None, "noise_norm": None}
    one.add([torch.ones(3)])
    assert one.norms() == {"signal_norm": pytest.approx(3**0.5), "noise_norm": 0.0}


def test_lengths_of_single_gradients_from_random_signs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against one backward pass a completion; and the predicted noise is what they sum to."""
    monkeypatch.setattr(measure, "make_task", make_task)
    monkeypatch.setattr(measure, "SIGN_DRAWS", 60)
    kept: list[tuple[measure.Contexts, Any]] = []
    own_tokens = measure.contexts_of

    def keep(policy: Any, groups: Any, temperature: float) -> measure.Contexts:
        kept.append((own_tokens(policy, groups, temperature), groups))
        return kept[-1][0]

    monkeypatch.setattr(measure, "contexts_of", keep)
    found = measure_entropy_steps(run)
    (own, groups), outcomes = kept[0], [o for group in kept[0][1] for o in group.outcomes]
    norms = []
    for i in range(len(outcomes)):
        g = own.gradient(lambda logprobs, entropies, rows, i=i: (rows == i) * logprobs)
        norms.append(sum(float(x.square().sum()) for x in g) * own.count**2)
    for key, outcome in (("success_norm2", 1.0), ("failure_norm2", 0.0)):
        right = [norm for norm, o in zip(norms, outcomes, strict=True) if o == outcome]
        assert found[key] == pytest.approx(sum(right) / len(right), rel=0.18)  # sqrt(2 / 60) at most
    fixed = found["steps"][-1]
    assert fixed["baseline"] == "fixed 1"
    assert found["least_noise_k"] == found["success_norm2"] / (found["success_norm2"] + found["failure_norm2"])
    weights = fixed_advantages(
        torch.tensor(outcomes), torch.tensor([i for i, g in enumerate(groups) for _ in g.grades]), baseline=1
    )
    expected = sum(float(a) ** 2 * found["failure_norm2"] for a in weights) / own.count**2
    assert fixed["predicted_noise_norm"] == pytest.approx(expected**0.5, rel=1e-5)


def test_the_two_predictions_are_those_of_a_step_on_the_logits() -> None:
    """Averaged over y, for one context, they are `predicted_entropy_change` with and without centring."""
    policy = random_policy()
    policy.model.double()
    prompt, size = [3, 4, 5], policy.model.config.vocab_size
    every = [Completion(0, [y], "", torch.zeros(1), torch.zeros(1), False) for y in range(size)]
    tokens = measure.Contexts(policy, [prompt], [0] * size, every, temperature=0.8)
    drawn, expected, owners = tokens.surprises()
    logits = policy.model(torch.tensor([prompt])).logits[0, -1].detach() / 0.8
    advantages = torch.linspace(-1, 1, size, dtype=torch.float64)
    probs = logits.softmax(-1)
    assert owners.tolist() == list(range(size))
    identity, centred = -(probs * advantages * drawn).sum(), -(probs * advantages * (drawn - expected)).sum()
    for found, is_centred in ((identity, False), (centred, True)):
        right = predicted_entropy_change(logits, advantages, 1.0, centred=is_centred)
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-12)


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
