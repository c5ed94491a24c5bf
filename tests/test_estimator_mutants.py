"""Each mutant of the estimators is noticed by their fast checks, in this process.

`scripts/mutants.py` runs the same lists against the whole tests, which takes minutes; this takes seconds.
"""

import sys
import tomllib
import types
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

import qae.advantages
import qae.entropy  # noqa: F401  loaded once, so that each mutant loads only what it replaces
from estimator_checks import CHECKS

ROOT = Path(__file__).parent.parent
MODULES = (
    "qae.groups",
    "qae.advantages.scale",
    "qae.advantages.quantile",
    "qae.advantages.mean",
    "qae.advantages.leave_one_out",
    "qae.advantages.random_mask",
    "qae.advantages.shifted",
    "qae.advantages.two_sided",
    "qae.entropy",
)
MUTANTS = [
    mutant
    for name in ("groups", "advantages", "entropy")
    for mutant in tomllib.loads((ROOT / "tests" / "mutants" / f"{name}.toml").read_text())["mutant"]
]


def library(file: str = "", old: str = "", new: str = "") -> SimpleNamespace:
    """The estimators' public names, from source with one piece of text replaced."""
    names: dict[str, object] = {}
    with mock.patch.dict(sys.modules):
        for module in MODULES:
            path = ROOT / "src" / (module.replace(".", "/") + ".py")
            source = path.read_text()
            if path == ROOT / file:
                assert source.count(old) == 1
                source = source.replace(old, new)
            sys.modules[module] = loaded = types.ModuleType(module)
            exec(compile(source, path, "exec"), loaded.__dict__)
            names |= {name: value for name, value in vars(loaded).items() if not name.startswith("_")}
    return SimpleNamespace(**names)


def first_failure(lib: SimpleNamespace) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for check in CHECKS:
            try:
                check(lib)
            except Exception:
                return check.__name__
    return None


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.filterwarnings("ignore:.*have a single row:UserWarning")
def test_the_library_passes(check):
    check(library())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["why"])
def test_mutant_is_noticed(mutant):
    assert first_failure(library(mutant["file"], mutant["old"], mutant["new"])) is not None
