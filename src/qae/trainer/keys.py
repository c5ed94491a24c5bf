"""Nested configurations as flat `a.b.c` keys: reading, merging, and errors that name the nearest right key."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

Flat = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)

RECIPES = Path(__file__).parent.parent / "recipes"
# Sections for which `section=x` means `section.name=x`.
NAMED_SECTIONS = ("policy", "task", "engine", "algorithm.advantage", "algorithm.loss")
SHORT_FOR = {"policy": "policy.path"}
# Sections whose other keys belong to the name: a new name drops what a lower layer gave to the old one.
OWNED_BY_NAME = ("task", "algorithm.loss")


class ConfigError(ValueError):
    """A configuration that cannot be: names the key, the value and the next step."""


def recipe_names() -> list[str]:
    """Names of the shipped recipes, sorted."""
    return sorted(p.relative_to(RECIPES).with_suffix("").as_posix() for p in RECIPES.rglob("*.yaml"))


def recipe_text(name: str) -> str:
    """The YAML of a shipped recipe."""
    return (RECIPES / f"{name}.yaml").read_text()


def read_recipe(recipe: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(label, contents) of a shipped recipe, a YAML file or a mapping."""
    if isinstance(recipe, Mapping):
        return "given", dict(recipe)
    shipped = RECIPES / f"{recipe}.yaml"
    path = shipped if recipe in recipe_names() else Path(recipe)
    if not path.is_file():
        near = difflib.get_close_matches(recipe, recipe_names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"shipped recipes: {', '.join(recipe_names())}"
        raise ConfigError(f"no recipe or file {recipe!r}; {hint}")
    try:
        contents = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(contents, dict):
        raise ConfigError(f"{path} must hold a mapping of sections, found {type(contents).__name__}")
    contents = cast(dict[str, Any], contents)
    contents.pop("about", None)  # what a finished run's config.yaml says of its versions and machine
    contents.pop("about", None)  # in a run's config.yaml: what wrote it
    return f"recipe {recipe}" if path == shipped else str(path), contents


def parse_overrides(overrides: Iterable[str]) -> Flat:
    """`key.path=value` strings as flat keys; values are YAML."""
    flat: Flat = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"{override!r} is not of the form key.path=value")
        try:
            node = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=True)
        except (yaml.YAMLError, OmegaConfBaseException) as error:
            raise ConfigError(f"the value of {key} is not valid YAML: {text!r} ({error})") from None
        nested: Any = cast(dict[str, Any], node)["value"]
        for part in reversed(key.strip().split(".")):
            nested = {part: nested}
        flat = merge([flat, flatten(nested)])
    return flat


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Flat:
    """Nested mappings as dotted keys; `section: x` becomes `section.name: x`."""
    flat: Flat = {}
    for name, value in nested.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten(cast(Mapping[str, Any], value), f"{key}.")
        elif key in NAMED_SECTIONS and value is not None:
            flat[SHORT_FOR.get(key, f"{key}.name")] = value
        else:
            flat[key] = value
    if prefix == "" and "task.path" in flat:
        flat.setdefault("task.name", "data")
    return flat


def unflatten(flat: Flat) -> dict[str, Any]:
    """The inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        node = nested
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return nested


def merge(layers: list[Flat]) -> Flat:
    """Layers from weak to strong; a key replaces what it contains and what contains it."""
    merged: Flat = {}
    for layer in layers:
        for section in OWNED_BY_NAME:
            name = layer.get(f"{section}.name")
            if name is not None and merged.get(f"{section}.name", name) != name:
                merged = {k: v for k, v in merged.items() if not k.startswith(f"{section}.")}
        for key, value in layer.items():
            merged = {k: v for k, v in merged.items() if not (k.startswith(f"{key}.") or key.startswith(f"{k}."))}
            merged[key] = value
    return merged


def refuse_unknown(flat: Flat, known: Mapping[str, str]) -> None:
    """Raise for the first key that the configuration does not have, naming the nearest one that it has."""
    open_sections = tuple(key[:-1] for key in known if key.endswith("*"))
    for key in flat:
        if key not in known and not key.startswith(open_sections):
            raise ConfigError(f"unknown key {key!r}{_did_you_mean(key, known)}")


def _did_you_mean(key: str, known: Iterable[str]) -> str:
    names = [name for name in known if not name.endswith("*")]
    last = key.rsplit(".", 1)[-1]
    same_name = [name for name in names if name.rsplit(".", 1)[-1] == last]
    near = same_name or difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    if not near:
        by_name = {name.rsplit(".", 1)[-1]: name for name in names}
        near = [by_name[n] for n in difflib.get_close_matches(last, by_name, n=1)]
    return f"; did you mean {near[0]!r}?" if near else "; `qae train --help` lists every key"


def validate(model: type[Model], nested: Mapping[str, Any]) -> Model:
    """The model of a nested mapping; pydantic's findings as one `ConfigError` that names each key and value."""
    try:
        return model.model_validate(nested)
    except ValidationError as error:
        raise ConfigError("; ".join(_finding(dict(e), model) for e in error.errors())) from None


def _finding(error: dict[str, Any], model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{key} is missing"
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, model.model_fields, n=1)
        return f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    if error["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}={error['input']!r}: {message[0].lower()}{message[1:]}"
