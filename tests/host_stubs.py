"""Run a host's own code without what cannot be installed here: stand-ins for named packages that are missing."""

import importlib.machinery
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar


class _Meta(type):
    """A class of which everything is there, false, callable and a decorator."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        if cls is not Anything:
            return super().__call__(*args, **keywords)
        decorated = len(args) == 1 and not keywords and callable(args[0]) and not isinstance(args[0], _Meta)
        return args[0] if decorated else Anything

    def __bool__(cls) -> bool:
        return cls is not Anything

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())

    def __or__(cls, other: Any) -> Any:
        return other

    __ror__ = __or__


class Anything(metaclass=_Meta):
    """Stands for any name of a stubbed module; may be subclassed, and be the type of a pydantic field."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Stub(ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class Stubs:
    """Installs itself as the last finder, so that only what is missing is stubbed; remembers what was asked for.

    `instead` names parts of the host itself that are stubbed though they are there, since they need a GPU or a server.
    """

    def __init__(self, *packages: str, instead: tuple[str, ...] = ()) -> None:
        self.packages = set(packages)
        self.used: set[str] = set()
        sys.meta_path.append(self)
        if instead:
            first = Stubs(*instead)
            sys.meta_path.remove(first)
            sys.meta_path.insert(0, first)
            first.used = self.used

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not any(name == p or name.startswith(p + ".") for p in self.packages):
            return None
        self.used.add(next(p for p in sorted(self.packages) if name == p or name.startswith(p + ".")))
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def version_in(checkout: Path) -> str:
    """The version that a wheel's metadata or a checkout's packaging files name."""
    for pattern, expression in (
        ("*.dist-info/METADATA", r"^Version: (\S+)"),
        ("version.txt", r"^(\d\S+)"),
        ("*/package_info.py", r"MAJOR = (\d+)\nMINOR = (\d+)\nPATCH = (\d+)"),
        ("pyproject.toml", r'^version = "([^"]+)"'),
        ("setup.py", r'version="([^"]+)"'),
        ("_version.py", r'__version__ = "([^"]+)"'),
        ("*/__init__.py", r'^__version__ = "(\d[^"]+)"'),
        ("*/_version.py", r'__version__ = "([^"]+)"'),
    ):
        for file in sorted(checkout.glob(pattern)):
            found = re.search(expression, file.read_text(), re.MULTILINE)
            if found:
                return ".".join(found.groups())
    return "unknown"


def source_of(checkout: Path) -> str:
    """A wheel, or a checkout with the revision that a file REVISION in it names."""
    if any(checkout.glob("*.dist-info")):
        return "wheel"
    revision = checkout / "REVISION"
    return f"checkout {revision.read_text().strip()}" if revision.exists() else "checkout"


def report(checkout: Path, stubs: Stubs, **values: Any) -> None:
    """The last line of output: what was run, with which stubs, and the values it gave."""
    used = sorted(stubs.used)
    print(f"stubs: {', '.join(used) or 'none'}")
    print(json.dumps({"version": version_in(checkout), "source": source_of(checkout), "stubs": used, **values}))
