"""Records survive what happens to runs: kills, NaN, odd text, older readers."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qae.records import (
    LOCK,
    SCHEMA,
    ReadTally,
    Rollout,
    RunBusy,
    RunWriter,
    SchemaError,
    alone,
    atomic_write,
    from_json,
    read_metrics,
    read_rollouts,
    rollout_files,
    rollout_path,
    to_json,
)


def rollout(**changes: object) -> Rollout:
    base = {
        "step": 1, "prompt_id": "3+4", "group": 0, "prompt": "3+4?", "completion": "7", "tokens": 2,
        "reward": 1.0,
        "outcome": 1.0, "advantage": 0.5, "regime": "hard", "truncated": False, "entropy_mean_nats": 0.25,
    }  # fmt: skip
    return Rollout(**{**base, **changes})  # type: ignore[arg-type]


def test_metrics_come_back_as_written(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    writer.append_metrics({"step": 1, "reward": 0.5, "entropy": math.nan, "grad_norm": math.inf})
    writer.append_metrics({"step": 1, "eval/pass@1": 0.25})
    assert read_metrics(tmp_path / "run") == [
        {"schema": SCHEMA, "step": 1, "reward": 0.5, "entropy": None, "grad_norm": None},
        {"schema": SCHEMA, "step": 1, "eval/pass@1": 0.25},
    ]


def test_no_metrics_file_is_an_empty_list(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


def test_metrics_without_a_step_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="whole number under 'step', got None"):
        RunWriter(tmp_path).append_metrics({"reward": 1.0})


def test_numpy_and_torch_scalars_become_numbers() -> None:
    np = pytest.importorskip("numpy")
    record = {"a": np.float32(0.5), "b": np.int64(3), "c": np.array([1.0, math.nan]), "d": (1, True)}
    assert json.loads(to_json(record)) == {"a": 0.5, "b": 3, "c": [1.0, None], "d": [1, True]}


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="not object"):
        to_json({"a": object()})


@given(st.text(st.characters(codec=None), max_size=200))
def test_any_text_stays_in_its_line(text: str) -> None:
    line = to_json({"step": 1, "completion": text})
    assert "\n" not in line
    line.encode("ascii")
    assert from_json(line, "x")["completion"] == text


def test_rollouts_come_back_as_written(tmp_path: Path) -> None:
    written = [
        rollout(completion="<script>\x00\u2028\ud800" + "x" * 100_000),
        rollout(group=1, reward=None, outcome=None, advantage=0.0, regime="unscored", level="2x1"),
        rollout(
            group=2,
            token_ids=[5, 6],
            logprobs=[-0.5, -1.25],
            entropies_nats=[0.125, 1 / 3],
            token_texts=["7", "#"],
        ),
    ]
    path = RunWriter(tmp_path).write_rollouts(1, written)
    read = list(read_rollouts(path))
    assert read[2].entropies_nats == [0.125, 0.333333]
    read[2].entropies_nats = written[2].entropies_nats
    assert read == written
    assert path == rollout_path(tmp_path, 1) == tmp_path / "rollouts" / "000001.jsonl"


def test_rollouts_of_a_step_replace_the_old_ones(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.write_rollouts(3, [rollout(step=3), rollout(step=3)])
    path = writer.write_rollouts(3, [rollout(step=3)])
    assert len(list(read_rollouts(path))) == 1


def test_broken_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    whole = to_json({"step": 1, "reward": 0.5})
    (tmp_path / "metrics.jsonl").write_text(
        f'{whole}\nnot json\n[1, 2]\n{{"reward": 1}}\n\n{{"schema": "x", "step": 2}}\n{whole[:-5]}',
        encoding="utf-8",
    )
    tally = ReadTally()
    assert [m["reward"] for m in read_metrics(tmp_path, tally=tally)] == [0.5]
    assert (tally.lines, tally.broken) == (6, 5)
    assert tally.where[:2] == ["metrics.jsonl:2", "metrics.jsonl:3"]


def test_a_rollout_without_a_required_field_is_broken(tmp_path: Path) -> None:
    path = RunWriter(tmp_path).write_rollouts(1, [rollout()])
    path.write_text(path.read_text() + '{"step": 1, "prompt": "x"}\n' + '{"step": 1, "pro\xff', encoding="latin-1")
    tally = ReadTally()
    assert len(list(read_rollouts(path, tally=tally))) == 1
    assert tally.broken == 2


def test_fields_of_later_versions_are_ignored(tmp_path: Path) -> None:
    path = RunWriter(tmp_path).write_rollouts(1, [rollout()])
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "mood": "good"}) + "\n")
    assert list(read_rollouts(path)) == [rollout()]


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"schema": 1, "step": 1}\n{"schema": 2, "step": 2}\n')
    with pytest.raises(SchemaError, match=r"metrics\.jsonl line 2 has schema 2; this qae reads up to 1\. Upgrade"):
        read_metrics(tmp_path)


def test_appending_after_a_cut_line_keeps_the_new_line_whole(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "rew')
    RunWriter(tmp_path).append_metrics({"step": 2})
    assert [m["step"] for m in read_metrics(tmp_path)] == [1, 2]


def test_truncate_after_keeps_up_to_the_step(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for step in range(1, 5):
        writer.append_metrics({"step": step, "reward": step / 3})
        writer.write_rollouts(step, [rollout(step=step)])
    writer.append_metrics({"step": 2, "eval/pass@1": 0.5})
    before = read_metrics(tmp_path)
    with writer.metrics_path.open("a") as file:
        file.write('{"step": 1, "cut')
    (tmp_path / "rollouts" / ".000004.jsonl.1.tmp").write_text("half")
    writer.truncate_after(2)
    assert read_metrics(tmp_path) == [m for m in before if m["step"] <= 2]
    assert len(read_metrics(tmp_path)) == 3
    assert [step for step, _ in rollout_files(tmp_path)] == [1, 2]
    assert not list(tmp_path.rglob("*.tmp"))


def test_truncate_after_on_an_empty_run_does_nothing(tmp_path: Path) -> None:
    RunWriter(tmp_path).truncate_after(0)
    assert read_metrics(tmp_path) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    atomic_write(path, "old")

    def broken_fsync(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken_fsync)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(path, b"new")
    assert path.read_text() == "old"


def test_a_killed_writer_leaves_whole_records(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from qae.records import RunWriter\n"
        "w = RunWriter(Path(sys.argv[1])); print('on', flush=True)\n"
        "for s in range(10**6): w.append_metrics({'step': s, 'pad': 'x' * 5000})"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    while not (tmp_path / "metrics.jsonl").exists():
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    RunWriter(tmp_path).append_metrics({"step": 10**7})
    tally = ReadTally()
    steps = [m["step"] for m in read_metrics(tmp_path, tally=tally)]
    assert steps == [*range(len(steps) - 1), 10**7]
    assert tally.broken <= 1


HOLD = (
    "import sys; from pathlib import Path; from qae.records import alone\n"
    "with alone(Path(sys.argv[1]), wait=False): print('on', flush=True); sys.stdin.read()"
)


@pytest.mark.skipif(os.name != "posix", reason="files are locked on POSIX only")
def test_a_run_is_held_by_one_process_which_may_enter_again(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=-1, stdout=-1)
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdout.readline()
    says = rf"^another process \(pid {holder.pid}\) is writing {tmp_path}: wait for it, or stop it$"
    with pytest.raises(RunBusy, match=says), alone(tmp_path, wait=False):
        pass
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    with alone(tmp_path, wait=False):
        with alone(tmp_path / ".." / tmp_path.name, wait=False):
            pass
        other = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], capture_output=True, text=True, check=False)
        assert f"RunBusy: another process (pid {os.getpid()}) is writing" in other.stderr
    with alone(tmp_path, wait=True):
        pass


@pytest.mark.skipif(os.name != "posix", reason="files are locked on POSIX only")
def test_a_directory_that_was_only_held_does_not_stay(tmp_path: Path) -> None:
    with alone(tmp_path / "run", wait=False):
        pass
    assert not (tmp_path / "run").exists()
    with alone(tmp_path / "run", wait=False):
        (tmp_path / "run" / "metrics.jsonl").touch()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [LOCK, "metrics.jsonl"]


def test_the_module_needs_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import qae.records, qae.detect\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - {'qae'} - sys.stdlib_module_names\n"
        "print(sorted(new))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
