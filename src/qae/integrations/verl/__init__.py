"""verl 0.9: quantile advantages in its trainer, a trainer that sees more, row skipping, and a CPU platform.

    plugin      registration of the estimators; loaded by verl itself (entry point group `verl.plugins`)
    estimators  qae, qae_linear, qae_loo: from verl's call to our functions and back
    trainer     the trainer `qae_sync`: sessions counted once, metrics, `on: outcome`, whole groups in a mini-batch
    skip        an FSDP2 engine that leaves rows with advantage 0 out of the update
    cpu         platform, process group and rollout for development without a GPU
    load        all of the above by environment, for `VERL_USE_EXTERNAL_MODULES`
    check       what `qae doctor verl` asks

Importing this package imports neither verl nor torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qae.integrations.verl.checks import Finding, check

__all__ = ["Finding", "check"]


def __getattr__(name: str) -> Any:
    """`check` and `Finding`, imported on first use."""
    if name in __all__:
        return getattr(importlib.import_module("qae.integrations.verl.checks"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
