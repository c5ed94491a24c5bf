"""Change one line of the package at a time and see that a test notices.

The lists are `tests/mutants/*.toml`. Each entry names a file, a text that occurs in it once, what to put in its place,
and the tests that must then fail. A mutant that survives means a missing test. Run:

    python scripts/mutants.py                     all lists
    python scripts/mutants.py losses reduce       only tests/mutants/losses.toml and reduce.toml
"""

import argparse
import contextlib
import io
import multiprocessing
import shutil
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "mutants"


@dataclass(frozen=True)
class Mutant:
    """One change that the tests must notice.

    Attributes:
        why: what the change would break, in words.
        file: path of the changed file, from the repository's root.
        old: text that occurs in the file exactly once.
        new: what stands there in the mutant.
        tests: what to give to pytest.
    """

    why: str
    file: str
    old: str
    new: str
    tests: str

    def applied(self) -> str:
        """The mutated file's text; an error if `old` does not stand there exactly once."""
        text = (ROOT / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} holds {self.old!r} {text.count(self.old)} times, not once ({self.why})")
        return text.replace(self.old, self.new)


def read_mutants(names: list[str]) -> list[Mutant]:
    """The mutants of the named lists, or of all."""
    paths = [LISTS / f"{name}.toml" for name in names] or sorted(LISTS.glob("*.toml"))
    return [Mutant(**entry) for path in paths for entry in tomllib.loads(path.read_text())["mutant"]]


def verdict(mutant: Mutant) -> str:
    """`killed`, `SURVIVED`, or what went wrong. The tests run on a copy of the package, in an empty directory."""
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is loaded before pytest sees it
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "package"
        shutil.copytree(ROOT / "src" / "qae", copy / "qae", ignore=shutil.ignore_patterns("__pycache__"))
        (copy / Path(mutant.file).relative_to("src")).write_text(mutant.applied())
        sys.path.insert(0, str(copy))
        with contextlib.chdir(directory), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = int(pytest.main([*options, *(str(ROOT / test) for test in mutant.tests.split())]))
    # 1 is "tests failed"; 2 to 5 are errors of collection or usage, which would kill every mutant alike.
    return {0: "SURVIVED", 1: "killed"}.get(code, f"ERROR {code}\n{output.getvalue()[-2000:]}")


def main() -> int:
    """Run the lists and print a line for each mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", help="names in tests/mutants, without .toml; all if none is given")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    mutants = read_mutants(arguments.lists)
    for mutant in mutants:
        mutant.applied()
    torch.set_num_threads(1)
    # That a law fails is all that counts: no time is spent on a smaller example of it.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", phases=phases, database=None)
    hypothesis.settings.load_profile("mutants")
    # A fork for each mutant, from a process that has torch loaded but not the package: a few seconds saved on each.
    with multiprocessing.get_context("fork").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        verdicts = []
        for mutant, result in zip(mutants, pool.imap(verdict, mutants, chunksize=1), strict=True):
            print(f"{result:9} {mutant.file}: {mutant.why}", flush=True)
            verdicts.append(result)
    killed = verdicts.count("killed")
    print(f"{killed} of {len(mutants)} mutants killed")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
