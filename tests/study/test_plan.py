"""Studies as they are written down: parsing, composing, the dry run, refusals; the shipped ones."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from fake_study import CONTENTS, fake_study
from qae.study.command import dry_run
from qae.study.plan import check_kept, check_policies, load_study, plan_text, study_of
from qae.trainer.keys import ConfigError

STUDIES = Path(__file__).parents[2] / "studies"
# name -> (runs, minutes of one core)
SHIPPED = {
    "cause": (36, 144),
    "clip": (24, 96),
    "compose": (24, 96),
    "knob": (98, 392),
    "on-policy": (18, 45),
    "rule": (39, 156),
    "small-groups": (27, 108),
    "smollm2": (9, 108),
    "stability-map": (44, 254),
}


def test_every_shipped_study_is_tested():
    assert sorted(path.stem for path in STUDIES.glob("*.yaml")) == sorted(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_study(name):
    study = load_study(STUDIES / f"{name}.yaml")
    assert study.config.name == name
    assert study.config.question.endswith("?")
    assert study.config.questions
    for run in (run for run in study.runs if run.seed == 0):
        assert run.config.seed == 0
        assert run.config.threads == 1
        arm = run.config.algorithm.advantage.name
        assert (arm == "mean") == (run.arm.split(".")[0] == "mean")
    runs, minutes = SHIPPED[name]
    text = plan_text(study, study.runs, jobs=2)
    assert text.startswith(f"{name}: {study.config.question}\n")
    hours = f"{minutes / 2:.0f} minutes" if minutes / 2 < 100 else f"{minutes / 120:.1f} hours"
    assert f"{runs} runs, {minutes} minutes of one core: about {hours} with 2 jobs" in text
    assert all(f"asked: {question.ask}" in text for question in study.config.questions)


def test_the_dry_run_writes_nothing(tmp_path):
    text = dry_run(STUDIES / "smollm2.yaml", out=tmp_path / "none", jobs=3)
    assert "9 runs, 108 minutes of one core: about 36 minutes with 3 jobs\n\ndecides: eval/pass@1" in text
    assert not (tmp_path / "none").exists()


def test_the_dry_run_of_some_runs_counts_these(tmp_path):
    text = dry_run(STUDIES / "smollm2.yaml", out=tmp_path / "none", jobs=1, only=["all/mean"])
    assert "3 runs, 36 minutes of one core" in text
    with pytest.raises(ConfigError, match="--only all/median: no such run"):
        dry_run(STUDIES / "smollm2.yaml", out=tmp_path / "none", jobs=1, only=["all/median"])


def test_arms_differ_in_nothing_but_their_own_overrides():
    """Same seed, same block: prompts, initial policy and everything else are equal."""
    study = fake_study(seeds=1)
    configs = {(run.block, run.arm): run.config.model_dump() for run in study.runs}
    for block in ("near", "stale"):
        mean, better = configs[block, "mean"], configs[block, "better"]
        assert {key for key in mean if mean[key] != better[key]} == {"algorithm"}
    assert configs["near", "mean"]["update"]["minibatches"] == 1


def test_runs_of_a_seed_come_together_so_that_pairs_are_complete_early():
    assert [run.seed for run in fake_study(seeds=2).runs] == [0] * 6 + [1] * 6


def test_cells_may_have_other_numbers_of_seeds():
    more = [{"blocks": ["stale"], "seeds": 3}, {"arms": ["same"], "blocks": ["stale"], "seeds": 0}]
    study = fake_study(seeds=1, more_seeds=more)
    counts = {
        (arm, block): study.config.seeds_of(arm, block) for arm in ("mean", "same") for block in ("near", "stale")
    }
    assert counts == {("mean", "near"): 1, ("mean", "stale"): 3, ("same", "near"): 1, ("same", "stale"): 0}
    assert len(study.runs) == 3 + 3 * 2


def test_seeds_start_from_the_policies_in_turn():
    study = fake_study(seeds=3, policies=["tiny", "other"])
    assert {run.seed: run.config.policy.path for run in study.runs} == {0: "tiny", 1: "other", 2: "tiny"}


def test_a_study_may_take_seeds_that_another_did_not():
    study = fake_study(seeds=2, first_seed=10, more_seeds=[{"arms": ["same"], "seeds": 1}])
    assert {run.seed for run in study.runs} == {10, 11}
    assert {run.seed for run in study.runs if run.arm == "same"} == {10}
    text = "near/same/seed-10 is the same run as near/better/seed-10"
    with pytest.raises(ConfigError, match=text):
        fake_study(first_seed=10, arms=CONTENTS["arms"] | {"same": ["algorithm.advantage.k=0.2"]})


def test_a_policy_beside_the_study_is_found_there(tmp_path):
    (tmp_path / "taught").mkdir()
    study = study_of(CONTENTS | {"policies": ["taught"], "seeds": 1}, beside=tmp_path)
    assert study.runs[0].config.policy.path == str(tmp_path / "taught")


def test_a_policy_that_is_not_there_is_named_with_the_command_that_makes_it(tmp_path):
    study = study_of(CONTENTS | {"policies": ["tiny", "policies/x"], "prepare": "make it", "seeds": 2}, beside=tmp_path)
    with pytest.raises(
        ConfigError, match=r"^no policy policies/x, from which runs of fake start; make it first: make it$"
    ):
        check_policies(study.config, study.runs)
    check_policies(study.config, [run for run in study.runs if run.config.policy.path == "tiny"])
    (tmp_path / "policies" / "x").mkdir(parents=True)
    made = study_of(CONTENTS | {"policies": ["tiny", "policies/x"], "seeds": 2}, beside=tmp_path)
    check_policies(made.config, made.runs)


def test_plan_text():
    study = fake_study(seeds=2)
    text = plan_text(study, study.runs, jobs=2, finished=3, begun=1)
    assert "12 runs, 24 minutes of one core: about 12 minutes with 2 jobs\n3 runs are finished, 1 continue" in text


REFUSALS = {
    "baseline": ("median", "baseline: no arm 'median'; the arms are mean, better, same"),
    "metrics": (["eval/pass@16"], "eval/pass@1 is not among the study's metrics eval/pass@16"),
    "arms": ({"mean": [], "../up": []}, "arm '../up': names are letters, digits, and . + - _ between them"),
    "colour": ("red", "unknown key 'colour'"),
    "sedes": (3, "unknown key 'sedes'; did you mean 'seeds'?"),
    "question": (..., "question is missing"),
    "seeds": (17, "seeds=17: input should be less than or equal to 16"),
    "overrides": (
        ["steps=20", "algorithm.k=0.3"],
        "near/mean/seed-0: unknown key 'algorithm.k'; did you mean 'algorithm.advantage.k'?",
    ),
    "questions": (
        [{"ask": "x?", "arm": "better"}],
        "a question of a study with blocks names its block: near, stale, or best",
    ),
    "more_seeds": ([{"arms": ["worse"], "seeds": 1}], "more_seeds.0: no arm 'worse'; the arms are mean, better, same"),
}


@pytest.mark.parametrize("key", REFUSALS)
def test_refusals(key):
    value, text = REFUSALS[key]
    changed = {k: v for k, v in (CONTENTS | {key: value}).items() if v is not ...}
    with pytest.raises(ConfigError, match=re.escape(text)):
        study_of(changed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold a mapping of keys such as name, arms and seeds, found nothing"),
        ("- a", "must hold a mapping of keys such as name, arms and seeds, found a list"),
        ("name: x", "x.yaml: question is missing; arms is missing; "),
    ],
)
def test_a_file_that_is_no_study_is_named(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_study(tmp_path / "x.yaml")


def test_an_arm_that_repeats_another_is_refused():
    arms = CONTENTS["arms"] | {"same": ["algorithm.advantage.k=0.2"]}
    text = "near/same/seed-0 is the same run as near/better/seed-0: give each arm its own setting"
    with pytest.raises(ConfigError, match=text):
        fake_study(arms=arms)


def test_a_missing_file_names_the_studies_beside_it():
    with pytest.raises(ConfigError, match=r"no study .*knobs\.yaml; there are cause, clip, compose, knob,"):
        load_study(STUDIES / "knobs.yaml")


def test_what_was_written_down_before_the_runs_stays():
    kept = yaml.safe_load(yaml.safe_dump(fake_study().config.model_dump(mode="json")))
    check_kept(fake_study(seeds=3, minutes=9), kept)
    changed = copy.deepcopy(CONTENTS["decision"]) | {"margins": {"eval/pass@1": 0.01}}
    with pytest.raises(ConfigError, match=r"^decision of the study is not what was written down before its first run"):
        check_kept(fake_study(decision=changed), kept)
