"""What `engine=verl` names in `VERL_USE_EXTERNAL_MODULES`: estimators and trainer, and by environment more.

    VERL_PLATFORM=cpu              the CPU platform and rollout
    QAE_SKIP_ZERO_ADVANTAGE=1      the FSDP2 engine that skips rows with advantage 0

Every process of a run imports verl and therefore this; only one needs the trainer and some the engine, whose imports
take seconds. Each is registered as soon as the module that it adds to has been imported, and not before.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from qae.integrations.verl import plugin

__all__ = ["plugin"]


class _After(MetaPathFinder):
    """Imports the module `then` right after `trigger` has been imported."""

    def __init__(self, trigger: str, then: str) -> None:
        self.trigger, self.then = trigger, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual spec of the trigger, whose execution ends with ours."""
        if fullname != self.trigger:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def and_ours(module: ModuleType) -> None:
            execute(module)
            importlib.import_module(self.then)

        spec.loader.exec_module = and_ours
        return spec


def _after(trigger: str, then: str) -> None:
    if trigger in sys.modules:
        importlib.import_module(then)
    else:
        sys.meta_path.insert(0, _After(trigger, then))


if os.environ.get("VERL_PLATFORM", "").lower() == "cpu":
    importlib.import_module("qae.integrations.verl.cpu").register()
_after("verl.trainer.ppo.v1.trainer_sync", "qae.integrations.verl.trainer")
if os.environ.get("QAE_SKIP_ZERO_ADVANTAGE", "0") not in ("", "0"):
    _after("verl.workers.engine.fsdp.transformer_impl", "qae.integrations.verl.skip_everywhere")
