"""Graders: from a completion and a gold answer to a verdict.

`Grade` is the verdict, `Grader` what every grader answers to, `make_grader` builds one from a config.
Computer algebra is imported in worker processes only, so importing this package is cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

from qae.rewards.grade import Grade

if TYPE_CHECKING:
    from qae.rewards.function import FunctionGrader
    from qae.rewards.grader import Grader
    from qae.rewards.math import MathGrader
    from qae.rewards.overlong import filter_truncated, overlong_penalty
    from qae.rewards.simple import ExactGrader, NumericGrader, RegexGrader
    from qae.rewards.table import GRADERS, make_grader
    from qae.rewards.weighted import WeightedGrader

__all__ = [
    "GRADERS",
    "ExactGrader",
    "FunctionGrader",
    "Grade",
    "Grader",
    "MathGrader",
    "NumericGrader",
    "RegexGrader",
    "WeightedGrader",
    "filter_truncated",
    "make_grader",
    "overlong_penalty",
]

_HOME = {
    "GRADERS": "table",
    "ExactGrader": "simple",
    "FunctionGrader": "function",
    "Grader": "grader",
    "MathGrader": "math",
    "NumericGrader": "simple",
    "RegexGrader": "simple",
    "WeightedGrader": "weighted",
    "filter_truncated": "overlong",
    "make_grader": "table",
    "overlong_penalty": "overlong",
}


def __getattr__(name: str) -> Any:
    """Import the module that holds `name` on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'qae.rewards' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"qae.rewards.{_HOME[name]}"), name)
