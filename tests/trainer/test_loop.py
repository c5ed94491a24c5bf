"""A run as a whole, on a random model and a task that it can learn: records, resuming, stopping."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from fake_parts import TextTask
from qae.detect import Evidence, Verdict
from qae.policies import PolicyError, save_policy
from qae.records import alone, read_metrics, read_rollouts
from qae.trackers import TrackerError
from qae.trainer import loop
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError
from tiny_models import random_policy

TIMES = ("seconds", "memory")


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("policy")
    save_policy(random_policy(), directory)
    return directory


@pytest.fixture(autouse=True)
def text_task(monkeypatch):
    monkeypatch.setattr(loop, "make_task", lambda config, seed: TextTask())


class Events:
    def __init__(self, at=None):
        self.seen, self.at = [], at or (lambda name, data: None)

    def event(self, name, /, **data):
        self.seen.append((name, data))
        self.at(name, data)

    def texts(self, name):
        return [data["text"] for seen, data in self.seen if seen == name]


def config(policy_dir, *overrides):
    return TrainConfig.load(
        {},
        f"policy.path={policy_dir}",
        "steps=4",
        "rollout.prompts=6",
        "rollout.group_size=4",
        "rollout.max_tokens=12",
        "update.minibatches=2",
        "update.lr=1e-3",
        "eval.problems=4",
        "eval.samples=4",
        "eval.every=2",
        "checkpoint.every=2",
        *overrides,
    )


def comparable(run):
    """Metrics without times, rollouts, and the last checkpoint's weights and moments."""
    metrics = [{k: v for k, v in m.items() if not k.startswith(TIMES)} for m in read_metrics(run)]
    rollouts = [[vars(r) for r in read_rollouts(p)] for p in sorted((run / "rollouts").iterdir())]
    last = sorted((run / "checkpoints").iterdir())[-1]
    tensors = {p.name: p.read_bytes() for p in last.glob("*.safetensors")}
    return metrics, rollouts, tensors


def comparable_records(run):
    """The bytes of what a refused resume must not touch."""
    files = [run / "metrics.jsonl", run / "config.yaml", *sorted((run / "rollouts").iterdir())]
    return {path.name: path.read_bytes() for path in files}


def test_a_run_leaves_what_the_design_says(policy_dir, tmp_path):
    events = Events()
    run = loop.train(config(policy_dir), run_dir=tmp_path / "run", observer=events)
    assert sorted(p.name for p in run.iterdir()) == [
        ".lock", "checkpoints", "config.yaml", "metrics.jsonl", "rollouts",
    ]  # fmt: skip
    metrics = read_metrics(run)
    assert [(m["step"], "eval/pass@1" in m) for m in metrics] == [
        (0, True), (1, False), (2, False), (2, True), (3, False), (4, False), (4, True),
    ]  # fmt: skip
    assert sum(metrics[0]["eval/rates"].values()) / 4 == pytest.approx(metrics[0]["eval/pass@1"])
    step = metrics[1]
    assert step["groups/kept"] == 6
    assert step["updates"] == 2
    assert step["advantage/zero_frac"] + step["advantage/positive_frac"] + step[
        "advantage/negative_frac"
    ] == pytest.approx(1)
    assert step["rows/kept_frac"] == pytest.approx(1 - step["advantage/zero_frac"])
    assert step["logprob_gap_max"] < 1e-4
    rollouts = list(read_rollouts(run / "rollouts" / "000001.jsonl"))
    assert len(rollouts) == 24
    assert sum(r.token_ids is not None for r in rollouts) == 4
    assert {r.regime for r in rollouts} <= {"hard", "easy"}
    for r in rollouts:
        assert (r.advantage >= 0) if r.regime == "hard" else (r.advantage <= 0)
    about = yaml.safe_load((run / "config.yaml").read_text())["about"]
    assert about["compute_dtype"] == "float32"
    assert [name for name, _ in events.seen if name != "phase"] == [
        "start", "eval", "step", "step", "eval", "step", "step", "eval", "end",
    ]  # fmt: skip
    end = events.seen[-1][1]
    assert (end["before"]["step"], end["after"]["step"]) == (0, 4)


def test_checkpoints_are_loadable_and_old_ones_go(policy_dir, tmp_path):
    run = loop.train(config(policy_dir, "checkpoint.every=1"), run_dir=tmp_path / "run")
    assert [p.name for p in sorted((run / "checkpoints").iterdir())] == ["000003", "000004"]
    model = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "000004")
    tokenizer = AutoTokenizer.from_pretrained(run / "checkpoints" / "000004")
    assert tokenizer.decode(tokenizer("3*4=").input_ids) == "3*4="
    before = AutoModelForCausalLM.from_pretrained(policy_dir)
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


class Killed(Exception):
    pass


@pytest.mark.parametrize("moment", ["sample", "update", "eval", "checkpoint"])
@pytest.mark.parametrize("occurrence", [2, 5])
def test_a_run_cut_off_anywhere_resumes_bit_for_bit(policy_dir, tmp_path, moment, occurrence):
    whole = loop.train(config(policy_dir), run_dir=tmp_path / "whole")
    count = 0

    def cut(name, data):
        nonlocal count
        if name == "phase" and data["phase"] == moment:
            count += 1
            if count == occurrence:
                raise Killed

    try:
        loop.train(config(policy_dir), run_dir=tmp_path / "cut", observer=Events(cut))
    except Killed:
        loop.train(config(policy_dir), resume=tmp_path / "cut")
    assert comparable(tmp_path / "cut") == comparable(whole)


def test_stop_request_finishes_the_step_saves_and_says_how_to_go_on(policy_dir, tmp_path):
    whole = loop.train(config(policy_dir, "checkpoint.every=0"), run_dir=tmp_path / "whole")

    def interrupt(name, data):
        if name == "phase" and data["phase"] == "update" and data["done"] == 1 and not interrupted:
            interrupted.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    interrupted, events = [], Events(interrupt)
    run, handler = tmp_path / "stopped", signal.getsignal(signal.SIGINT)
    with pytest.raises(loop.Interrupted, match=r"stopped after step 1; continue with `qae train --resume .*stopped`"):
        loop.train(config(policy_dir, "checkpoint.every=0"), run_dir=run, observer=events)
    assert any("stopping after this step" in text for text in events.texts("note"))
    assert signal.getsignal(signal.SIGINT) is handler
    loop.train(config(policy_dir, "checkpoint.every=0"), resume=run)
    assert comparable(run) == comparable(whole)


def test_a_second_interrupt_stops_at_once(policy_dir, tmp_path):
    def interrupt(name, data):
        if name == "phase" and data["phase"] == "update":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        loop.train(config(policy_dir), run_dir=tmp_path / "run", observer=Events(interrupt))


def test_a_finished_run_can_go_on_and_says_so(policy_dir, tmp_path):
    whole = loop.train(config(policy_dir, "steps=6"), run_dir=tmp_path / "whole")
    run = loop.train(config(policy_dir), run_dir=tmp_path / "run")
    with pytest.raises(
        ConfigError,
        match=r"has already done its 4 steps; go on with `qae train --resume .*run steps=N`, N greater than 4, "
        r"or make its page with `qae report .*run`$",
    ):
        loop.train(config(policy_dir), resume=run)
    loop.train(config(policy_dir, "steps=6"), resume=run)
    assert comparable(run)[2] == comparable(whole)[2]


def test_a_directory_that_holds_a_run_is_not_overwritten(policy_dir, tmp_path):
    run = loop.train(config(policy_dir, "steps=1"), run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="already holds a run"):
        loop.train(config(policy_dir), run_dir=run)
    with pytest.raises(ConfigError, match="is not a run directory"):
        loop.train(config(policy_dir), resume=tmp_path)


def test_a_run_whose_checkpoints_are_gone_keeps_its_records(policy_dir, tmp_path):
    run = loop.train(config(policy_dir, "eval.problems=0"), run_dir=tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    before = comparable_records(run)
    with pytest.raises(ConfigError, match=r"run holds the records of 4 steps but no checkpoint .* qae train .*run/con"):
        loop.train(config(policy_dir, "eval.problems=0", "steps=8", "checkpoint.every=0"), resume=run)
    assert comparable_records(run) == before
    (run / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match="no checkpoint to go on from"):
        loop.train(config(policy_dir, "eval.problems=0", "steps=8"), resume=run)


def test_a_finished_run_of_few_steps_without_its_checkpoint_keeps_its_records(policy_dir, tmp_path):
    settings = ("eval.problems=0", "steps=2", "checkpoint.every=25")
    run = loop.train(config(policy_dir, *settings), run_dir=tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    (run / "report.html").touch()
    with pytest.raises(ConfigError, match="holds the records of 2 steps but no checkpoint"):
        loop.train(config(policy_dir, *settings, "steps=4"), resume=run)


def test_a_run_killed_before_its_first_checkpoint_begins_again_and_says_so(policy_dir, tmp_path):
    def cut(name, data):
        if name == "phase" and data["phase"] == "checkpoint":
            raise Killed

    run, events = tmp_path / "run", Events()
    with pytest.raises(Killed):
        loop.train(config(policy_dir), run_dir=run, observer=Events(cut))
    assert [m["step"] for m in read_metrics(run) if "entropy" in m] == [1, 2]
    loop.train(config(policy_dir), resume=run, observer=events)
    assert f"{run} has no checkpoint yet: it starts again from step 0" in events.texts("warning")
    assert comparable(run) == comparable(loop.train(config(policy_dir), run_dir=tmp_path / "whole"))


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.safetensors", "trainer_state.json"])
def test_a_damaged_checkpoint_is_named_and_the_older_one_goes_on(policy_dir, tmp_path, name):
    run = loop.train(config(policy_dir, "eval.problems=0"), run_dir=tmp_path / "run")
    newest = run / "checkpoints" / "000004"
    contents = (newest / name).read_bytes()
    (newest / name).write_bytes(b"{" if name.endswith(".json") else contents[:-10])
    longer, before = config(policy_dir, "eval.problems=0", "steps=6"), comparable_records(run)
    with pytest.raises(ConfigError, match=rf"000004/{name} is damaged \(.*\): remove .*000004 to go on from .*000002$"):
        loop.train(longer, resume=run)
    assert comparable_records(run) == before
    shutil.rmtree(run / "checkpoints" / "000002")
    with pytest.raises(ConfigError, match=rf"{name} is damaged .* no older checkpoint, so start anew: qae train .*"):
        loop.train(longer, resume=run)


def test_a_checkpoint_without_its_moments_is_damaged(policy_dir, tmp_path):
    run = loop.train(config(policy_dir, "eval.problems=0", "steps=1"), run_dir=tmp_path / "run")
    (run / "checkpoints" / "000001" / "trainer_state.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"trainer_state.safetensors is damaged \(it is missing\)"):
        loop.train(config(policy_dir, "eval.problems=0", "steps=2"), resume=run)


@pytest.mark.skipif(os.name != "posix", reason="files are locked on POSIX only")
def test_a_run_that_another_process_writes_is_left_alone(policy_dir, tmp_path):
    run = loop.train(config(policy_dir, "eval.problems=0"), run_dir=tmp_path / "run")
    code = f"from qae.records import *\nwith alone(Path({str(run)!r}), wait=True): print('on', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as other:
        other.stdout.readline()
        before, longer = comparable_records(run), config(policy_dir, "eval.problems=0", "steps=6")
        with pytest.raises(
            ConfigError, match=rf"^another process \(pid {other.pid}\) is writing .*run: wait for it, or"
        ):
            loop.train(longer, resume=run)
        assert comparable_records(run) == before
        other.communicate(b"\n")
    with alone(run, wait=True):
        loop.train(longer, resume=run)


def test_settings_changed_on_the_way_are_said_and_kept(policy_dir, tmp_path):
    settings = ("eval.problems=0", "checkpoint.every=1")
    run = loop.train(config(policy_dir, *settings, "steps=1", "algorithm.advantage.k=0.2"), run_dir=tmp_path / "run")
    events = Events()
    changed = [*settings, "algorithm.advantage.k=0.8", "threads=1"]
    loop.train(config(policy_dir, *changed, "steps=2"), resume=run, observer=events)
    text = "algorithm.advantage.k was 0.2 up to step 1 and is 0.8 now: reports and audits of this run mix the two"
    assert [t for t in events.texts("warning") if "mix the two" in t] == [text]
    events = Events()
    loop.train(
        config(policy_dir, *changed, "steps=3", "policy.lora=null", "update.lr=0.002"), resume=run, observer=events
    )
    assert [t.partition(" was")[0] for t in events.texts("warning") if "mix the two" in t] == ["update.lr"]
    assert yaml.safe_load((run / "config.yaml").read_text())["about"]["changes"] == [
        {"step": 1, "key": "algorithm.advantage.k", "before": 0.2, "now": 0.8},
        {"step": 2, "key": "update.lr", "before": 0.001, "now": 0.002},
    ]
    shutil.rmtree(run / "checkpoints" / "000003")
    loop.train(config(policy_dir, *changed, "steps=3", "update.lr=0.002"), resume=run)
    assert len(yaml.safe_load((run / "config.yaml").read_text())["about"]["changes"]) == 2


def test_a_tracker_without_its_package_leaves_no_directory(policy_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(TrackerError, match="track=wandb needs a package"):
        loop.train(config(policy_dir, "track=[wandb]"), run_dir=tmp_path / "run")
    with pytest.raises(PolicyError):
        loop.train(config(policy_dir, f"policy.path={tmp_path}/none"), run_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_other_versions_or_threads_are_said(policy_dir, tmp_path):
    run = loop.train(config(policy_dir, "steps=2"), run_dir=tmp_path / "run")
    state = run / "checkpoints" / "000002" / "trainer_state.json"
    contents = json.loads(state.read_text())
    contents["about"]["torch"] = "1.0"
    state.write_text(json.dumps(contents))
    events = Events()
    loop.train(config(policy_dir, "steps=3"), resume=run, observer=events)
    assert [t for t in events.texts("warning") if t.startswith("torch was 1.0 and is now")]


def test_nothing_to_learn_from_stops_with_a_report(policy_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "make_task", lambda config, seed: TextTask(lambda text: False))
    events = Events()
    with pytest.raises(loop.NothingToLearn, match=r"pass rate by level: even 0\.00, odd 0\.00"):
        loop.train(
            config(policy_dir, "algorithm.dynamic_sampling.max_refills=1"), run_dir=tmp_path / "run", observer=events
        )
    metrics = read_metrics(tmp_path / "run")
    assert [m["groups/kept"] for m in metrics if "groups/kept" in m] == [0, 0, 0]
    assert any("dynamic sampling kept 0 of 6 groups" in text for text in events.texts("warning"))


def test_completions_beyond_the_context_are_refused_before_training(policy_dir, tmp_path):
    with pytest.raises(ConfigError, match=r"rollout.max_tokens=126 after prompts of up to 4 tokens .* set at most 124"):
        loop.train(config(policy_dir, "rollout.max_tokens=126"), run_dir=tmp_path / "run")


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.preset=grpo", "algorithm.advantage=mean"],
        ["algorithm.preset=dr_grpo"],
        ["algorithm.preset=rloo"],
        ["algorithm.preset=gspo"],
        ["algorithm.preset=clip_cov"],
        ["algorithm.preset=kl_cov", "algorithm.advantage=mean"],
        ["algorithm.kl=0.05"],
        ["algorithm.advantage.on=outcome", "algorithm.overlong.buffer_tokens=6"],
        ["algorithm.overlong.filter=true"],
        ["policy.lora={r: 4}"],
        ["update.epochs=2", "update.cut=rows"],
    ],
)
def test_every_family_trains_and_resumes(policy_dir, tmp_path, overrides):
    whole = loop.train(config(policy_dir, "eval.problems=0", *overrides), run_dir=tmp_path / "whole")
    run = loop.train(config(policy_dir, "eval.problems=0", "steps=2", *overrides), run_dir=tmp_path / "run")
    loop.train(config(policy_dir, "eval.problems=0", *overrides), resume=run)
    assert comparable(run)[2] == comparable(whole)[2]
    assert any(m.get("grad_norm", 0) for m in read_metrics(whole))


def test_the_policy_learns(policy_dir, tmp_path):
    run = loop.train(
        config(policy_dir, "steps=12", "update.lr=3e-3", "eval.samples=16", "eval.problems=8"), run_dir=tmp_path / "run"
    )
    evaluations = [m["eval/pass@1"] for m in read_metrics(Path(run)) if "eval/pass@1" in m]
    assert evaluations[-1] > evaluations[0] + 0.2


class AlarmAtStepTwo:
    def __init__(self, history):
        self.known = [line["step"] for line in history if "entropy" in line]

    def see(self, metrics):
        evidence = [Evidence("reward", "reward", 0.5, 0.1), Evidence("grad_norm", "gradient norm", 1.0, 1.01)]
        if metrics["step"] != 2 or self.known:
            return None
        return Verdict("explosion", "", start_nats=0.2, level_nats=0.9, onset_step=1, evidence=evidence)


ALARM = "step 2: entropy explosion: 0.2 nats at about step 1, 0.9 now. Since then: reward 0.5 to 0.1"


@pytest.mark.parametrize(
    ("watch", "warned", "saved"), [("ignore", 0, [4]), ("warn", 1, [4]), ("checkpoint", 1, [2, 4])]
)
def test_an_alarm_warns_and_may_save(policy_dir, tmp_path, monkeypatch, watch, warned, saved):
    monkeypatch.setattr(loop, "LiveDetector", AlarmAtStepTwo)
    events = Events()
    settings = config(policy_dir, f"watch.entropy={watch}", "checkpoint.every=0", "eval.problems=0")
    run = loop.train(settings, run_dir=tmp_path / "run", observer=events)
    assert events.texts("warning") == [f"{ALARM}. More: qae audit {run}"] * warned
    assert sorted(int(p.name) for p in (run / "checkpoints").iterdir()) == saved


def test_an_alarm_may_stop_the_run_which_can_go_on(policy_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "LiveDetector", AlarmAtStepTwo)
    settings = config(policy_dir, "watch.entropy=stop", "checkpoint.every=0", "eval.problems=0")
    run = tmp_path / "run"
    with pytest.raises(loop.EntropyAlarm) as stopped:
        loop.train(settings, run_dir=run)
    assert str(stopped.value) == (
        f"stopped after {ALARM}; look at it with `qae report {run}`, continue with `qae train --resume {run}`"
    )
    assert loop.train(settings, resume=run) == run
    assert [m["step"] for m in read_metrics(run)] == [1, 2, 3, 4]


def test_trackers_take_every_line_that_is_written(policy_dir, tmp_path, monkeypatch):
    taken, closed = [], []

    class Kept:
        def __init__(self, names, run_dir, settings, *, resumed_step, warn):
            assert (names, run_dir.name, settings["steps"], resumed_step) == (("tensorboard",), "run", 4, None)
            self.log, self.close = taken.append, lambda: closed.append(len(taken))

    monkeypatch.setattr(loop, "Trackers", Kept)
    monkeypatch.setattr(loop, "check_packages", lambda names: None)
    run = loop.train(config(policy_dir, "track=[tensorboard]"), run_dir=tmp_path / "run")
    assert [(m["step"], "entropy" in m) for m in taken] == [(m["step"], "entropy" in m) for m in read_metrics(run)]
    assert closed == [len(taken)]
