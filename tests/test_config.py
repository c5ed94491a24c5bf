"""The configuration: what a preset fills in, where values come from, and what every refusal says."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from qae.trainer import keys
from qae.trainer.config import LOSS_DEFAULTS, PRESETS, TrainConfig, describe, known_keys, resolve
from qae.trainer.keys import ConfigError


def flat(config: TrainConfig) -> dict[str, Any]:
    return keys.flatten(config.model_dump())


# family -> (loss, reduction, scale, dynamic sampling, clip range)
FAMILIES = {
    "grpo": ("clip", "sequence_mean", "std", False, (0.2, 0.2)),
    "dr_grpo": ("clip", "sequence_sum_norm", "none", False, (0.2, 0.2)),
    "rloo": ("clip", "sequence_sum", "none", False, (0.2, 0.2)),
    "dapo": ("clip", "token_mean", "std", True, (0.2, 0.28)),
    "gspo": ("sequence", "sequence_mean", "std", False, (3e-4, 4e-4)),
    "clip_cov": ("clip_cov", "token_mean", "std", False, (1.0, 1.0)),
    "kl_cov": ("kl_cov", "token_mean", "std", False, (None, None)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_presets_are_the_papers_families(name: str) -> None:
    algorithm = TrainConfig.load({}, f"algorithm.preset={name}").algorithm
    loss, reduction, scale, dynamic, clip = FAMILIES[name]
    assert algorithm.loss.name == loss
    assert algorithm.reduction == reduction
    assert algorithm.advantage.scale == scale
    assert algorithm.dynamic_sampling.enabled is dynamic
    assert (algorithm.loss.clip_low, algorithm.loss.clip_high) == clip


def test_every_preset_is_tested() -> None:
    assert set(FAMILIES) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_switching_the_baseline_switches_nothing_else(name: str) -> None:
    by_baseline = [
        flat(TrainConfig.load({}, f"algorithm.preset={name}", f"algorithm.advantage={baseline}"))
        for baseline in ("quantile", "mean")
    ]
    assert {key for key in by_baseline[0] if by_baseline[0][key] != by_baseline[1][key]} == {"algorithm.advantage.name"}


def test_each_value_knows_its_source(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("algorithm: {preset: grpo, advantage: {k: 0.3}}\nsteps: 7\n")
    resolved = resolve(str(recipe), ["steps=9", "algorithm.loss.clip_high=0.25"])
    sources = resolved.sources
    assert resolved.config.steps == 9 and sources["steps"] == "command line"
    assert resolved.config.algorithm.advantage.k == 0.3 and sources["algorithm.advantage.k"] == str(recipe)
    assert sources["algorithm.reduction"] == "preset grpo"
    assert sources["algorithm.loss.clip_high"] == "command line"
    assert sources["algorithm.loss.clip_low"] == "loss default"
    assert sources["update.lr"] == "default"
    assert set(sources) == set(flat(resolved.config))


def test_a_shipped_recipe_is_named_as_a_source() -> None:
    assert resolve("tiny").sources["algorithm.advantage.k"] == "recipe tiny"
    assert resolve().sources["policy.path"] == "recipe tiny"


def test_a_preset_on_the_command_line_resets_what_it_owns() -> None:
    recipe = {
        "algorithm": {
            "preset": "dapo",
            "reduction": "sequence_sum",
            "loss": {"clip_high": 0.5},
            "advantage": {"k": 0.2},
        },
        "steps": 3,
    }
    resolved = resolve(recipe, ["algorithm.preset=grpo"])
    assert resolved.config.algorithm.reduction == "sequence_mean"
    assert resolved.sources["algorithm.reduction"] == "preset grpo"
    assert resolved.config.algorithm.dynamic_sampling.enabled is False
    assert (resolved.config.algorithm.advantage.k, resolved.config.steps) == (0.2, 3)


def test_what_stands_beside_a_preset_on_the_command_line_beats_it() -> None:
    config = TrainConfig.load({}, "algorithm.preset=grpo", "algorithm.reduction=token_mean")
    assert (config.algorithm.preset, config.algorithm.reduction) == ("grpo", "token_mean")


def test_another_loss_brings_its_own_clip_range() -> None:
    loss = TrainConfig.load("tiny", "algorithm.loss=cispo").algorithm.loss
    assert (loss.clip_low, loss.clip_high) == (10.0, 0.2)
    recipe = {"algorithm": {"loss": {"name": "clip", "clip_high": 0.5}}}
    loss = TrainConfig.load(recipe, "algorithm.loss=sapo").algorithm.loss
    assert (loss.clip_high, loss.tau_negative) == (None, 1.05)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("policy=smollm2", "policy.path=smollm2"),
        ("task=few_shot_arithmetic", "task.name=few_shot_arithmetic"),
        ("algorithm.advantage=mean", "algorithm.advantage.name=mean"),
        ("algorithm.loss=sapo", "algorithm.loss.name=sapo"),
        ("engine=local", "engine.name=local"),
    ],
)
def test_a_section_is_short_for_its_name(short: str, long: str) -> None:
    assert TrainConfig.load("tiny", short) == TrainConfig.load("tiny", long)


def test_further_keys_of_a_section_stand_beside_its_short_name() -> None:
    advantage = TrainConfig.load(
        "tiny", "algorithm.advantage=mean", "algorithm.advantage.scale=none"
    ).algorithm.advantage
    assert (advantage.name, advantage.scale) == ("mean", "none")


def test_a_file_of_data_needs_no_name() -> None:
    assert TrainConfig.load("tiny", "task.path=problems.jsonl", "task.grader=math").task.name == "data"


def test_another_task_drops_the_options_of_the_old_one() -> None:
    recipe = {"task": {"name": "arithmetic", "levels": {"easy": 1}}}
    assert TrainConfig.load(recipe, "task=few_shot_arithmetic").task.model_dump() == {"name": "few_shot_arithmetic"}
    kept = TrainConfig.load(recipe, "task.name=arithmetic").task.model_dump()
    assert kept == {"name": "arithmetic", "levels": {"easy": 1}}


def test_values_are_yaml() -> None:
    config = TrainConfig.load(
        "tiny", "policy.lora={r: 16}", "rollout.stop=['\\n', 'Q:']", "update.lr=1e-4", "threads=null"
    )
    assert config.policy.lora == {"r": 16}
    assert (config.rollout.stop, config.update.lr, config.threads) == (("\\n", "Q:"), 1e-4, None)


@pytest.mark.parametrize("overrides", [[], ["algorithm.preset=gspo"], ["algorithm.loss=sapo"], ["policy.lora.r=8"]])
def test_config_yaml_is_a_recipe_for_the_same_run(tmp_path: Path, overrides: list[str]) -> None:
    config = TrainConfig.load("tiny", *overrides)
    written = tmp_path / "config.yaml"
    about = {"qae": "0.1.0", "threads": 2}
    written.write_text(yaml.safe_dump({**config.model_dump(mode="json"), "about": about}, sort_keys=False))
    assert resolve(str(written)).config == config
    assert TrainConfig.model_validate(config.model_dump()) == config


def test_config_yaml_takes_overrides(tmp_path: Path) -> None:
    written = tmp_path / "config.yaml"
    written.write_text(yaml.safe_dump(TrainConfig.load("tiny").model_dump(mode="json")))
    longer = resolve(str(written), ["steps=400"])
    assert longer.config == TrainConfig.load("tiny", "steps=400")
    assert longer.sources["steps"] == "command line"


def test_a_config_is_built_in_python_with_the_same_presets() -> None:
    config = TrainConfig(algorithm={"preset": "gspo"})  # pyright: ignore[reportArgumentType]
    assert config == TrainConfig.load({}, "algorithm.preset=gspo")


@given(st.floats(min_value=0.001, max_value=0.999))
def test_every_fraction_is_a_k(k: float) -> None:
    assert TrainConfig.load({}, f"algorithm.advantage.k={k!r}").algorithm.advantage.k == k


# What is given on the command line -> the whole text of the refusal.
REFUSALS = {
    "stpes=3": "unknown key 'stpes'; did you mean 'steps'?",
    "k=0.3": "unknown key 'k'; did you mean 'algorithm.advantage.k'?",
    "algorithm.advantage.kk=0.3": "unknown key 'algorithm.advantage.kk'; did you mean 'algorithm.advantage.k'?",
    "rollout.lr=1": "unknown key 'rollout.lr'; did you mean 'update.lr'?",
    "zzzzqqq=1": "unknown key 'zzzzqqq'; `qae train --help` lists every key",
    "algorithm.advantage.k=40": (
        "algorithm.advantage.k: k is a fraction strictly between 0 and 1, got 40; 40 per cent is k=0.4"
    ),
    "algorithm.advantage.k=1.5": "algorithm.advantage.k: k is a fraction strictly between 0 and 1, got 1.5",
    "algorithm.advantage.k=1": "algorithm.advantage.k: k is a fraction strictly between 0 and 1, got 1",
    "algorithm.advantage.k=0": "algorithm.advantage.k: k is a fraction strictly between 0 and 1, got 0",
    "algorithm.advantage.k=-0.2": "algorithm.advantage.k: k is a fraction strictly between 0 and 1, got -0.2",
    "rollout.group_size=1": (
        "rollout.group_size: group_size is the number of completions a prompt and must be at least 2, got 1: "
        "a group of one has no baseline and every advantage would be 0"
    ),
    "steps=0": "steps=0: input should be greater than 0",
    "steps=many": "steps='many': input should be a valid integer, unable to parse string as an integer",
    "update.lr=-1": "update.lr=-1: input should be greater than 0",
    "algorithm.preset=ppo": (
        "algorithm.preset='ppo': input should be 'grpo', 'dr_grpo', 'rloo', 'dapo', 'gspo', 'clip_cov' or 'kl_cov'"
    ),
    "algorithm.loss=ppo": (
        "algorithm.loss.name='ppo': input should be 'clip', 'sequence', 'clip_cov', 'kl_cov', 'cispo' or 'sapo'"
    ),
    "algorithm.loss.tau_positive=1": "algorithm.loss: tau_positive=1 belongs to the loss sapo, not to clip",
    "algorithm.loss.select_frac=0.1": (
        "algorithm.loss: select_frac=0.1 belongs to the loss clip_cov and kl_cov, not to clip"
    ),
    "algorithm.loss=sequence": (
        "algorithm.reduction=token_mean with algorithm.loss=sequence is not GSPO's objective "
        "(arXiv:2507.18071, eq. 5): set algorithm.reduction=sequence_mean"
    ),
    "algorithm.advantage.scale=mean": (
        "algorithm.advantage.scale=mean belongs to algorithm.advantage=mean (MaxRL); use std or none"
    ),
    "update.minibatches=33": (
        "update.minibatches=33 is more than the 32 groups of a step: raise rollout.prompts or lower update.minibatches"
    ),
    "algorithm.overlong.buffer_tokens=100": (
        "algorithm.overlong.buffer_tokens=100 is longer than algorithm.overlong.max_tokens "
        "(rollout.max_tokens if not given)"
    ),
    "steps": "'steps' is not of the form key.path=value",
    "=3": "'=3' is not of the form key.path=value",
}


@pytest.mark.parametrize("override", REFUSALS)
def test_refusals_name_key_value_and_next_step(override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig.load("tiny", override)
    assert str(refused.value) == REFUSALS[override]


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["algorithm.advantage=mean", "algorithm.advantage.on=outcome"],
            "algorithm.advantage.on=outcome gates a quantile; with algorithm.advantage=mean use "
            "algorithm.advantage.on=shaped",
        ),
        (
            ["update.cut=rows", "update.minibatches=257"],
            "update.minibatches=257 is more than the 256 rows of a step: raise rollout.prompts or lower "
            "update.minibatches",
        ),
        (
            ["algorithm.skip_zero_advantage=on", "algorithm.kl=0.1"],
            "algorithm.skip_zero_advantage=on is refused: the KL penalty (algorithm.kl=0.1) acts on rows with "
            "advantage 0 too; use auto or off",
        ),
        (
            ["algorithm.skip_zero_advantage=on", "algorithm.entropy_bonus=0.01"],
            "algorithm.skip_zero_advantage=on is refused: the entropy bonus (0.01) acts on rows with advantage 0 "
            "too; use auto or off",
        ),
        (
            ["steps=0", "update.lr=0"],
            "steps=0: input should be greater than 0; update.lr=0: input should be greater than 0",
        ),
    ],
)
def test_combinations_that_cannot_be_are_refused(overrides: list[str], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig.load("tiny", *overrides)
    assert str(refused.value) == text


def test_values_that_are_no_yaml_are_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("the value of policy.lora is not valid YAML: '{r: '")):
        TrainConfig.load("tiny", "policy.lora={r: ")


def test_recipes_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("no recipe or file 'tinny'; did you mean tiny?")):
        resolve("tinny")
    with pytest.raises(ConfigError, match=r"no recipe or file '/no/such\.yaml'; shipped recipes: .*tiny"):
        resolve("/no/such.yaml")
    (tmp_path / "broken.yaml").write_text("steps: [1,\n")
    with pytest.raises(ConfigError, match=r"broken\.yaml is not valid YAML"):
        resolve(str(tmp_path / "broken.yaml"))
    (tmp_path / "list.yaml").write_text("[1, 2]\n")
    with pytest.raises(ConfigError, match=r"list\.yaml must hold a mapping of sections, found list"):
        resolve(str(tmp_path / "list.yaml"))
    (tmp_path / "typo.yaml").write_text("rollout: {group_siez: 8}\n")
    with pytest.raises(ConfigError, match=r"unknown key 'rollout\.group_siez'; did you mean 'rollout\.group_size'\?"):
        resolve(str(tmp_path / "typo.yaml"))


def test_an_empty_recipe_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    assert resolve(str(tmp_path / "empty.yaml")).config == TrainConfig()


@pytest.mark.parametrize("name", keys.recipe_names())
def test_shipped_recipes_are_valid_and_leave_a_presets_keys_alone(name: str) -> None:
    label, given_keys = keys.read_recipe(name)
    chosen = keys.flatten(given_keys)
    assert label == f"recipe {name}"
    assert keys.recipe_text(name).startswith("# "), "the first line says what the recipe is for"
    assert not set(chosen) & set(PRESETS[resolve(name).config.algorithm.preset])


def test_every_key_has_a_meaning() -> None:
    for key, text in known_keys().items():
        assert text, f"{key} has no docstring"
        assert text.endswith("."), key


def test_defaults_are_what_describe_says() -> None:
    values = flat(TrainConfig())
    for key, default, _ in describe():
        if not key.endswith("*") and not key.startswith(("algorithm.loss.", "algorithm.reduction")):
            assert values[key] == default, key


def test_loss_defaults_are_known_keys() -> None:
    for constants in LOSS_DEFAULTS.values():
        assert {f"algorithm.loss.{name}" for name in constants} <= set(known_keys())


@given(st.dictionaries(st.sampled_from("abcde"), st.dictionaries(st.sampled_from("xyz"), st.integers(), min_size=1)))
def test_flatten_and_unflatten_are_inverse(nested: dict[str, Any]) -> None:
    assert keys.unflatten(keys.flatten(nested)) == nested
