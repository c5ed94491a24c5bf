"""TRL: `QuantileGRPOTrainer` in place of `GRPOTrainer`, and the same for any subclass of it.

    from qae.integrations.trl import QuantileGRPOTrainer
    trainer = QuantileGRPOTrainer(..., quantile_k=0.4)          # every other argument is GRPOTrainer's

    settings   the arguments that it takes beside GRPOTrainer's
    mixin      the overrides, in the order in which a step meets them
    rewards    TRL's rewards to our functions and back
    skip       which rows the loss may leave out, and when that is exact
    refill     dynamic sampling: fresh prompts in place of flat groups
    contract   what must hold of TRL; checked whenever a trainer is made
    check      what `qae doctor trl` asks

Importing this package imports neither TRL nor torch. The class is built on first use from what `trl.GRPOTrainer` is
then, so that it extends Unsloth's trainer if `import unsloth` came first.
"""

from typing import Any

_HOME = {
    "QuantileMixin": "mixin",
    "QuantileSettings": "settings",
    "check": "check",
    "check_contract": "contract",
    "quantile_trainer": "mixin",
}
__all__ = ["QuantileGRPOTrainer", *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """The public names, imported on first use."""
    from importlib import import_module

    if name == "QuantileGRPOTrainer":
        return import_module("qae.integrations.trl.mixin").quantile_trainer(import_module("trl").GRPOTrainer)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"qae.integrations.trl.{_HOME[name]}"), name)
