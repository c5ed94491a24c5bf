"""The speed claim of benchmarks/advantages.py, as a ratio with room for a busy machine, and the equality behind it."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "advantages.py"


@pytest.mark.parametrize("baseline", ["quantile", "mean"])
def test_one_sorted_view_beats_a_loop_over_groups(baseline):
    spec = importlib.util.spec_from_file_location("benchmark_advantages", SCRIPT)
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    result = benchmark.compare(4096, 8, 5, baseline)
    assert result["largest_difference"] < 1e-6
    assert result["ratio"] > 15
