"""docs/papers.md names functions and tests; a row whose function or test does not exist fails here."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Every table row of the page that is neither a header nor a rule.
ROWS = [
    line
    for line in (ROOT / "docs" / "papers.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| claim |")
]


def test_the_page_has_rows():
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_row_has_a_function_and_a_test(row):
    functions = re.findall(r"`(qae\.[\w.]+)`", row)
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
    assert functions, f"no function in the row: {row}"
    assert tests, f"no test in the row: {row}"
    for function in functions:
        module, _, name = function.rpartition(".")
        assert inspect.isroutine(getattr(importlib.import_module(module), name))
    for path, name in tests:
        tree = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_test_of_the_paper_is_on_the_page():
    page = "\n".join(ROWS)
    for path in sorted((ROOT / "tests" / "paper").glob("test_*.py")):
        assert f"tests/paper/{path.name}::" in page
