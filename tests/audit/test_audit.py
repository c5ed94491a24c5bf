"""The audit: dumps written by the hosts' own code, hand-made cases, and the sizes that people have."""

import json
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_runs import fake_run
from qae.audit import audit_paths, audit_text
from qae.audit.scalars import our_name, read_scalars
from qae.audit.store import GroupStore, Row
from qae.audit.whatif import compare_baselines, compare_regimes
from qae.records import ReadTally

FIXTURES = Path(__file__).parent / "fixtures"


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def group(name: Any, rewards: list[float | None], **more: Any) -> list[dict[str, Any]]:
    return [{"prompt_id": name, "reward": reward, **more} for reward in rewards]


def test_trl_completions_and_their_advantages() -> None:
    found = audit_paths([FIXTURES / "trl"])
    assert (found["rows"], found["groups"], found["unscored"]) == (16, 4, 1)
    assert found["logged_baseline"]["name"] == "mean (std over n-1, eps 0.0001)"
    assert found["logged_baseline"]["largest_difference"] < 1e-6
    assert found["notes"] == ["batches that were logged again are counted once"]


def test_a_run_of_trl_with_rewards_of_none() -> None:
    """Four steps of GRPOTrainer on the shipped policy (fixtures/make_trl.py): 5 of 64 completions not graded."""
    found = audit_paths([FIXTURES / "trl_run"])
    assert (found["rows"], found["groups"], found["unscored"], found["steps"]) == (64, 8, 5, 4)
    assert found["sizes"] == {"8": 3, "7": 5}
    assert found["logged_baseline"]["name"] == "mean (std over n-1, eps 0.0001)"
    assert found["logged_baseline"]["largest_difference"] < 1e-6
    assert found["outcomes"] == "rewards above 0 are right"
    (verdict,) = found["entropy"].values()
    assert verdict["summary"] == "Only 4 entropy values: at least 5 are needed to judge."


def test_a_run_of_verl_with_quantile_advantages() -> None:
    """Three steps of verl 0.9.1 on the shipped policy (fixtures/make_verl.py), the first groups of each dump."""
    found = audit_paths([FIXTURES / "verl_run" / "rollouts", FIXTURES / "verl_run" / "metrics.jsonl"])
    assert (found["rows"], found["sizes"], found["steps"], found["outcomes"]) == (192, {"8": 24}, 3, "logged")
    assert found["logged_baseline"]["name"] == "quantile K=0.4 (std over n, eps 1e-06)"
    assert found["logged_baseline"]["largest_difference"] < 1e-6
    assert found["tokens"]["spans"][0]["words_frac"] is not None
    assert [verdict["kind"] for verdict in found["entropy"].values()] == ["unknown"]
    lines = read_scalars(FIXTURES / "verl_run" / "metrics.jsonl", ReadTally())
    assert [round(line["entropy"], 3) for line in lines if "entropy" in line] == [0.192, 0.204, 0.192]


def test_the_validation_dumps_of_that_run() -> None:
    found = audit_paths([FIXTURES / "verl_run" / "validations"])
    assert (found["rows"], found["sizes"], found["logged_baseline"]) == (64, {"4": 16}, None)


def test_verl_dumps_of_both_trainers_are_the_same_groups() -> None:
    old, new = audit_paths([FIXTURES / "verl" / "v0"]), audit_paths([FIXTURES / "verl" / "v1"], right_above=0)
    assert (old["rows"], old["groups"], old["steps"]) == (new["rows"], new["groups"], new["steps"]) == (48, 12, 3)
    assert old["sizes"] == new["sizes"] == {"4": 12}
    assert old["outcomes"] == "logged" and new["outcomes"] == "rewards above 0 are right"
    assert old["pass_rates"] == new["pass_rates"] and old["regimes"] == new["regimes"]


def test_verl_advantages_are_recognised() -> None:
    found = audit_paths([FIXTURES / "verl" / "with_advantages"])
    assert found["logged_baseline"]["name"] == "mean (std over n-1, eps 1e-06)"
    assert found["logged_baseline"]["largest_difference"] < 1e-5


def test_verl_without_outcomes_does_not_guess() -> None:
    found = audit_paths([FIXTURES / "verl" / "v1"])
    assert found["outcomes"].startswith("unknown: rewards take more than two values")
    assert found["regimes"] == [] and found["baselines"]
    assert not sum(found["pass_rates"].values())


def test_verl_file_log_collapses() -> None:
    (verdict,) = audit_paths([FIXTURES / "verl" / "metrics.jsonl"])["entropy"].values()
    assert verdict["kind"] == "collapse" and abs(verdict["onset_step"] - 30) <= 3
    assert {e["name"] for e in verdict["evidence"]} == {"outcome", "completions/mean_length"}


@pytest.mark.parametrize("name", ["run-curve.wandb", "events.out.tfevents.2.curve"])
def test_binary_logs_hold_every_step(name: str) -> None:
    lines = read_scalars(FIXTURES / name, ReadTally())
    assert [line["step"] for line in lines] == list(range(60))
    assert lines[30]["entropy"] == pytest.approx(0.4 * 1.1**10, rel=1e-6)
    (verdict,) = audit_paths([FIXTURES / name])["entropy"].values()
    assert verdict["kind"] == "explosion" and abs(verdict["onset_step"] - 20) <= 3


@pytest.mark.parametrize("name", ["run-curve.wandb", "events.out.tfevents.2.curve"])
@pytest.mark.parametrize("keep", [0, 5, 11, 1000, 5003, 9999])
def test_binary_logs_that_are_cut_short_give_what_is_whole(tmp_path: Path, name: str, keep: int) -> None:
    (tmp_path / name).write_bytes((FIXTURES / name).read_bytes()[:keep])
    lines = read_scalars(tmp_path / name, ReadTally())
    assert [line["step"] for line in lines] == list(range(len(lines)))


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=400), st.sampled_from(["x.wandb", "events.out.tfevents.1"]))
def test_no_bytes_break_the_binary_readers(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(data)
    read_scalars(path, ReadTally())


def test_trainer_state_and_csv_exports(tmp_path: Path) -> None:
    assert [line["step"] for line in read_scalars(FIXTURES / "trl" / "trainer_state.json", ReadTally())] == [1, 2, 3]
    (tmp_path / "chart.csv").write_text(
        '"Step","mean-0 - train/entropy","mean-0 - train/entropy__MIN","mean-0 - train/entropy__MAX"\n'
        '"1","0.5","0.5","0.5"\n"2","","",""\n"3","nan","nan","nan"\n'
    )
    lines = read_scalars(tmp_path / "chart.csv", ReadTally())
    assert lines == [{"step": 1, "entropy": 0.5}, {"step": 2, "entropy": None}, {"step": 3, "entropy": None}]


def test_names_of_other_programs() -> None:
    assert our_name("actor/entropy") == our_name("train/entropy") == our_name("entropy") == "entropy"
    assert our_name("response_length/clip_ratio") == "completions/clipped_ratio"


def test_our_own_runs(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", steps=12, rows=16, k=0.6)
    found = audit_paths([run])
    assert (found["rows"], found["groups"], found["steps"]) == (192, 24, 12)
    assert found["logged_baseline"]["name"].startswith("quantile K=0.6")
    assert found["logged_baseline"]["largest_difference"] < 1e-9
    assert [verdict["kind"] for verdict in found["entropy"].values()] == ["healthy"]


def test_copies_inside_a_run_of_ours_do_not_count(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", steps=3, rows=8)
    for name in ("verl/rollouts", "tensorboard", "rollouts/.draft"):
        (run / name).mkdir(parents=True)
    write(run / "verl" / "rollouts" / "1.jsonl", group("a", [1, 0]))
    (run / "tensorboard" / "events.out.tfevents.1").write_bytes((FIXTURES / "events.out.tfevents.2.curve").read_bytes())
    write(run / "rollouts" / ".draft" / "9.jsonl", group("a", [1, 0]))
    for paths in ([run], [tmp_path]):
        found = audit_paths(paths)
        assert found["rows"] == 24 and list(found["entropy"]) == [str(run / "metrics.jsonl")]


def test_two_runs_with_the_same_prompts_stay_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        fake_run(tmp_path / name, steps=2, rows=8)
    assert audit_paths([tmp_path])["sizes"] == {"8": 4}


def test_sizes_none_rewards_and_empty_groups(tmp_path: Path) -> None:
    rows: list[Any] = group("a", [1, 0, 0, 0, 1, 1, 0, 0]) + group("b", [1, 0, 0, None, 1]) + group("c", [1])
    dump = write(tmp_path / "d.jsonl", [*rows, {"prompt_id": "e", "rewards": []}])
    found = audit_paths([dump])
    assert found["sizes"] == {"8": 1, "4": 1, "1": 1, "0": 1}
    text = "\n".join(found["warnings"])
    assert "0 all wrong, 0 all right, 2 mixed, 1 of one completion" in audit_text(found)
    assert "1 groups have one member and get advantage 0" in text
    assert "1 groups have no scored completion" in text
    assert "1 completions have no reward" in text
    assert "group sizes differ" in text


def test_an_id_for_each_completion_means_no_baseline(tmp_path: Path) -> None:
    dump = write(tmp_path / "d.jsonl", [{"uid": f"u{i}", "reward": i % 2} for i in range(8)])
    found = audit_paths([dump])
    assert "8 groups for 8 completions: every group has one member, so there is no baseline" in found["warnings"][0]
    assert found["baselines"] == []
    assert "Is the group id made for each completion instead of each prompt?" in audit_text(found)


def test_all_wrong_groups_hidden_by_shaped_rewards(tmp_path: Path) -> None:
    wrong = [{"prompt": "q", "score": s, "acc": 0} for s in (-1, -1, -1.5, -2)]
    found = audit_paths([write(tmp_path / "d.jsonl", wrong)])
    assert found["flat"] == {
        "all_wrong": 1, "all_right": 0, "all_wrong_rewards_differ": 1, "all_right_rewards_differ": 0,
    }  # fmt: skip
    assert any("1 groups are all wrong, but their shaped rewards differ" in w for w in found["warnings"])


def test_hints_of_reward_hacking(tmp_path: Path) -> None:
    rows = group("a", [1, 1], completion="long " * 40, truncated=True) + group("a", [0, 0], completion="short")
    found = audit_paths([write(tmp_path / "d.jsonl", rows)])
    assert found["hints"] == {
        "length_unit": "characters", "length_unknown": 102.5, "truncated_frac": 1.0, "duplicate_frac": 0.5,
    }  # fmt: skip
    rows = [{**row, "outcome": row["reward"]} for row in rows]
    warnings = audit_paths([write(tmp_path / "d.jsonl", rows)])["warnings"]
    assert any("right completions are much longer (right 200, wrong 5 characters)" in w for w in warnings)
    assert any("50% of the completions repeat another of their group" in w for w in warnings)


def test_broken_lines_are_counted_shown_and_not_fatal(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", group("a", [1, 0, 0, 0]))
    with path.open("ab") as file:
        file.write(
            b'not json\n\n[1]\n{"prompt_id": 1, "reward": "high"}\n{"a": 1}{"b": 2}\n\xff\xfe\n{"prompt_id": "a", "rew'
        )
    found = audit_paths([path])
    assert (found["rows"], found["lines"], found["broken"]) == (4, 10, 6)
    assert "6 broken lines were skipped (d.jsonl:5, d.jsonl:7" in found["warnings"][0]


def test_fields_may_change_from_line_to_line(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "reward": 1}, {"input": "q", "score": 0, "acc": 0}, {"prompt": "q", "reward": 0.0}]
    assert audit_paths([write(tmp_path / "d.jsonl", rows)])["rows"] == 3


def test_paths_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing does not exist"):
        audit_paths([tmp_path / "nothing"])
    write(tmp_path / "d.jsonl", [{"a": 1}])
    with pytest.raises(ValueError, match=r"found neither rollouts nor scalars in .*; expected JSONL with a prompt"):
        audit_paths([tmp_path])


def test_files_that_cannot_be_read_are_said_and_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "d.jsonl", group("a", [1, 0]))
    (tmp_path / "trainer_state.json").write_text('{"log_history": [')
    (tmp_path / "completions_00001.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "completions_00002.parquet")
    found = audit_paths([tmp_path])
    assert found["rows"] == 2
    told = "\n".join(found["notes"])
    assert "completions_00001.parquet could not be read: " in told
    assert "completions_00002.parquet is no table of completions: its columns are text" in told
    assert "trainer_state.json could not be read: " in told


@pytest.mark.parametrize("flat", [0, 1])
def test_a_dump_without_flat_groups_says_so(tmp_path: Path, flat: int) -> None:
    rows = [row for g in range(120) for row in group(g, [1.0, 0.0])] + group("flat", [1.0, 1.0]) * flat
    notes = audit_paths([write(tmp_path / "d.jsonl", rows)])["notes"]
    assert any("dynamic sampling replaced such groups" in note for note in notes) == (not flat)


def test_the_rule_for_k_follows_the_entropy(tmp_path: Path) -> None:
    rows = write(tmp_path / "d.jsonl", group("a", [1, 0, 0, 0, 0, 0, 0, 0]))
    up = write(tmp_path / "up.jsonl", [{"step": s, "entropy": 0.4 * 1.08**s} for s in range(40)])
    down = write(tmp_path / "down.jsonl", [{"step": s, "entropy": 0.4 * 0.85**s} for s in range(40)])
    chosen = [audit_paths(paths)["k"] for paths in ([rows], [rows, up], [rows, down], [rows, up, down])]
    assert [(k["k"], k["confidence"]) for k in chosen] == [(0.4, "low"), (0.4, "medium"), (0.6, "medium"), (0.4, "low")]
    assert chosen[0]["interval"] == [3 / 8, 4 / 8] and chosen[2]["interval"] == [4 / 8, 5 / 8]


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 12), st.data())
def test_fragile_groups_are_those_that_one_flip_moves(size: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(1, size - 1))
    k = data.draw(st.integers(1, 99)) / 100
    composition = ((0.0, 0),) * (size - right) + ((1.0, 1),) * right
    (line,) = compare_regimes(Counter({composition: 2}), ks=[k])

    def hard(c: int) -> bool:
        return Fraction(c, size) <= 1 - Fraction(str(k))

    assert line.hard_frac == float(hard(right))
    assert line.fragile_frac == float(hard(right - 1) != hard(right) or hard(right + 1) != hard(right))


def test_baselines_by_hand() -> None:
    hard, easy = ((0.0, 0),) * 3 + ((1.0, 1),), ((0.0, 0),) + ((1.0, 1),) * 3
    table = {line.name: line for line in compare_baselines(Counter({hard: 3, easy: 1}), ks=[0.4], divisor="n")}
    std = (3 / 16) ** 0.5
    quantile = table["quantile K=0.4"]
    assert (quantile.zero_frac, quantile.positive_frac, quantile.negative_frac) == (0.75, 3 / 16, 1 / 16)
    assert quantile.positive_mass == pytest.approx(3 / 16 / std, rel=1e-5)
    assert quantile.negative_mass == pytest.approx(1 / 16 / std, rel=1e-5)
    mean = table["mean"]
    assert (mean.zero_frac, mean.sign_changes_frac) == (0.0, 0.0)
    assert mean.positive_mass == pytest.approx(mean.negative_mass, rel=1e-5)
    lower = table["mean - 0.1"]
    assert lower.positive_mass - lower.negative_mass == pytest.approx(0.1 / std, rel=1e-4)


def test_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [row for g in range(30) for row in group(g, [float(rng.random() < 0.5) for _ in range(5)])]
    first = audit_paths([write(tmp_path / "d.jsonl", rows)])
    rng.shuffle(rows)
    second = audit_paths([write(tmp_path / "d.jsonl", rows)])
    assert first["regimes"] == second["regimes"]
    for a, b in zip(first["baselines"], second["baselines"], strict=True):
        assert a == pytest.approx(b)


def test_a_group_takes_few_bytes() -> None:
    store = GroupStore()
    for i in range(80):
        store.add(Row(i // 8, 1 / (i + 1), outcome=1.0))
    assert len(store) == 10
    assert sum(len(packed) for packed in store._packed.values()) == 80 * 9
