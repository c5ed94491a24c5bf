"""The package as such: its public names, what an import costs, and that nothing of a developer's machine is in it."""

import importlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import qae

ROOT = Path(__file__).parent.parent
PUBLIC = [
    "ADVANTAGES", "LOSSES", "TrainConfig", "asymre_advantages", "cispo_policy_loss", "clip_cov_policy_loss",
    "clipped_policy_loss", "fixed_advantages", "group_mean", "group_quantile", "group_size", "group_std",
    "kl_cov_policy_loss", "leave_one_out_advantages", "leave_one_out_quantile_advantages", "maj_at_k",
    "mean_advantages", "neg_mask_advantages", "pass_at_k", "pos_mask_advantages", "predicted_entropy_change",
    "quantile_advantages", "random_mask_advantages", "regime_table", "sapo_policy_loss", "sequence_mean",
    "sequence_policy_loss", "sequence_sum", "sequence_sum_norm", "token_entropy", "token_mean", "train",
    "w_reinforce_advantages", "write_report",
]  # fmt: skip
# What must stay light, and what it must not load.
LIGHT = {
    "qae": ("torch", "transformers", "numpy", "pydantic"),
    "qae.cli": ("torch", "transformers", "numpy", "pydantic", "omegaconf"),
    "qae.settings": ("torch", "transformers"),
    "qae.terminal": ("torch", "transformers"),
    "qae.terminal.evaluation": ("torch", "transformers"),
    "qae.report": ("torch", "transformers"),
    "qae.records": ("torch", "transformers", "numpy", "pydantic"),
    "qae.detect": ("torch", "transformers", "numpy", "pydantic"),
    "qae.evaluation.estimators": ("torch", "transformers", "numpy", "pydantic"),
}
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".json", ".jsonl", ".html", ".sh", "", ".cfg", ".js", ".css"}


def test_the_public_names() -> None:
    assert qae.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there(name: str) -> None:
    assert getattr(qae, name) is not None
    assert name in dir(qae)


def test_type_checkers_see_the_same_names() -> None:
    stub = (ROOT / "src" / "qae" / "__init__.pyi").read_text()
    seen = {name: home for home, name in re.findall(r"^from ([\w.]+) import (\w+) as \2$", stub, re.MULTILINE)}
    assert sorted(seen) == PUBLIC
    for name, home in seen.items():
        assert getattr(importlib.import_module(home), name) is getattr(qae, name)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"module 'qae' has no attribute 'quantile'; public names are ADVANTAGES,"):
        _ = qae.quantile


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert qae.__version__ == project["version"] == version("qae")


@pytest.mark.parametrize("module", LIGHT)
def test_imports_are_light(module: str) -> None:
    heavy = LIGHT[module]
    code = f"import sys, {module}; print(sorted(set(sys.modules) & set({heavy!r})))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['qae', '--help']\n"
        "from qae.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    assert stop.code == 0, stop.code\n"
        "print(sorted(set(sys.modules) & {'torch', 'transformers', 'numpy', 'pydantic', 'omegaconf'}))\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "Usage: qae" in said
    assert said.splitlines()[-1] == "[]"


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).suffix in TEXT]


def test_no_file_mentions_a_developers_machine() -> None:
    private = re.compile(
        "|".join([r"/wo" r"rk/(main|shared)", r"/ro" r"ot/", r"(?<!\w)/home/\w", r"/Us" r"ers/\w", r"/tm" r"p/"])
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in tracked_files()
        if path.exists()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if (match := private.search(line))
    ]
    assert found == []


def test_the_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints" / "cpu.txt").read_text().splitlines()
    }
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(r for r in extras["dev"] if not r.startswith("qae[")), *extras["docs"]]
    names = {re.split(r"[\[><=~! ]", requirement)[0].lower().replace("_", "-") for requirement in wanted}
    assert names <= pinned


def test_agents_md_is_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 60
