"""From runs to answers: made-up runs whose truth is known, the record, its views, and drawing again."""

import copy
import json
import xml.etree.ElementTree as ET

import pytest
import yaml
from rich.console import Console

from fake_study import CONTENTS, fake_study, write_run, write_runs
from qae.report.figures import COLOURS, _line, _stroke, figures_of
from qae.report.study import study_markdown, study_page
from qae.study.command import chosen_runs, conduct, redraw, write_views
from qae.study.plan import StudyConfig
from qae.study.runner import states_of
from qae.study.summary import _at_equal, adopt, answered, read_record, record_of, share, write_record
from qae.study.worker import FINISHED
from qae.trainer.keys import ConfigError


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    study = fake_study()
    return record_of(study.config, write_runs(study, tmp_path_factory.mktemp("study")))


def line(record, block, arm, metric="eval/pass@1"):
    (found,) = [c for c in record["comparisons"] if (c["block"], c["arm"], c["metric"]) == (block, arm, metric)]
    return found


def test_the_effect_is_found_where_it_is_and_nowhere_else(record):
    better = line(record, "stale", "better")
    assert better["kind"] == "higher"
    assert better["mean"] == pytest.approx(0.2, abs=0.03)
    assert better["low"] < 0.2 < better["high"]
    assert better["p"] == 2 / 2**8
    assert better["p_holm"] == 4 / 2**8
    assert better["both_low"] < better["low"] + 0.01 < better["mean"]
    for block, arm in (("near", "better"), ("near", "same"), ("stale", "same")):
        assert line(record, block, arm)["kind"] == "same"


def test_each_difference_stands_beside_the_level_that_it_starts_from(record):
    assert line(record, "near", "same")["base"] == pytest.approx(0.4, abs=0.05)


def test_more_arms_than_colours_are_told_apart():
    assert len({_stroke(i) for i in range(2 * len(COLOURS))}) == 2 * len(COLOURS)


def test_a_cheaper_arm_is_compared_at_equal_cost_too():
    """The baseline went from .3 over .5 to .6 at 0, 100 and 200 tokens, the arm from .3 to .5 at 50."""
    dear = {"tokens": [0, 100, 200], "seconds": [0, 10, 20], "eval/pass@1": [0.3, 0.5, 0.6]}
    cheap = {"tokens": [0, 25, 50], "seconds": [0, 20, 40], "eval/pass@1": [0.3, 0.4, 0.5]}
    runs = {0: {"eval": dear}}, {0: {"eval": cheap}}
    assert _at_equal(*runs, [0], "eval/pass@1", "tokens") == pytest.approx(0.5 - 0.4)
    assert _at_equal(*runs, [0], "eval/pass@1", "seconds") == pytest.approx(0.5 - 0.6), "it never cost as much"
    assert _at_equal(*runs[::-1], [0], "eval/pass@1", "tokens") == pytest.approx(0.6 - 0.5)
    assert _at_equal(*runs, [0], "eval/pass@16", "tokens") is None


def test_differences_of_the_seeds_that_share_a_policy_are_told_apart(tmp_path):
    """Seeds 0 and 2 start from one policy: with an effect that grows with the seed its mean is that of the two."""
    study = fake_study(seeds=3, policies=["tiny", "other"])
    for run in study.runs:
        gain = 0.1 * run.seed if run.arm == "better" else 0.0
        write_run(tmp_path / "runs" / run.label, 0.4 + gain, run)
    record = record_of(study.config, states_of(study, tmp_path))
    found = line(record, "near", "better")
    values = found["values"]
    assert found["by_policy"] == pytest.approx({"tiny": (values[0] + values[2]) / 2, "other": values[1]}, abs=1e-4)
    assert "tiny +" in study_markdown(record)


def test_the_arms_that_were_planned_are_corrected_for_before_they_are_run(tmp_path):
    study = fake_study()
    write_runs(study, tmp_path)
    for run in study.runs:
        if run.arm == "same":
            (tmp_path / "runs" / run.label / FINISHED).unlink()
    record = record_of(study.config, states_of(study, tmp_path))
    assert line(record, "stale", "better")["p_holm"] == 4 / 2**8


def test_the_best_block_is_not_chosen_before_all_are_there(tmp_path):
    study = fake_study()
    write_runs(study, tmp_path)
    (tmp_path / "runs" / "near" / "same" / "seed-7" / FINISHED).unlink()
    (answer,) = [a for a in record_of(study.config, states_of(study, tmp_path))["answers"] if a["arm"] == "better"][1:]
    assert (answer["answer"], answer["against_block"]) == ("not run yet", "best")


def test_a_run_is_stable_if_its_entropy_is_healthy_and_it_lost_nothing(tmp_path):
    study = fake_study(seeds=2)
    states = write_runs(study, tmp_path)
    target = next(s for s in states if s.run.label == "near/same/seed-0")
    write_run(target.directory, 0.1, target.run)
    target = next(s for s in states if s.run.label == "near/better/seed-1")
    write_run(target.directory, 0.5, target.run, explodes=True)
    cells = record_of(study.config, states_of(study, tmp_path))["cells"]
    stable = {cell["arm"]: cell["stable"] for cell in cells if cell["block"] == "near"}
    assert stable == {"mean": 2, "same": 1, "better": 1}


def test_curves_are_aligned_by_step(tmp_path):
    """A run that stopped early and was evaluated at its own last step moves no point of the others."""
    study = fake_study(seeds=2)
    states = write_runs(study, tmp_path)
    metrics = next(s for s in states if s.run.label == "near/mean/seed-0").directory / "metrics.jsonl"
    lines = [json.loads(text) for text in metrics.read_text().splitlines()]
    kept = [entry for entry in lines if entry["step"] <= 7]
    last = next(entry for entry in lines if entry["step"] == 10 and "eval/rates" in entry) | {"step": 7}
    metrics.write_text("".join(json.dumps(entry) + "\n" for entry in [*kept, last]))
    record = record_of(study.config, states_of(study, tmp_path))
    curve = _line(record, "near", "mean", "eval/pass@1", "step")
    assert curve.x == [0]
    assert _line(record, "near", "same", "eval/pass@1", "step").x == [0, 10, 20]


def test_pairing_takes_out_what_the_seeds_share(record):
    """The seeds differ by far more than the paired differences do."""
    same = line(record, "near", "same")
    ends = [run["eval"]["eval/pass@1"][-1] for run in record["runs"] if run["arm"] == "same" and run["block"] == "near"]
    assert same["high"] - same["low"] < (max(ends) - min(ends)) / 2


def test_questions_are_answered_beside_what_was_expected(record):
    answers = {answer["ask"]: answer for answer in record["answers"]}
    assert answers["Is it better when stale?"]["answer"] == "as expected: higher"
    assert answers["Is the same the same?"]["answer"] == "as expected: no difference"
    best = answers["Better than the same?"]
    assert best["block"] == "stale"
    assert best["answer"] == "against the expectation: higher"


def test_costs_are_counted(record):
    run = record["runs"][0]
    assert run["eval"]["step"] == [0, 10, 20]
    assert run["eval"]["tokens"] == [0, 1000, 2000]
    assert run["eval"]["seconds"] == [0, 50, 100]
    assert record["cells"][0]["means"]["advantage/zero_frac"] == 0.75


def test_the_entropy_s_verdict_is_there_for_each_run(tmp_path):
    study = fake_study(seeds=1)
    states = write_runs(study, tmp_path)
    target = next(s for s in states if (s.run.arm, s.run.block) == ("better", "near"))
    for path in sorted(target.directory.glob("*")):
        if path.is_file():
            path.unlink()
    write_run(target.directory, 0.2, target.run, explodes=True)
    cells = record_of(study.config, states_of(study, tmp_path))["cells"]
    found = {(cell["block"], cell["arm"]): cell["entropy"] for cell in cells}
    assert found["near", "better"] == {"explosion": 1}
    assert found["near", "mean"] == {"healthy": 1}


def test_runs_that_are_not_there_are_said_to_be_missing(tmp_path):
    study = fake_study(seeds=1)
    record = record_of(study.config, states_of(study, tmp_path))
    assert record["planned"] == 6
    assert [answer["answer"] for answer in record["answers"]] == ["not run yet"] * 3
    assert "0 of 6 runs finished" in study_markdown(record)
    assert "No run is finished yet." in study_page(record)
    assert figures_of(record) == {}


def test_three_seeds_give_hints(tmp_path):
    study = fake_study(seeds=3)
    record = record_of(study.config, write_runs(study, tmp_path))
    assert line(record, "stale", "better")["kind"] == "hint higher"
    assert record["answers"][0]["answer"] == "hint, as expected: higher"
    assert "a hint, no verdict" in study_markdown(record)


def test_a_study_goes_on_from_its_summary_where_its_runs_are_not(record, tmp_path):
    """Its runs count, the answers stay the same, and one with other settings is refused, not dropped."""
    states = states_of(fake_study(), tmp_path)
    adopt(states, record)
    assert {state.state for state in states} == {"finished"}
    begun = states_of(fake_study(), tmp_path)
    begun[0].state = "begun"
    adopt(begun, record)
    assert begun[0].state == "finished", "what was only begun here is finished there"
    assert states[0].pass_rate == record["runs"][0]["eval"]["eval/pass@1"][-1]
    assert record_of(fake_study().config, states) == record
    changed = fake_study(arms=CONTENTS["arms"] | {"better": ["algorithm.advantage.k=0.3"]})
    with pytest.raises(ConfigError, match=r"^the kept summary's near/better/seed-0 was made with other settings than"):
        adopt(states_of(changed, tmp_path), record)


def test_runs_that_are_planned_no_longer_are_kept(record, tmp_path):
    fewer = fake_study(seeds=2)
    states = states_of(fewer, tmp_path)
    others = adopt(states, record)
    assert len(states) + len(others) == len(record["runs"])
    again = record_of(fewer.config, states, others)
    kept = [*again["runs"], *again["unplanned"]]
    assert sorted(map(json.dumps, kept)) == sorted(map(json.dumps, record["runs"]))
    assert {run["seed"] for run in again["runs"]} == {0, 1}
    assert line(again, "stale", "better")["seeds"] == [0, 1], "what is planned no longer enters no comparison"
    assert f"{len(others)} more, of an earlier plan" in study_markdown(again)
    write_record(again, tmp_path / "summary.json")
    states = states_of(fake_study(), tmp_path)
    assert adopt(states, read_record(tmp_path / "summary.json")) == []
    assert {state.state for state in states} == {"finished"}, "planned again, they are there again"


def test_runs_of_another_study_count_where_the_configuration_is_the_same(record, tmp_path):
    """Whatever they are called there; with another setting, or a metric not measured there, they do not."""
    arms = {"base": CONTENTS["arms"]["same"], "plain": CONTENTS["arms"]["better"], "new": ["algorithm.advantage.k=0.3"]}
    renamed = {"name": "renamed", "arms": arms, "baseline": "base", "questions": []}
    wider = renamed | {"metrics": [*record["study"]["metrics"], "eval/length"]}
    theirs = {(run["block"], run["arm"], run["seed"]): run for run in record["runs"]}

    study = fake_study(**renamed)
    states = states_of(study, tmp_path)
    share(study.config, states, record)
    assert {s.run.arm: s.state for s in states} == {"base": "finished", "plain": "finished", "new": "waiting"}
    shared = record_of(study.config, states)
    assert "32 of 48 runs finished, 32 of them made by fake" in study_markdown(shared)
    for run in shared["runs"]:
        their_arm = {"base": "same", "plain": "better"}[run["arm"]]
        found = theirs[run["block"], their_arm, run["seed"]]
        assert run == {"from": "fake"} | found | {"arm": run["arm"]}

    more = fake_study(**wider)
    states = states_of(more, tmp_path)
    share(more.config, states, record)
    assert {s.state for s in states} == {"waiting"}


def test_a_kept_summary_holds_what_was_written_down_first(record, tmp_path):
    """With the summary alone, without study.yaml and the runs, a changed margin is refused, too."""
    write_record(record, tmp_path / "out" / "summary.json")
    changed = copy.deepcopy(CONTENTS) | {"decision": CONTENTS["decision"] | {"margins": {"eval/pass@1": 0.2}}}
    (tmp_path / "fake.yaml").write_text(yaml.safe_dump(changed))
    before = (tmp_path / "out" / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match=r"^decision of the study is not what was written down before its first run"):
        conduct(tmp_path / "fake.yaml", out=tmp_path / "out", jobs=1, console=Console(), plain=True, sum_up_only=True)
    assert (tmp_path / "out" / "summary.json").read_bytes() == before
    assert not (tmp_path / "out" / "study.yaml").exists(), "put back, the rule must fit again"


def test_where_a_study_is_started_from_does_not_change_its_runs():
    from_here = fake_study(policies=["tiny"]).runs[0]
    assert from_here.settings == fake_study(policies=["some/where/tiny"]).runs[0].settings
    assert from_here.settings != fake_study(policies=["tiny-10"]).runs[0].settings


@pytest.mark.parametrize(
    ("override", "same"),
    [
        ("watch.entropy=stop", True),
        ("checkpoint.every=7", True),
        ("algorithm.loss.clip_low=0.2", True),
        ("steps=41", False),
    ],
)
def test_what_counts_as_the_same_run(override, same):
    """What only watches does not, nor does a default that is written out."""
    runs = [fake_study(overrides=[*CONTENTS["overrides"], *more]).runs for more in ((), (override,))]
    assert [a.settings == b.settings for a, b in zip(*runs, strict=True)] == [same] * len(runs[0])


def test_the_best_block_of_an_arm_that_has_none_is_not_asked_for(tmp_path):
    question = {"ask": "Best?", "arm": "better", "block": "best", "against_block": "best"}
    study = fake_study(questions=[question], more_seeds=[{"arms": ["better"], "seeds": 0}])
    assert record_of(study.config, write_runs(study, tmp_path))["answers"][0]["answer"] == "not run yet"


def test_some_runs_first(tmp_path):
    states = states_of(fake_study(seeds=2), tmp_path)
    chosen = [state.run.label for state in chosen_runs(states, ["stale/*", "near/mean/seed-1", "stale/mean"])]
    assert len(chosen) == 7
    assert chosen[0] == "stale/mean/seed-0"
    assert chosen[-1] == "near/mean/seed-1"
    assert chosen_runs(states, []) == states
    with pytest.raises(ConfigError, match=r"^--only far/\*: no such run; give BLOCK/ARM of near/mean, near/better, "):
        chosen_runs(states, ["far/*"])


def test_a_kept_record_says_the_same_again_and_is_small(record, tmp_path):
    write_record(record, tmp_path / "summary.json")
    again = read_record(tmp_path / "summary.json")
    assert again == json.loads(json.dumps(record))
    assert (tmp_path / "summary.json").stat().st_size < 1500 * len(record["runs"])
    assert "/" not in "".join(run["policy"] for run in again["runs"])


def test_a_file_that_is_no_record_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValueError, match=r"x\.json is no summary of a study; give the summary\.json that"):
        read_record(tmp_path / "x.json")
    with pytest.raises(ValueError, match=r"none\.json is no summary of a study \(.*\); give the summary\.json that"):
        read_record(tmp_path / "none.json")


def test_answers_are_computed_anew_from_the_kept_runs(record):
    """What is kept of answers cannot be edited by hand: only the runs count."""
    forged = record | {"answers": [answer | {"answer": "as expected: higher"} for answer in record["answers"]]}
    assert answered(forged) == record


def test_views(record, tmp_path):
    write_record(record, tmp_path / "kept" / "summary.json")
    told = []
    redraw([tmp_path / "kept" / "summary.json"], out=tmp_path / "out", tell=told.append)
    assert told == [str(tmp_path / "out" / "fake")]
    svgs = sorted(path.stem for path in (tmp_path / "out" / "fake" / "figures").glob("*.svg"))
    assert svgs == [
        "entropy-differences", "entropy-step", "pass1-differences", "pass1-seconds", "pass1-step", "pass1-tokens",
        "pass16-differences", "pass16-step", "train-entropy-step",
    ]  # fmt: skip
    for name, svg in figures_of(record).items():
        root = ET.fromstring(svg)
        assert root.tag.endswith("svg"), name
        assert "nan" not in svg
    page = (tmp_path / "out" / "fake" / "report.html").read_text()
    assert page.index("Asked before the runs") < page.index("Differences from mean") < page.index("<svg")
    assert "as expected: higher" in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_a_figure_of_an_older_record_goes_away(record, tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "old.svg").write_text("")
    write_views(record, tmp_path)
    assert not (tmp_path / "figures" / "old.svg").exists()


def test_curves_have_one_line_an_arm_and_one_panel_a_block(record):
    svg = figures_of(record)["pass1-step"]
    assert svg.count("<polyline") == 6
    assert svg.count("<polygon") == 6
    dots = figures_of(record)["pass1-differences"]
    assert dots.count('r="4"') == 4
    assert dots.count('r="2"') == 4 * 8


def test_hostile_words_do_not_reach_the_page_as_markup(record):
    study = record["study"] | {"question": '<script>alert("x")</script>', "notes": "<img src=x>"}
    assert StudyConfig.model_validate(study)
    page = study_page(record | {"study": study})
    assert "<script" not in page
    assert "<img" not in page
