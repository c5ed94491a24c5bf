"""The lists of mutants stay true to the code; `python scripts/mutants.py` runs them."""

import importlib.util
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "mutants.py"


def test_every_mutant_still_applies_and_names_tests_that_exist():
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    mutants = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = mutants
    spec.loader.exec_module(mutants)
    entries = mutants.read_mutants([])
    assert len(entries) > 100
    assert len({entry.why for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.applied() != (mutants.ROOT / entry.file).read_text()
        assert all((mutants.ROOT / test.split("::")[0]).exists() for test in entry.tests.split())
