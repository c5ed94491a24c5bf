"""What the tests recorded of each host, and who reads it."""

import importlib.util
import json
import warnings
from dataclasses import asdict
from pathlib import Path

import pytest

from qae.integrations import status
from qae.integrations.checks import PEERS
from qae.integrations.status import ExperimentalHostWarning, HostStatus, record, statuses, warn_if_experimental

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    path.write_text("{}")
    monkeypatch.setattr(status, "RECORDED", path)
    return path


def test_nothing_is_recorded_unless_asked(recorded, monkeypatch):
    monkeypatch.delenv(status.RECORD_VARIABLE, raising=False)
    record("skyrl", "own code", "0.4", "tests/a.py")
    assert json.loads(recorded.read_text()) == {}


def test_a_record_replaces_that_of_its_host(recorded, monkeypatch):
    monkeypatch.setenv(status.RECORD_VARIABLE, "1")
    record("skyrl", "source read", "0.3", "tests/a.py")
    record("areal", "own code", "1.0", "tests/b.py", stubs=["ray", "einops"])
    record("skyrl", "own code", "0.4", "tests/a.py", source="wheel")
    found = statuses()
    assert [found["skyrl"].level, found["skyrl"].version] == ["own code", "0.4"]
    assert found["areal"].stubs == ["einops", "ray"]
    assert list(json.loads(recorded.read_text())) == ["areal", "skyrl"]


@pytest.mark.parametrize("level", [None, "source read", "own code", "trained"])
def test_only_what_was_never_executed_warns(recorded, level):
    if level is not None:
        recorded.write_text(json.dumps({"skyrl": asdict(HostStatus(level, "0.4", "2026-12-01", "tests/a.py"))}))
    if level in (None, "source read"):
        with pytest.warns(ExperimentalHostWarning, match="qae.integrations.skyrl is experimental: .*none was run"):
            warn_if_experimental("skyrl")
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_if_experimental("skyrl")


def test_every_page_carries_what_was_recorded():
    spec = importlib.util.spec_from_file_location("host_pages", ROOT / "scripts" / "host_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    assert ("trl", *PEERS) == pages.HOSTS
    for host in pages.HOSTS:
        text = (ROOT / "docs" / "hosts" / f"{host}.md").read_text()
        assert pages.with_status(host, text) == text, f"run python scripts/host_pages.py ({host})"


def test_a_recorded_test_exists():
    assert statuses()
    for host, seen in statuses().items():
        assert (ROOT / seen.test).is_file(), host
