import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import grading_tasks
from qae.rewards.pool import KillablePool


@pytest.fixture(scope="module")
def pool():
    pool = KillablePool(workers=2, timeout_seconds=0.3, memory_mb=200, load=grading_tasks.load_nothing)
    yield pool
    pool.close()


def test_cpu_deadline_ends_a_call_that_holds_the_interpreter(pool):
    pool.run(grading_tasks.sleep, [(0,)])
    assert pool.run(grading_tasks.hold_the_interpreter, [()]) == ["timeout"]


def test_wall_clock_backstop(pool):
    assert pool.run(grading_tasks.sleep, [(1_000,), (0,)]) == ["timeout", "awake"]


def test_waiting_is_no_work(pool):
    assert pool.run(grading_tasks.sleep, [(0.6,)]) == ["awake"]


@pytest.mark.skipif(sys.platform != "linux", reason="the memory cap is Linux only")
def test_memory_is_capped(pool):
    assert pool.run(grading_tasks.eat_memory, [(500,), (50,)]) == ["refused", 50 * 2**20]


def test_a_killed_task_is_run_again(pool, tmp_path):
    tasks = [(str(tmp_path / f"{i}"),) for i in range(4)]
    assert pool.run(grading_tasks.die_the_first_time, tasks) == ["alive"] * 4


def test_a_task_that_always_kills_its_process_ends_as_a_timeout(pool):
    assert pool.run(grading_tasks.die_always, [()]) == ["timeout"]


def test_a_bug_is_an_error_and_not_a_verdict(pool):
    with pytest.raises(ZeroDivisionError, match="a bug"):
        pool.run(grading_tasks.fail, [()])


def test_killing_workers_in_the_middle_loses_nothing(pool):
    pool.run(grading_tasks.sleep, [(0,)])
    killed = []

    def kill():
        for _ in range(3):
            time.sleep(0.2)
            for process in grading_tasks.worker_processes()[:1]:
                process.kill()
                killed.append(process.pid)

    thread = threading.Thread(target=kill)
    thread.start()
    results = pool.run(grading_tasks.sleep, [(0.03,)] * 60)
    thread.join()
    assert results == ["awake"] * 60
    assert killed


def test_from_many_threads(pool):
    results = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: pool.run(grading_tasks.sleep, [(0,)] * 5)}))
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: ["awake"] * 5 for i in range(6)}


def test_a_script_without_main_guard_runs_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "print('begin')\n"
        "from qae.rewards import MathGrader\n"
        "with MathGrader(workers=1) as grader:\n"
        "    print(grader.grade([(r'\\boxed{\\sqrt{8}}', r'2\\sqrt{2}')])[0].reason)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["begin", "correct"], done.stderr


def test_a_pool_that_nobody_closed_ends_quietly(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import grading_tasks\n"
        "from qae.rewards.pool import KillablePool\n"
        "pool = KillablePool(2, 0.3, 200, load=grading_tasks.load_nothing)\n"
        "print(pool.run(grading_tasks.hold_the_interpreter, [()]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env=environment)
    assert (done.stdout, done.stderr) == ("['timeout']\n", "")
