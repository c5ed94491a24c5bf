"""TRL's own GRPO script with quantile advantages: `python -m qae.integrations.trl --config grpo.yaml`.

Every key of TRL's script is one here; beside them stand those of `QuantileSettings` (`quantile_k: 0.4`). As
`model_name_or_path` the names `tiny` and `smollm2` are known too.
"""

import sys
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import Any

from qae.integrations.trl.mixin import quantile_trainer
from qae.integrations.trl.settings import QuantileSettings


def main(arguments: list[str] | None = None) -> None:
    """Parse, put the quantile trainer where TRL's script looks for its own, and run that script.

    Args:
        arguments: of the command line.
    """
    host: Any = import_module("trl")
    grpo: Any = import_module("trl.scripts.grpo")
    kinds = (grpo.GRPOScriptArguments, host.GRPOConfig, host.ModelConfig, host.DatasetMixtureConfig, QuantileSettings)
    parser = host.TrlParser(kinds, prog="python -m qae.integrations.trl")
    script, training, model, data, quantile = parser.parse_args_and_config(args=arguments)
    if model.model_name_or_path in ("tiny", "smollm2"):
        from qae.policies.source import resolve_source

        model.model_name_or_path = resolve_source(model.model_name_or_path)
    own = host.GRPOTrainer
    host.GRPOTrainer = partial(quantile_trainer(own), **asdict(quantile))
    try:
        grpo.main(script, training, model, data)
    finally:
        host.GRPOTrainer = own


if __name__ == "__main__":
    main(sys.argv[1:])
