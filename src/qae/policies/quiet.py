"""Keeps transformers' progress bars out of the run's own display."""

from collections.abc import Generator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_progress_bars(only_if: bool = True) -> Generator[None]:
    """No bars for loading and saving local files, which takes a blink; a download keeps its bar.

    Args:
        only_if: False leaves everything as it is.
    """
    quiet = only_if and logging.is_progress_bar_enabled()
    if quiet:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if quiet:
            logging.enable_progress_bar()
