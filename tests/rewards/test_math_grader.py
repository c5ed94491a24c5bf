import csv
import threading
from pathlib import Path

import psutil
import pytest

from grading_tasks import worker_processes
from qae.rewards import Grade, MathGrader
from rewards.hostile import KINDS, hostile_pairs

TABLE = Path(__file__).with_name("grading_table.tsv")
DOCS = Path(__file__).parents[2] / "docs" / "grading.md"


def read_table():
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    # line breaks and null bytes stand as their pictures
    return [[cell.replace("⏎", "\n").replace("␀", "\x00") for cell in row] for row in rows[1:]]


ROWS = read_table()


@pytest.fixture(scope="module")
def grader():
    with MathGrader() as grader:
        yield grader


@pytest.fixture(scope="module")
def table_grades(grader):
    return grader.grade([(completion, gold) for _, _, gold, completion, _ in ROWS])


def test_the_table_is_large_enough():
    assert len(ROWS) >= 200
    assert sum(kind == "trap" for _, kind, *_ in ROWS) >= 60
    assert len({(gold, completion) for _, _, gold, completion, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_grading_table(number, table_grades):
    decision, _, gold, completion, verdict = ROWS[number]
    assert table_grades[number].reason == verdict, (decision, gold, completion)


def test_every_decision_is_documented():
    decisions = {decision for decision, *_ in ROWS}
    headings = {line[3:].strip().lower() for line in DOCS.read_text().splitlines() if line.startswith("## ")}
    assert decisions <= headings


def test_scores_of_the_verdicts(table_grades):
    scores = {"correct": 1.0, "wrong": 0.0, "unparseable": 0.0, "unusable_gold": None}
    for grade in table_grades:
        assert grade.outcome == grade.reward == scores[grade.reason]


def test_answers_are_symmetric_for_exact_numbers(grader):
    golds = ["1/2", "0.50", r"\frac{2}{4}", "0.5", "2^{-1}"]
    pairs = [(rf"\boxed{{{a}}}", b) for a in golds for b in golds]
    assert {grade.reason for grade in grader.grade(pairs)} == {"correct"}


def test_counts_add_up_and_repeats_are_remembered():
    with MathGrader() as grader:
        pairs = [(r"\boxed{7}", "7")] * 5 + [(r"\boxed{8}", "7")] * 3 + [("x", "")]
        assert grader.grade(pairs) == grader.grade(pairs)
        assert grader.counts == {"correct": 10, "wrong": 6, "unusable_gold": 2}
        assert grader._pool._pool is None, "numbers need no worker"


def test_gold_solutions_of_gsm8k_and_math(grader):
    golds = ["48 / 2 = <<48/2=24>>24\n#### 24", r"Adding up, we get $\boxed{24}$ eggs.", "no answer in here: ####"]
    grades = grader.grade([("Answer: 24", gold) for gold in golds])
    assert [grade.outcome for grade in grades] == [1.0, 1.0, None]


def test_a_power_tower_from_a_thread(grader):
    results = []
    thread = threading.Thread(target=lambda: results.extend(grader.grade([(r"\boxed{9^{9^{9^9}}}", "x")])))
    thread.start()
    thread.join(timeout=10)
    assert results == [Grade(0.0, 0.0, "unparseable")]


def test_a_slow_answer_is_a_timeout_and_counts():
    with MathGrader(timeout_seconds=0.5, workers=1) as grader:
        slow = r"\int_0^1 \frac{\sin(x^{100})}{\ln(x+2)^{50}} dx"
        grades = grader.grade([(rf"\boxed{{{slow}}}", r"\int_0^1 x dx"), (r"\boxed{\sqrt{8}}", r"2\sqrt{2}")])
        assert [grade.reason for grade in grades] == ["timeout", "correct"]
        assert grades[0].outcome == 0.0


def test_votes_share_one_spelling(grader):
    votes = [grader.vote(text) for text in (r"\boxed{\frac12}", "Answer: 0.50", "#### 1/2", "none")]
    assert votes == ["1/2", "1/2", "1/2", None]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"timeout_seconds": 0}, "timeout_seconds=0 must be positive"),
        ({"workers": 0}, "workers=0 must be positive"),
        ({"memory_mb": -1}, "memory_mb=-1 must be positive"),
        ({"extract": ("box",)}, "answer extraction .'box'.: choose from boxed, tag"),
        ({"extract": ()}, "choose from boxed"),
    ],
)
def test_settings_are_checked(settings, text):
    with pytest.raises(ValueError, match=text):
        MathGrader(**settings)


def grade_hostile(count):
    pairs = hostile_pairs(count)
    process = psutil.Process()
    before = process.memory_info().rss
    with MathGrader() as grader:
        grades = grader.grade(pairs)
        workers = [child.memory_info().rss for child in worker_processes()]
    assert len(grades) == count
    assert grader.counts["timeout"] < 10
    assert process.memory_info().rss - before < 50 * 2**20
    assert all(rss < 600 * 2**20 for rss in workers)
    return grades


def test_hostile_answers_are_never_right():
    grades = grade_hostile(2 * len(KINDS))
    assert {grade.reason for grade in grades} <= {"wrong", "unparseable", "timeout"}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_thousand_hostile_answers():
    grades = grade_hostile(1_000)
    assert {grade.reason for grade in grades} <= {"wrong", "unparseable", "timeout"}
