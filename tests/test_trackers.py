"""Trackers: one set of names, resumed runs, failures that cost a warning, and the programs where installed."""

import math
import sqlite3
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from qae.audit.scalars import read_scalars
from qae.records import ReadTally
from qae.trackers import TRACKERS, TrackerError, Trackers, check_packages
from qae.trainer.config import TrainConfig
from qae.trainer.keys import ConfigError

CONFIG = {"name": "x", "algorithm": {"advantage": {"name": "quantile", "k": 0.4}}}
LINES = [
    {"step": 0, "eval/pass@1": 0.25, "eval/rates": {"p": 1.0}},
    {"step": 1, "entropy": 0.5, "clip_ratio/low_mean": 0.01, "loss": None, "grad_norm": math.nan, "flag": True},
    {"step": 2, "entropy": 0.4, "clip_ratio/low_mean": 0.0},
]
NUMBERS = [
    (0, {"eval/pass@1": 0.25}),
    (1, {"entropy": 0.5, "clip_ratio/low_mean": 0.01}),
    (2, {"entropy": 0.4, "clip_ratio/low_mean": 0.0}),
]


class Program(ModuleType):
    """Stands for a tracker's package: remembers what it is told."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        run = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
        for call in ("log", "finish", "define_metric", "add_text", "add_scalar", "flush", "close"):
            setattr(run, call, self._remember(call))
        for call in ("finish", "set_experiment", "log_params", "log_metrics", "end_run"):
            setattr(self, call, self._remember(call))
        for call in ("init", "start_run", "SummaryWriter"):
            setattr(self, call, self._remember(call, run))

    def _remember(self, name: str, answer: Any = None) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.told.append((name, arguments, named))
            return answer

        return call

    def calls(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(arguments, named) for told, arguments, named in self.told if told == name]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Program]:
    modules = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow"}
    found = {name: Program(module) for name, module in modules.items()}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, module, found[name])
    for variable in ("WANDB_PROJECT", "TRACKIO_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(variable, raising=False)
    return found


def log_all(names: list[str], run_dir: Path, *, resumed_step: int | None = None) -> list[str]:
    warned: list[str] = []
    run_dir.mkdir(exist_ok=True)
    trackers = Trackers(names, run_dir, CONFIG, resumed_step=resumed_step, warn=warned.append)
    for line in LINES:
        trackers.log(line)
    trackers.close()
    assert trackers.names == []
    return warned


def test_every_program_gets_the_same_numbers_under_the_same_names(programs: dict[str, Program], tmp_path: Path) -> None:
    assert log_all(["jsonl", *TRACKERS], tmp_path / "tiny-1") == []
    assert [named | numbers for (numbers,), named in programs["wandb"].calls("log")] == [
        {"step": step} | numbers for step, numbers in NUMBERS
    ]
    assert [(named["step"], numbers) for (numbers,), named in programs["trackio"].calls("log")] == NUMBERS
    assert [(named["step"], numbers) for (numbers,), named in programs["mlflow"].calls("log_metrics")] == [
        (step, {name.replace("@", "_at_"): value for name, value in numbers.items()}) for step, numbers in NUMBERS
    ]
    scalars = [arguments for arguments, _ in programs["tensorboard"].calls("add_scalar")]
    assert scalars == [(name, value, step) for step, numbers in NUMBERS for name, value in numbers.items()]
    ends = {"tensorboard": "close", "wandb": "finish", "trackio": "finish", "mlflow": "end_run"}
    assert all(len(programs[name].calls(end)) == 1 for name, end in ends.items())


def test_the_run_and_its_settings_are_named(programs: dict[str, Program], tmp_path: Path) -> None:
    log_all(list(TRACKERS), tmp_path / "tiny-1")
    flat = {"name": "x", "algorithm.advantage.name": "quantile", "algorithm.advantage.k": 0.4}
    ((_, wandb),) = programs["wandb"].calls("init")
    assert (wandb["project"], wandb["name"], wandb["id"], wandb["config"]) == ("qae", "tiny-1", "tiny-1", CONFIG)
    ((_, trackio),) = programs["trackio"].calls("init")
    assert (trackio["project"], trackio["name"], trackio["config"]) == ("qae", "tiny-1", flat)
    assert programs["mlflow"].calls("set_experiment") == [(("qae",), {})]
    assert programs["mlflow"].calls("log_params") == [(({k: str(v) for k, v in flat.items()},), {})]


def test_a_resumed_run_goes_on_in_its_own(programs: dict[str, Program], tmp_path: Path) -> None:
    log_all(list(TRACKERS), tmp_path / "run")
    log_all(list(TRACKERS), tmp_path / "run", resumed_step=1)
    assert [named["run_id"] for _, named in programs["mlflow"].calls("start_run")] == [None, "r1"]
    assert len(programs["mlflow"].calls("log_params")) == 1
    assert [named["purge_step"] for _, named in programs["tensorboard"].calls("SummaryWriter")] == [None, 2]
    assert {(named["id"], named["resume"]) for _, named in programs["wandb"].calls("init")} == {("run", "allow")}


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("torch.utils.tensorboard", "wandb", "trackio", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TrackerError, match=rf"track={name} needs a package .*: pip install 'qae\[{name}\]'"):
        Trackers([name], tmp_path, CONFIG)
    with pytest.raises(TrackerError, match=rf"track={name} needs a package .*: pip install 'qae\[{name}\]'"):
        check_packages(["jsonl", name])


def test_a_refusal_says_how_to_do_without_an_account(programs: dict[str, Program], tmp_path: Path) -> None:
    def refuse(**named: Any) -> None:
        raise RuntimeError("no API key")

    programs["wandb"].init = refuse
    with pytest.raises(TrackerError, match="track=wandb could not start: no API key; without an account: WANDB_MODE="):
        Trackers(["wandb"], tmp_path, CONFIG)


def test_a_tracker_that_fails_is_dropped_and_the_others_go_on(programs: dict[str, Program], tmp_path: Path) -> None:
    def fail(numbers: dict[str, float], step: int) -> None:
        raise OSError("disk full")

    programs["mlflow"].log_metrics = fail
    warned = log_all(["mlflow", "trackio"], tmp_path / "run")
    assert warned == ["mlflow takes no more metrics (OSError: disk full); metrics.jsonl goes on"]
    assert len(programs["trackio"].calls("log")) == 3 and programs["mlflow"].calls("end_run") == []


def test_the_configuration_knows_the_trackers_and_no_other() -> None:
    assert TrainConfig.load("tiny", "track=[jsonl, wandb]").track == ("jsonl", "wandb")
    with pytest.raises(ConfigError, match=r"track\.0='comet': input should be 'jsonl', 'tensorboard', 'wandb'"):
        TrainConfig.load("tiny", "track=[comet]")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", TRACKERS)
def test_the_program_itself(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    assert log_all([name], tmp_path / "run") == []
    if name in ("tensorboard", "wandb"):
        (file,) = (tmp_path / "run").rglob("*.tfevents.*" if name == "tensorboard" else "*.wandb")
        lines = read_scalars(file, ReadTally())
        for line, (step, numbers) in zip(lines, NUMBERS, strict=True):
            assert line["step"] == step and line == pytest.approx(line | numbers, rel=1e-6)
    else:
        file, query = {
            "trackio": (tmp_path / "trackio" / "qae.db", "select count(*) from metrics where run_name = 'run'"),
            "mlflow": (tmp_path / "mlflow.db", "select count(*) from metrics where key = 'entropy'"),
        }[name]
        with sqlite3.connect(file) as connection:
            assert connection.execute(query).fetchone()[0] == {"trackio": 3, "mlflow": 2}[name]
