"""Checks of the hosts beside TRL and verl: is the seam there, does a group come through, do settings undo it?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from math import sqrt
from typing import Any

from qae.integrations.finding import Finding
from qae.integrations.rows import level
from qae.integrations.status import statuses

# One success among eight, and two. Over n - 1 the variances are 1/8 and 3/14, so the values by hand are sqrt(8) and
# sqrt(14/3), for the successes where the baseline is 0, and negative for the failures where it is 1.
GROUP_SIZE = 8
REWARDS = [1.0] + [0.0] * 7 + [1.0] * 2 + [0.0] * 6
_GROUPS = ((1, sqrt(8)), (2, sqrt(14 / 3)))
OTHER_K = 0.9
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Peer:
    """What is asked of one host.

    Attributes:
        distribution: its package.
        put: function of the adapter that puts it in place, given K.
        push: REWARDS and K through the host's own call, after `put`; None where that needs a running host.
        selects: setting -> value that selects ours.
        undoes: setting -> (values that undo or change it, what to do).
    """

    distribution: str
    put: str
    push: Callable[[list[float], float], list[float]] | None = None
    selects: Mapping[str, Any] = field(default_factory=dict[str, Any])
    undoes: Mapping[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict[str, tuple[tuple[Any, ...], str]])


def hand_values(k: float) -> list[float]:
    """The advantages of `REWARDS` worked by hand.

    Args:
        k: level of the quantile.

    Example:
        >>> [round(x, 4) for x in hand_values(0.4)[7:11]]
        [0.0, 2.1602, 2.1602, 0.0]
    """
    found: list[float] = []
    for right, unit in _GROUPS:
        hard = k <= (GROUP_SIZE - right) / GROUP_SIZE
        found += [unit if hard else 0.0] * right + [0.0 if hard else -unit] * (GROUP_SIZE - right)
    return found


def check_peer(host: str, settings: Mapping[str, Any]) -> list[Finding]:
    """Ask everything that can be asked of a host without running it.

    Args:
        host: key of `PEERS`.
        settings: the user's own, dotted keys.
    """
    peer = PEERS[host]
    try:
        findings = [Finding("ok", host, version(peer.distribution))]
    except PackageNotFoundError:
        return [
            Finding("fault", host, "not installed", f"pip install {peer.distribution}, or see docs/hosts/{host}.md")
        ]
    status = statuses().get(host)
    if status is None or status.level == "source read":
        findings.append(Finding("note", "adapter", "experimental: its code path was never executed by our tests"))
    else:
        findings.append(Finding("ok", "adapter", status.sentence()))
    adapter: Any = import_module(f"qae.integrations.{host}")
    k = level()
    try:
        if peer.put != "quantile_rewards":
            getattr(adapter, peer.put)(*([] if host == "unsloth" else [k]))
        findings.append(Finding("ok", "seam", f"{peer.put} found it"))
    except Exception as error:  # whatever the host raises is the finding
        return [*findings, Finding("fault", "seam", f"{type(error).__name__}: {error}", "see the message")]
    if peer.push is not None:
        findings.extend(compare_with_hand(peer.push, k))
    return [*findings, *check_settings(peer, settings)]


def compare_with_hand(push: Callable[[list[float], float], list[float]], k: float) -> list[Finding]:
    """Two groups through the host, at two K, against the values worked by hand.

    Args:
        push: rewards and K to advantages.
        k: the user's K; the other is `OTHER_K`, at which failures are penalised.
    """
    findings: list[Finding] = []
    for at in dict.fromkeys((k, OTHER_K)):
        what = f"groups at K={at:g}"
        try:
            found = push(REWARDS, at)
        except Exception as error:  # whatever the host raises is the finding
            findings.append(Finding("fault", what, f"{type(error).__name__}: {error}", "see the message"))
            continue
        findings.append(judge(what, found, at))
    return findings


def judge(what: str, found: list[float], k: float) -> Finding:
    """Advantages of `REWARDS` against the values worked by hand, with the likely cause of a difference.

    Args:
        what: was done.
        found: by the host.
        k: at which.
    """
    wanted = hand_values(k)
    if _near(found, wanted):
        unit = max(wanted, key=abs)
        return Finding("ok", what, f"{unit:.4f} and 0 for one success in eight, as worked by hand")
    shown = ", ".join(f"{found[i]:.4f}" for i in (0, 7, 8, 15)) if len(found) == len(wanted) else str(found)
    expected = ", ".join(f"{wanted[i]:.4f}" for i in (0, 7, 8, 15))
    cause, remedy = _cause(found, k)
    return Finding("fault", what, f"{shown} where {expected} is right: {cause}", remedy)


def _near(found: list[float], wanted: list[float]) -> bool:
    return len(found) == len(wanted) and all(abs(a - b) < TOLERANCE for a, b in zip(found, wanted, strict=True))


def _cause(found: list[float], k: float) -> tuple[str, str]:
    if any(_near(found, hand_values(other)) for other in (0.4, 0.8, OTHER_K) if hand_values(other) != hand_values(k)):
        return "K did not reach the function", "pass K the way the host's page says"
    sums = [sum(found[start : start + GROUP_SIZE]) for start in range(0, len(found), GROUP_SIZE)]
    if all(abs(total) < TOLERANCE * GROUP_SIZE for total in sums):
        return "each group sums to 0, so this is the mean baseline", "select ours, the way the host's page says"
    if abs(sum(sums)) < TOLERANCE * len(found):
        return "the batch sums to 0: advantages are whitened after ours", "turn the host's whitening off"
    return "another baseline, or a later change", "look for what the host does to advantages after ours"


def check_settings(peer: Peer, settings: Mapping[str, Any]) -> list[Finding]:
    """What the user's settings do to quantile advantages.

    Args:
        peer: the host.
        settings: the user's own, dotted keys.
    """
    findings: list[Finding] = []
    if not settings:
        return findings
    for key, wanted in peer.selects.items():
        value = settings.get(key, "not set")
        if value == wanted:
            findings.append(Finding("ok", key, str(value)))
        else:
            findings.append(Finding("fault", key, f"is {value}: ours is not selected", f"set {key}={wanted}"))
    for key, (values, remedy) in peer.undoes.items():
        if key in settings and settings[key] in values:
            findings.append(Finding("fault", key, f"is {settings[key]}", remedy))
    return findings


def _through_skyrl(rewards: list[float], k: float) -> list[float]:
    import torch

    from qae.integrations import skyrl

    name = skyrl.register(k, name="qae_doctor")
    tokens = torch.tensor(rewards)[:, None]
    call = skyrl.registry_module().compute_advantages_and_returns
    found, _ = call(tokens, torch.ones_like(tokens), [i // GROUP_SIZE for i in range(len(rewards))], name, config=None)
    return found[:, 0].tolist()


def _through_tunix(rewards: list[float], k: float) -> list[float]:
    import numpy as np

    from qae.integrations import tunix

    registry: Any = import_module("tunix.rl.function_registry")
    call = registry.get_advantage_estimator(tunix.register(k, name="qae_doctor"))
    found = call(rewards=np.array(rewards, dtype=np.float32), num_generations=GROUP_SIZE)
    return [float(x) for x in found]


def _through_roll(rewards: list[float], k: float) -> list[float]:
    import torch

    import_module("qae.integrations.roll").install(k)
    options: dict[str, Any] = {"n_sample": GROUP_SIZE, "norm_mean_type": "group", "norm_std_type": "group"}
    functions: Any = import_module("roll.utils.functionals")
    return functions.reward_norm(torch.tensor(rewards), **options).tolist()


WHITENS = "it whitens the advantages over the batch, so that zeros are no longer 0; turn it off"
PEERS: dict[str, Peer] = {
    "openrlhf": Peer(
        "openrlhf",
        "install",
        undoes={
            "algo.advantage.estimator": (
                ("gae", "reinforce", "reinforce_baseline", "rloo"),
                "OpenRLHF whitens or centres them again; use group_norm or dr_grpo",
            ),
        },
    ),
    "skyrl": Peer(
        "skyrl",
        "register",
        _through_skyrl,
        selects={"trainer.algorithm.advantage_estimator": "qae"},
        undoes={"trainer.algorithm.advantage_batch_normalize": ((True,), WHITENS)},
    ),
    "nemo_rl": Peer("nemo-rl", "install", selects={"grpo.adv_estimator.name": "qae"}),
    "prime_rl": Peer("prime-rl", "install"),
    "slime": Peer(
        "slime",
        "quantile_rewards",
        selects={"custom-reward-post-process-path": "qae.integrations.slime.quantile_rewards"},
        undoes={"normalize-advantages": ((True, None), WHITENS)},
    ),
    "areal": Peer(
        "areal",
        "install",
        selects={"actor.reward_norm.mean_level": "group", "actor.adv_norm": None},
    ),
    "roll": Peer("roll", "install", _through_roll, undoes={"whiten_advantages": ((True,), WHITENS)}),
    "tunix": Peer("google-tunix", "register", _through_tunix, selects={"advantage_estimator": "qae"}),
    "unsloth": Peer("unsloth", "quantile_trainer"),
}
