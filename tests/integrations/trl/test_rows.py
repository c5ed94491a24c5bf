"""What the TRL adapter computes, without TRL."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from qae.integrations.trl import refill, skip
from qae.integrations.trl.contract import contract_breaches
from qae.integrations.trl.settings import QuantileSettings


def test_importing_the_package_imports_neither_trl_nor_torch():
    code = "import sys, qae.integrations.trl as t; dir(t); print([n for n in ('trl', 'torch') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("said", "meant"), [("True", "on"), ("False", "off"), ("on", "on"), ("auto", "auto")])
def test_yaml_reads_on_and_off_as_booleans(said, meant):
    assert QuantileSettings(skip_zero_advantage=said).skip_zero_advantage == meant


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"skip_zero_advantage": "yes"}, "skip_zero_advantage='yes' must be one of 'auto', 'on', 'off'"),
        ({"entropy_rows": "al"}, "entropy_rows='al' must be one of 'all', 'kept'; did you mean 'all'?"),
        ({"dynamic_sampling_refills": -1}, "dynamic_sampling_refills=-1 must be at least 0"),
    ],
)
def test_settings_are_checked(options, words):
    with pytest.raises(ValueError) as error:
        QuantileSettings(**options)
    assert str(error.value) == words


def trainer(**attributes):
    plain = {"beta": 0.0, "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "_entropy_bonus_enabled": False}
    return SimpleNamespace(**{**plain, "args": SimpleNamespace(use_liger_kernel=False), **attributes})


@pytest.mark.parametrize(
    ("attributes", "word"),
    [
        ({"beta": 0.04}, "KL"),
        ({"_entropy_bonus_enabled": True}, "entropy bonus"),
        ({"aux_loss_enabled": True}, "router"),
        ({"top_entropy_quantile": 0.2}, "top_entropy_quantile"),
        ({"args": SimpleNamespace(use_liger_kernel=True)}, "use_liger_kernel"),
    ],
)
def test_reasons_against_skipping(attributes, word):
    assert skip.reasons_against(trainer()) == []
    (reason,) = skip.reasons_against(trainer(**attributes))
    assert word in reason


def test_rows_that_learn_have_an_advantage_and_a_token():
    mask = torch.tensor([[1, 1], [1, 0], [0, 0], [1, 1]])
    inputs = {"advantages": torch.tensor([1.0, 0.0, 2.0, -1.0]), "completion_mask": mask}
    assert skip.rows_to_learn(inputs).tolist() == [True, False, False, True]
    inputs["tool_mask"] = torch.tensor([[0, 0], [1, 1], [1, 1], [1, 0]])
    assert skip.rows_to_learn(inputs).tolist() == [False, False, False, True]
    inputs["advantages"] = torch.zeros(4)
    assert skip.rows_to_learn(inputs).tolist() == [True, False, False, False]


def test_kept_rows_come_back_to_their_places_without_their_padding():
    ids = torch.tensor([[0, 0, 5, 7, 8, 0], [0, 3, 4, 6, 0, 0], [0, 0, 9, 1, 2, 3]])
    mask = (ids > 0).long()
    seen = []

    def forward(model, ids, mask, keep, **_):
        seen.append(ids.shape)
        return ids[:, -keep:].float(), ids[:, -keep:].float() * 10, None

    learns = torch.tensor([True, False, False])
    options = {"stand_in": None, "always_measure": False, "trim_left": True}
    logprobs, entropies, _ = skip.forward_kept_rows(forward, None, ids, mask, 3, learns, measure_rest=True, **options)
    assert logprobs.tolist() == [[7, 8, 0], [6, 0, 0], [1, 2, 3]]
    assert entropies.tolist() == [[70, 80, 0], [60, 0, 0], [10, 20, 30]]
    assert seen == [(1, 3), (2, 5)]
    options |= {"stand_in": -ids[:, 3:].float(), "trim_left": False}
    seen.clear()
    logprobs, entropies, _ = skip.forward_kept_rows(forward, None, ids, mask, 3, learns, measure_rest=False, **options)
    assert logprobs.tolist() == [[7, 8, 0], [-6, 0, 0], [-1, -2, -3]]
    assert entropies.tolist() == [[70, 80, 0], [0, 0, 0], [0, 0, 0]]
    assert seen == [(1, 5)]


def test_every_process_runs_the_model_equally_often():
    ids = torch.ones(2, 4, dtype=torch.int64)
    seen = []

    def forward(model, ids, mask, keep, **_):
        seen.append(torch.is_grad_enabled())
        return ids[:, -keep:].float(), None, None

    options = {"stand_in": None, "measure_rest": True, "trim_left": False}
    every = torch.tensor([True, True])
    logprobs, _, _ = skip.forward_kept_rows(forward, None, ids, ids, 2, every, always_measure=True, **options)
    assert logprobs.shape == (2, 2)
    assert seen == [True, False]


def test_batches_are_joined_like_trl_pads_them():
    short = {"prompt_ids": torch.tensor([[4]]), "prompt_mask": torch.tensor([[1]]), "n": torch.tensor(3)}
    long = {"prompt_ids": torch.tensor([[5, 6]]), "prompt_mask": torch.tensor([[1, 1]]), "n": torch.tensor(4)}
    short |= {"completion_ids": torch.tensor([[7, 7]]), "advantages": torch.tensor([1.0])}
    long |= {"completion_ids": torch.tensor([[8]]), "advantages": torch.tensor([2.0])}
    joined = refill.join_batches([short, long], pad_id=9)
    assert joined["prompt_ids"].tolist() == [[9, 4], [5, 6]]
    assert joined["prompt_mask"].tolist() == [[0, 1], [1, 1]]
    assert joined["completion_ids"].tolist() == [[7, 7], [8, 9]]
    assert joined["advantages"].tolist() == [1, 2]


def test_refills_refuse_what_has_no_rows():
    with pytest.raises(ValueError, match="handles text only, and this batch has num_images; set dynamic_sampling"):
        refill.take_rows({"prompt_ids": torch.ones(2, 2), "num_images": [1, 1]}, torch.tensor([0]))


def test_prompts_of_a_refill_are_a_function_of_seed_step_and_refill():
    drawn = refill.draw_prompts(100, 10, seed=1, step=2, refill=0)
    assert drawn == refill.draw_prompts(100, 10, seed=1, step=2, refill=0)
    assert len(set(drawn)) == 10
    others = [refill.draw_prompts(100, 10, seed=s, step=t, refill=r) for s, t, r in [(2, 2, 0), (1, 3, 0), (1, 2, 1)]]
    assert drawn not in others
    assert refill.draw_prompts(2, 5, seed=0, step=0, refill=0)[:2] == refill.draw_prompts(2, 5, 0, 0, 0)[2:4]


def test_a_breach_of_the_contract_is_told_by_name():
    class Host:
        def _calculate_rewards(self, prompts, inputs): ...

    needed = {"_calculate_rewards": ("inputs",), "_generate": ("prompts",)}
    assert contract_breaches(Host, needed) == [
        "Host._calculate_rewards takes (prompts, inputs), expected (inputs, ...)",
        "Host has no method _generate",
    ]


def test_reasons_against_refilling():
    args = SimpleNamespace(per_device_train_batch_size=4, steps_per_generation=2)
    assert refill.reason_against(SimpleNamespace(args=args, num_generations=8, train_dataset=[1])) is None
    spans = refill.reason_against(SimpleNamespace(args=args, num_generations=16, train_dataset=[1]))
    assert spans == (
        "per_device_train_batch_size * steps_per_generation is 8, no multiple of num_generations=16: a group would lie "
        "on two processes. Make it a multiple"
    )
    stream = refill.reason_against(SimpleNamespace(args=args, num_generations=8, train_dataset=iter([1])))
    assert "Use a map-style dataset" in stream
