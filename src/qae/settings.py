"""The configuration on the command line: reading it, showing it, and saying what each key means."""

import json
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, cast

import yaml
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from qae.trainer import keys
from qae.trainer.config import LOSS_DEFAULTS, PRESETS, Resolved, TrainConfig, describe, known_keys, resolve

INDENT = 6
WIDEST_VALUE = 16
# Where the value was chosen by a person, it stands out.
CHOSEN = ("command line",)


@dataclass(frozen=True)
class Asked:
    """What `qae train` was asked to run.

    Attributes:
        resolved: configuration and sources.
        title: recipe and overrides in one line.
    """

    resolved: Resolved
    title: str

    @property
    def config(self) -> TrainConfig:
        """The configuration."""
        return self.resolved.config


def read_arguments(arguments: list[str], resume: Path | None = None) -> Asked:
    """The configuration of `[RECIPE_OR_YAML] [key=value ...]`; of the run `resume` if one is given.

    Raises:
        ConfigError: the arguments or the configuration cannot be.
    """
    recipe: str | None = None
    if arguments and is_recipe(arguments[0]):
        recipe, *arguments = arguments
    if resume is not None:
        if recipe is not None:
            raise keys.ConfigError(f"--resume continues {resume} with its own configuration; leave out {recipe!r}")
        recipe = run_config(resume)
    if recipe in known_keys():
        raise keys.ConfigError(f"{recipe!r} is a key: give it a value, {recipe}=VALUE")
    for argument in arguments:
        if "=" not in argument:
            raise keys.ConfigError(f"{argument!r} is not of the form key.path=value; the recipe comes first, and once")
    what = f"resuming {resume}" if resume is not None else recipe or "tiny"
    return Asked(resolve(recipe, arguments), " ".join([what, *arguments]))


def is_recipe(argument: str) -> bool:
    """Whether an argument is a recipe's name or a file rather than `key=value`."""
    return "=" not in argument or Path(argument).is_file()


def run_config(run_dir: Path) -> str:
    """Path of a run directory's config.yaml.

    Raises:
        ConfigError: there is none.
    """
    if (run_dir / "config.yaml").is_file():
        return str(run_dir / "config.yaml")
    runs = sorted(path.parent for path in run_dir.parent.glob("*/config.yaml"))
    hint = f"; the newest there is {runs[-1]}" if runs else "; give the directory that the run printed"
    raise keys.ConfigError(f"--resume {run_dir}: no run there (no config.yaml){hint}")


def print_settings(console: Console, asked: Asked) -> None:
    """Every key with its value and where the value came from, by section."""
    flat = keys.flatten(asked.config.model_dump())
    constants = LOSS_DEFAULTS[asked.config.algorithm.loss.name]
    shown = [key for key in flat if not _foreign(key, flat, constants)]
    values = {key: as_yaml(flat[key]) for key in shown}
    widths = max(map(len, shown)), min(max(map(len, values.values())), WIDEST_VALUE)
    for section, members in by_section(shown):
        console.print(Text(section, style="bold"))
        for key in members:
            source = asked.resolved.sources[key]
            line = Text(f"  {key:<{widths[0]}}  {values[key]:<{widths[1]}}  ", style="cyan" if source in CHOSEN else "")
            console.print(line.append(source, style="bright_black"), soft_wrap=True)


def print_keys(console: Console) -> None:
    """Every key with its default, its choices and its meaning, by section; then what each preset fills in."""
    defaults = resolve({})
    values = keys.flatten(defaults.config.model_dump())
    entries = {key: (default, meaning) for key, default, meaning in describe()}
    for section, members in by_section(entries):
        console.print(Text(f"\n{section}", style="bold"))
        for key in members:
            default, meaning = entries[key]
            line = Text(f"  {key}", style="cyan")
            if not key.endswith("*"):
                value, source = values.get(key, default), defaults.sources.get(key, "default")
                line.append(f"={as_yaml(value)}", style="default")
                line.append("" if value is None or source == "default" else f"  ({source})", style="bright_black")
            _entry(console, line, " ".join([meaning, *_choices(key, meaning)]))
    _fillings(console, "presets", "algorithm.preset", PRESETS)
    _fillings(console, "losses", "algorithm.loss", LOSS_DEFAULTS)


def _fillings(console: Console, title: str, key: str, table: Mapping[str, Mapping[str, Any]]) -> None:
    console.print(Text(f"\n{title}: what each fills in where nothing is given", style="bold"))
    for name, owned in table.items():
        fills = ", ".join(f"{k.removeprefix('algorithm.')}={as_yaml(value)}" for k, value in owned.items())
        _entry(console, Text(f"  {key}={name}", style="cyan"), fills)


def _entry(console: Console, line: Text, below: str) -> None:
    console.print(line, soft_wrap=True)
    indent = " " * INDENT
    console.print(Text(textwrap.fill(below, console.width - 1, initial_indent=indent, subsequent_indent=indent)))


def _foreign(key: str, flat: Mapping[str, Any], constants: Mapping[str, Any]) -> bool:
    """Whether a key is another loss's constant or another engine's, which this run does not have."""
    section, _, name = key.rpartition(".")
    if section == "engine" and flat["engine.name"] == "local":
        return name != "name"
    return section == "algorithm.loss" and flat[key] is None and name not in constants


def by_section(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """(section, its keys) in the order in which the sections first appear."""
    sections: dict[str, list[str]] = {}
    for key in names:
        sections.setdefault(key.split(".")[0] if "." in key else "run", []).append(key)
    return list(sections.items())


def _choices(key: str, meaning: str) -> Iterator[str]:
    """The values of a key that has a fixed set of them, unless its meaning names them all."""
    section: Any = TrainConfig
    *path, name = key.split(".")
    for part in path:
        section = section.model_fields[part].annotation if issubclass(section, BaseModel) else None
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return
    field = section.model_fields.get(name)
    if field is not None and typing.get_origin(field.annotation) is Literal:
        choices = typing.get_args(field.annotation)
        if not all(str(choice) in meaning for choice in choices):
            yield f"One of {', '.join(choices)}."


def read_json(option: str, text: str | None) -> dict[str, Any] | None:
    """The object that an option gives as JSON.

    Raises:
        ConfigError: it is something else.
    """
    try:
        value: Any = None if text is None else json.loads(text)
    except json.JSONDecodeError as error:
        raise keys.ConfigError(f"{option} is not valid JSON: {text!r} ({error})") from None
    if value is not None and not isinstance(value, dict):
        raise keys.ConfigError(f'{option} must be a JSON object such as {{"top_k": 0}}, got {text!r}')
    return cast(dict[str, Any] | None, value)


def first_sentence(recipe: str) -> str:
    r"""What a recipe is for: the first sentence of the comment at its head.

    Example:
        >>> first_sentence("# Qwen3-0.6B on\n# GSM8K. Needs the Hub.\nname: x")
        'Qwen3-0.6B on GSM8K.'
    """
    head = takewhile(lambda line: line.startswith("#"), recipe.splitlines())
    text = " ".join(line.lstrip("# ") for line in head)
    return re.split(r"(?<=\.) ", text, maxsplit=1)[0]


def as_yaml(value: Any) -> str:
    """A value in one line, as one would type it on the command line.

    Example:
        >>> as_yaml(None), as_yaml(True), as_yaml(("jsonl",)), as_yaml(3e-05), as_yaml({"r": [16, "a b"]})
        ('null', 'true', '[jsonl]', '3e-05', '{r: [16, a b]}')
    """
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, Any], value).items()
        return "{" + ", ".join(f"{key}: {as_yaml(item)}" for key, item in pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(as_yaml(item) for item in cast(list[Any], value)) + "]"
    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value)
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
