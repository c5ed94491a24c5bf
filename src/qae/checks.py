"""Refusals that name the argument, the value, the bound and the next step."""

import difflib

import torch
from torch import Tensor


def check_rows(argument: str, values: Tensor, group_ids: Tensor) -> None:
    """Refuse what is not one float and one integer id for each row.

    Args:
        argument: what the caller calls the values.
        values: should be a float tensor [n].
        group_ids: should be an integer tensor [n].

    Raises:
        TypeError: not a tensor, or of another dtype.
        ValueError: shapes differ or are not [n].
    """
    for name, given in ((argument, values), ("group_ids", group_ids)):
        if not torch.is_tensor(given):
            raise TypeError(f"{name} is a {type(given).__name__}; pass torch.tensor({name})")
    if not values.dtype.is_floating_point:
        raise TypeError(f"{argument} has dtype {values.dtype}; pass {argument}.float()")
    if group_ids.dtype.is_floating_point or group_ids.dtype.is_complex or group_ids.dtype == torch.bool:
        raise TypeError(f"group_ids has dtype {group_ids.dtype}; pass integers, one value for each prompt")
    if values.dim() != 1 or values.shape != group_ids.shape:
        raise ValueError(
            f"{argument} has shape {list(values.shape)} and group_ids has {list(group_ids.shape)}; "
            "both must be [n], one number and one id for each completion"
        )


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value outside `choices`, naming the nearest right one.

    Args:
        argument: name of the argument.
        value: what was given.
        choices: what is possible.

    Raises:
        ValueError: `value` is not among `choices`.
    """
    if value not in choices:
        nearest = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.4)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"{argument}={value!r} must be one of {', '.join(map(repr, choices))}{hint}")


def check_at_least(argument: str, value: float, bound: float) -> None:
    """Refuse a number below `bound`, or NaN.

    Args:
        argument: name of the argument.
        value: what was given.
        bound: the smallest allowed.

    Raises:
        ValueError: `value` is below `bound`.
    """
    if not value >= bound:
        raise ValueError(f"{argument}={value} must be at least {bound}")
