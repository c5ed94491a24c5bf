"""The numbers of docs/conventions.md, by the library's own functions."""

import importlib
import re
from fractions import Fraction
from pathlib import Path

import pytest

import qae
import reference
from qae.groups import group_quantile
from reward_batches import one_group

PAGE = (Path(__file__).parent.parent / "docs" / "conventions.md").read_text()


def table(first_column: str) -> list[list[str]]:
    """The cells below the header row that starts with `first_column`."""
    _, rest = PAGE.split(f"| {first_column} |", 1)
    lines = rest.splitlines()[2:]
    end = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:end]]


CALLS = table("call")


@pytest.mark.parametrize(("call", "success", "failure", "whose"), CALLS, ids=[row[0] for row in CALLS])
def test_call_gives_the_printed_numbers(call, success, failure, whose):
    rewards, group_ids = one_group([1.0] + [0.0] * 7)
    names = {name: getattr(qae, name) for name in re.findall(r"\w+_advantages", call)}
    advantages = eval(call.strip("`"), names | {"r": rewards, "g": group_ids})
    assert f"{advantages[0]:.4f}" == success
    assert {f"{a:.4f}" for a in advantages[1:].tolist()} == {failure}
    assert whose


def test_the_table_of_the_style_guide_is_there():
    numbers = {row[1] for row in CALLS}
    assert {"2.6450", "2.4742", "2.4749", "0.8750", "7.0000"} <= numbers


@pytest.mark.parametrize(("size", "k", "failures", "exact", "linear"), table("group size"))
def test_quantiles_of_the_table(size, k, failures, exact, linear):
    rewards, group_ids = one_group([0.0] * int(failures) + [1.0] * (int(size) - int(failures)))
    assert f"{group_quantile(rewards, group_ids, float(k))[0]:.1f}" == exact
    assert f"{group_quantile(rewards, group_ids, float(k), method='linear')[0]:.1f}" == linear
    fractions = [Fraction(int(r)) for r in rewards]
    assert float(reference.quantile_from_definition(fractions, Fraction(k))) == float(exact)
    assert float(reference.linear_quantile(fractions, Fraction(k))) == pytest.approx(float(linear))


HOSTS = table("framework")
ADAPTERS = {
    "OpenRLHF": "openrlhf",
    "SkyRL": "skyrl",
    "NeMo-RL": "nemo_rl",
    "slime": "slime",
    "ROLL": "roll",
    "Tunix": "tunix",
}
ADAPTERS |= {"TRL": "trl.rewards", "verl": "verl.estimators"}


@pytest.mark.parametrize("row", HOSTS, ids=[row[0] for row in HOSTS])
def test_numbers_by_host(row):
    _, divided, eps, _, _, mean, quantile = row
    options = {"scale": "none"} if divided == "nothing" else {"divisor": divided.split(", ")[1], "eps": float(eps)}
    rewards, group_ids = one_group([1.0] + [0.0] * 7)
    rewards = rewards.double()
    assert f"{qae.mean_advantages(rewards, group_ids, **options)[0]:.4f}" == mean
    assert f"{qae.quantile_advantages(rewards, group_ids, 0.4, **options)[0]:.4f}" == quantile


@pytest.mark.parametrize("row", [r for r in HOSTS if r[1] != "nothing"], ids=lambda row: row[0])
def test_adapters_use_what_the_page_says(row):
    adapter = next((module for host, module in ADAPTERS.items() if row[0].startswith(host)), None)
    if adapter is None:
        assert row[0].startswith("AReaL")  # takes both from the host's configuration
        return
    host = importlib.import_module(f"qae.integrations.{adapter}").HOST
    assert host == {"divisor": row[1].split(", ")[1], "eps": float(row[2])}
