"""Is QAE really active in the verl of this environment? Asked of a fresh process, as verl's own processes would be."""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from qae.integrations.checks import GROUP_SIZE, OTHER_K, REWARDS, judge

PLUGIN = "qae.integrations.verl.plugin"
TRIED_VERSION = "0.9.1"
_MARK = "qae-finding "


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        name: what.
        ok: whether it is as it must be.
        detail: what was seen, and if it is wrong the next step.
    """

    name: str
    ok: bool
    detail: str


def check(overrides: Sequence[str] = (), *, python: str | None = None, seconds: float = 180.0) -> list[Finding]:
    """Check that verl finds our estimators, that K reaches them, and that they return the value worked by hand.

    Args:
        overrides: the user's own overrides of verl's configuration, to be checked too.
        python: interpreter of the environment with verl; None: this one.
        seconds: how long it may take; importing verl takes several.

    Returns:
        One finding for each check that could be made, in order; all `ok` means that QAE is active.
    """
    words = [python or sys.executable, "-c", f"from {__name__} import main; main()", *overrides]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return [Finding("verl answers", False, f"no answer within {seconds:.0f} s; import verl by hand to see why")]
    lines = [line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    found = [Finding(**json.loads(line)) for line in lines]
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        found.append(Finding("the checks end", False, f"exit code {done.returncode}; said last: {said}"))
    return found


def main() -> None:
    """Make the checks in this process and print what was found; for `check`."""
    for finding in findings(sys.argv[1:]):
        print(_MARK + json.dumps(asdict(finding)), flush=True)  # noqa: T201


def findings(overrides: Sequence[str]) -> Generator[Finding]:
    """The checks, one after another; the first that fails ends them where the rest would only repeat it."""
    try:
        installed = version("verl")
    except PackageNotFoundError:
        yield Finding("verl is installed", False, "it is not: pip install 'qae[verl]'")
        return
    yield Finding("verl is installed", True, f"{installed}; tried with {TRIED_VERSION}")
    yield _entry_point()
    yield _switched_off()
    problem = _plugin_problem()
    yield Finding("the plug-in loads", problem is None, problem or PLUGIN)
    if problem is not None:
        return
    registered, detail = _registered()
    yield Finding("verl has registered it", registered, detail)
    if not registered:
        return
    for k in (0.4, OTHER_K):
        yield _by_hand(k)
    if overrides:
        yield _own_settings(list(overrides))
    yield _trainer()


def _entry_point() -> Finding:
    names = [point.value for point in entry_points(group="verl.plugins") if point.name == "qae"]
    return Finding(
        "the entry point is there",
        bool(names),
        f"verl.plugins: qae = {names[0]}"
        if names
        else f"qae is not installed as a package here: pip install qae, or set VERL_USE_EXTERNAL_MODULES={PLUGIN}",
    )


def _switched_off() -> Finding:
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "")
    allowed = policy == "auto" or "qae" in policy.split(",") or "qae.integrations.verl" in modules
    return Finding(
        "verl may load it",
        allowed,
        f"VERL_USE_EXTERNAL_PLUGINS={policy}"
        + ("" if allowed else f" switches it off: unset it, or set VERL_USE_EXTERNAL_MODULES={PLUGIN}"),
    )


def _plugin_problem() -> str | None:
    """Why the plug-in cannot be imported. verl itself only says so at DEBUG, and an unknown estimator later."""
    try:
        __import__("verl")
        __import__(PLUGIN)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(frame.filename)}:{frame.lineno}"  # noqa: PTH119
        return f"{type(error).__name__}: {error} (at {where}); mend it, verl will not report it"
    return None


def _registered() -> tuple[bool, str]:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY  # pyright: ignore[reportMissingImports]

    from qae.integrations.verl.estimators import estimators

    missing = [name for name in estimators() if name not in ADV_ESTIMATOR_REGISTRY]
    return not missing, f"missing in ADV_ESTIMATOR_REGISTRY: {', '.join(missing)}" if missing else ", ".join(
        estimators()
    )


def _by_hand(k: float) -> Finding:
    name = f"K={k} reaches it and gives the value worked by hand"
    try:
        got = advantages_of(compose(["algorithm.adv_estimator=qae", f"+algorithm.qae_k={k}"]))
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {error}")
    judged = judge(name, got, k)
    return Finding(name, judged.status == "ok", f"{judged.found}; {judged.remedy}" if judged.remedy else judged.found)


def _own_settings(overrides: list[str]) -> Finding:
    from qae.integrations.verl.estimators import bound, estimators

    name = "your overrides use it"
    try:
        algorithm = compose(overrides).algorithm
        if algorithm.adv_estimator not in estimators():
            return Finding(
                name, False, f"algorithm.adv_estimator={algorithm.adv_estimator}; set it to qae (and +algorithm.qae_k)"
            )
        _, options = bound(algorithm, algorithm.adv_estimator)
        if "k" in options and algorithm.get("qae_k") is None and algorithm.get("quantile_k") is None:
            return Finding(name, False, f"K is not given, so {options['k']} is used: add +algorithm.qae_k=0.4")
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return Finding(name, True, f"{algorithm.adv_estimator} with {options}")


def _trainer() -> Finding:
    try:
        __import__("qae.integrations.verl.trainer")
    except Exception as error:
        return Finding(
            "the trainer qae_sync loads", False, f"{type(error).__name__}: {error}; pip install TransferQueue>=0.1.10"
        )
    return Finding("the trainer qae_sync loads", True, "trainer.v1.trainer_mode=qae_sync")


def compose(overrides: list[str]) -> Any:
    """The configuration `ppo_trainer` of verl with overrides."""
    from hydra import compose as put_together  # pyright: ignore[reportMissingImports]
    from hydra import initialize_config_module  # pyright: ignore[reportMissingImports]

    with initialize_config_module(config_module="verl.trainer.config", version_base=None):
        return put_together("ppo_trainer", overrides=overrides)


def advantages_of(config: Any) -> list[float]:
    """What verl's own call makes of the two groups of `REWARDS`."""
    import numpy as np
    import torch
    from verl import DataProto  # pyright: ignore[reportMissingImports]
    from verl.trainer.ppo.ray_trainer import compute_advantage  # pyright: ignore[reportMissingImports]

    rewards = torch.tensor(REWARDS)[:, None]
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": torch.ones_like(rewards)},
        non_tensors={"uid": np.array([f"prompt {i // GROUP_SIZE}" for i in range(len(REWARDS))], dtype=object)},
    )
    call: Callable[..., Any] = compute_advantage
    found = call(data, adv_estimator=config.algorithm.adv_estimator, config=config.algorithm)
    return found.batch["advantages"][:, 0].tolist()
