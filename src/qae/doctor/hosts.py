"""Each host's own check, the user's settings for it, and what can be said about the machine."""

import difflib
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qae.integrations.checks import PEERS, check_peer
from qae.integrations.finding import Finding
from qae.integrations.status import statuses

HOSTS = ("trl", "verl", *PEERS)


def check_host(host: str, arguments: Sequence[str] = ()) -> list[Finding]:
    """Everything that can be asked about QAE in one framework, on this machine.

    Args:
        host: one of `HOSTS`.
        arguments: the user's own settings: KEY=VALUE words, or a YAML file.

    Returns:
        One finding a question; a fault in any of them means that quantile advantages may not be what trains.

    Raises:
        ValueError: the host is unknown or a setting is malformed.
        FileNotFoundError: there is no such file.
    """
    name = host.replace("-", "_").lower()
    if name not in HOSTS:
        near = difflib.get_close_matches(name, HOSTS, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"no host {host!r}{hint} (hosts: {', '.join(HOSTS)})")
    try:
        if name == "verl":
            found = _check_verl(arguments)
        elif name == "trl":
            found = import_module("qae.integrations.trl.check").check(read_settings(arguments))
        else:
            found = check_peer(name, read_settings(arguments))
    except (ImportError, SyntaxError) as error:
        found = [Finding("fault", "plug-in", f"does not import: {type(error).__name__}: {error}", _REINSTALL)]
    return [*found, *check_machine()]


_REINSTALL = "reinstall qae, or mend the module that is named; hosts that load plug-ins hide this error"


def check_machine() -> list[Finding]:
    """Versions, the device and vLLM."""
    import torch

    import qae

    findings = [Finding("ok", "qae", qae.__version__), Finding("ok", "torch", torch.__version__)]
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU only"
    findings.append(Finding("ok" if torch.cuda.is_available() else "note", "device", device))
    vllm = installed("vllm")
    findings.append(Finding("ok", "vllm", vllm) if vllm else Finding("note", "vllm", "not installed"))
    return findings


def list_hosts() -> list[Finding]:
    """Every host: its version here, and how far its adapter was seen to work."""
    findings: list[Finding] = []
    recorded = statuses()
    for name in HOSTS:
        distribution = {"trl": "trl", "verl": "verl"}.get(name) or PEERS[name].distribution
        here = installed(distribution)
        status = recorded.get(name)
        untried = "see docs/hosts/verl.md" if name == "verl" else "adapter experimental: never run"
        seen = f"adapter {status.sentence()}" if status else untried
        findings.append(Finding("ok" if here else "note", name, f"{here or 'not installed'}; {seen}"))
    return findings


def installed(distribution: str) -> str | None:
    """The version of a package in this environment, or None.

    Args:
        distribution: its name.
    """
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def read_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """A host's settings as one flat dictionary with dotted keys.

    Args:
        arguments: KEY=VALUE words (a leading + or -- is allowed) and YAML files.

    Returns:
        key -> value, as YAML reads it.

    Raises:
        ValueError: a word is neither.
        FileNotFoundError: there is no such file.

    Example:
        >>> read_settings(["+algorithm.k=0.4", "--algo.kl=0"])
        {'algorithm.k': 0.4, 'algo.kl': 0}
    """
    import yaml

    found: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.lstrip("+-").partition("=")
        if equals:
            found[key] = yaml.safe_load(value)
        elif argument.endswith((".yaml", ".yml")):
            if not Path(argument).is_file():
                raise FileNotFoundError(f"{argument} does not exist")
            found.update(_flat(yaml.safe_load(Path(argument).read_text()) or {}))
        else:
            raise ValueError(f"{argument!r} is neither KEY=VALUE nor a YAML file")
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{key}."))  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[f"{prefix}{key}"] = value
    return found


def _check_verl(arguments: Sequence[str]) -> list[Finding]:
    checks: Any = import_module("qae.integrations.verl.checks")
    return _verl_notes(arguments) + [
        Finding("ok", finding.name, finding.detail)
        if finding.ok
        else Finding("fault", finding.name, finding.detail, "see docs/hosts/verl.md")
        for finding in checks.check(list(arguments))
    ]


_VERL_NOTES = {
    "algorithm.use_kl_in_reward": (True, "KL in the reward: rewards take many values, and few advantages are 0"),
    "actor_rollout_ref.actor.use_kl_loss": (True, "the KL loss pulls on rows with advantage 0, which are computed"),
    "algorithm.norm_adv_by_std_in_grpo": (False, "advantages are not divided (Dr. GRPO)"),
}


def _verl_notes(arguments: Sequence[str]) -> list[Finding]:
    said = {key.lstrip("+"): value.lower() for key, _, value in (word.partition("=") for word in arguments)}
    return [
        Finding("note", key, f"{value}: {meaning}")
        for key, (value, meaning) in _VERL_NOTES.items()
        if said.get(key) == str(value).lower()
    ]
