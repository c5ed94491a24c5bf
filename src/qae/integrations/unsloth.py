"""Unsloth: quantile advantages in the trainer that it generates from TRL's.

    import unsloth
    from qae.integrations.unsloth import quantile_trainer
    trainer = quantile_trainer()(..., quantile_k=0.4)

Unsloth rewrites TRL's source and puts its own class into `trl.GRPOTrainer`, so ours is built after that. Its loss does
not go through TRL's `_compute_loss`: all rows are computed, and `skip_zero_advantage="on"` is refused.
"""

import sys
from importlib import import_module
from typing import Any

from qae.integrations.status import warn_if_experimental


def quantile_trainer() -> type:
    """The class to construct in place of `trl.GRPOTrainer`.

    Raises:
        RuntimeError: Unsloth was not imported before, so that `trl.GRPOTrainer` is TRL's own.
        TRLChangedError: the generated trainer lacks a method that this needs.
    """
    warn_if_experimental("unsloth")
    trl: Any = import_module("trl")
    if "unsloth" not in sys.modules or not trl.GRPOTrainer.__name__.startswith("Unsloth"):
        raise RuntimeError(
            f"trl.GRPOTrainer is {trl.GRPOTrainer.__name__}, not Unsloth's; write `import unsloth` before anything "
            "that imports trl, then call this"
        )
    return import_module("qae.integrations.trl.mixin").quantile_trainer(trl.GRPOTrainer)
