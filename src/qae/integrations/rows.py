"""What the adapters share: group ids from a host's labels, rows that nobody trains on, K, running a host's script."""

import os
import runpy
import sys
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

K_VARIABLE = "QAE_K"
DEFAULT_K = 0.4


def ids_of(labels: Iterable[Hashable]) -> Int[Tensor, " n"]:
    """Labels of any kind as integers, equal where the labels are.

    Args:
        labels: one a row: uids, prompt texts, numbers.

    Example:
        >>> ids_of(["b", "a", "b"]).tolist()
        [0, 1, 0]
    """
    known: dict[Hashable, int] = {}
    return torch.tensor([known.setdefault(label, len(known)) for label in labels], dtype=torch.int64)


def blocks(rows: int, size: int) -> Int[Tensor, " n"]:
    """Group ids where a host's groups are runs of `size` rows.

    Args:
        rows: n.
        size: rows of a group.

    Example:
        >>> blocks(4, 2).tolist()
        [0, 0, 1, 1]
    """
    return torch.arange(rows) // size


def only_trained(rewards: Float[Tensor, " n"], trained: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
    """NaN for rows without a token to train on, so that they are outside their group.

    Args:
        rewards: [n] one reward a row.
        trained: [n] rows that have one.

    Example:
        >>> only_trained(torch.tensor([100.0, 1.0]), torch.tensor([False, True])).tolist()
        [nan, 1.0]
    """
    return rewards.masked_fill(~trained.to(rewards.device), torch.nan)


def level(given: float | None = None) -> float:
    """K: what was given, else the variable QAE_K, else 0.4.

    Hosts with a closed configuration have no place for K; the variable reaches their workers.

    Args:
        given: by the caller.

    Raises:
        ValueError: QAE_K is not a number between 0 and 1.

    Example:
        >>> level(0.2)
        0.2
    """
    from qae.groups import fraction_meant

    said = os.environ.get(K_VARIABLE)
    if given is None and said:
        try:
            given = float(said)
        except ValueError:
            raise ValueError(
                f"{K_VARIABLE}={said!r} is not a number; set it to the level of the quantile, like 0.4"
            ) from None
    k = DEFAULT_K if given is None else given
    fraction_meant(k)
    return k


def run_script(
    program: str, install: Callable[[float], Any], arguments: list[str], *, module: str | None = None
) -> None:
    """Install the adapter in this process, then run the host's own script in it, as if called by itself.

    Args:
        program: how this command is typed, for its usage line.
        install: puts the adapter in place, given K.
        arguments: `--k NUMBER` first, if given; then the script with its arguments, or only the arguments where the
            host's module is known.
        module: the host's module to run; None takes a script from the arguments.

    Raises:
        ValueError: no script was given.
    """
    k: float | None = None
    if arguments[:1] == ["--k"] and len(arguments) > 1:
        k, arguments = float(arguments[1]), arguments[2:]
    if module is None and not arguments:
        raise ValueError(f"nothing to run; usage: {program} [--k 0.4] SCRIPT.py [ARGUMENTS]")
    chosen = level(k)
    os.environ[K_VARIABLE] = str(chosen)
    install(chosen)
    if module is not None:
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))  # noqa: PTH100, PTH120
        runpy.run_path(arguments[0], run_name="__main__")
