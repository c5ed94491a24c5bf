"""What an evaluation draws: requests, samples, their settings, and the file that makes it resumable."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from qae.records import atomic_write, to_json
from qae.tasks.prompts import stop_strings
from qae.tasks.task import Item

Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class EvalSettings:
    """How to draw and grade; two evaluations can be compared sample by sample only if these agree.

    Attributes:
        samples: completions per problem.
        temperature: of the softmax; 0 is greedy.
        top_p: nucleus mass.
        max_tokens: longest completion; None takes what the model's context leaves, at most 4,096.
        seed: of the random streams.
        stop: strings that end a completion.
        suffix: text after plain prompts; None takes the benchmark's own.
        system: system message for chat prompts.
        chat: whether a plain prompt becomes a user message; None: if the model has a chat template.
        grader: name or settings of the grader (`qae.rewards.make_grader`).
    """

    samples: int = 32
    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    suffix: str | None = None
    system: str | None = None
    chat: bool | None = None
    grader: Any = "math"

    def __post_init__(self) -> None:
        """Refuse what cannot be sampled."""
        if self.samples < 1:
            raise ValueError(f"samples={self.samples} must be at least 1")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature} must be a finite number, not negative; 0 is greedy")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must lie in (0, 1]; 1 keeps all")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens} must be at least 1")
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(f"temperature=0 draws the same completion {self.samples} times; set samples=1")
        stop_strings(self.stop)


@dataclass(frozen=True)
class Request:
    """One completion to draw.

    Attributes:
        item: the problem.
        sample: number of the completion, from 0.
    """

    item: Item
    sample: int


@dataclass(frozen=True)
class Sample:
    """One completion drawn.

    Attributes:
        problem: id of the problem.
        sample: number of the completion, from 0.
        completion: the text.
        tokens: its length; None if the server did not say.
        truncated: it ran into the token limit.
        entropy_mean_nats: mean over its tokens; None from a server.
    """

    problem: str
    sample: int
    completion: str
    tokens: int | None
    truncated: bool
    entropy_mean_nats: float | None = None


@runtime_checkable
class Sampler(Protocol):
    """Draws completions: the built-in engine, or a server.

    Attributes:
        name: of the model, for tables.
        about: what else the samples depend on, as plain JSON.
    """

    name: str
    about: dict[str, Any]

    def sample(self, requests: Sequence[Request], settings: EvalSettings, suffix: str) -> Iterator[list[Sample]]:
        """The samples as they are finished, some at a time, in any order."""
        ...


def random_stream(problem: str) -> int:
    """A number for a problem's random stream: the same wherever the problem stands in a file."""
    return int.from_bytes(hashlib.sha256(problem.encode()).digest()[:7], "big")


class SampleFile:
    """`samples.jsonl`: one line a finished sample, with the settings they were drawn under beside it.

    Args:
        directory: of the evaluation; made if missing.
        fingerprint: everything that the samples depend on, as plain JSON.

    Raises:
        ValueError: the directory holds samples that were drawn differently, or is none.
    """

    def __init__(self, directory: Path, fingerprint: dict[str, Any]):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"{directory} cannot be made, a file is in its way; give another directory") from None
        self.path = directory / "samples.jsonl"
        about = directory / "drawn_as.json"
        now = json.loads(to_json(fingerprint))
        if about.exists() and self.path.exists():
            before = json.loads(about.read_text(encoding="utf-8"))
            changed = sorted(k for k in {**before, **now} if before.get(k) != now.get(k))
            if changed:
                texts = (f"{k}: {_short(before.get(k))} then, {_short(now.get(k))} now" for k in changed)
                raise ValueError(
                    f"{directory} holds samples that were drawn differently ({'; '.join(texts)}); "
                    "choose another directory, or delete it to start again"
                )
        atomic_write(about, to_json(fingerprint) + "\n")

    def read(self) -> dict[tuple[str, int], Sample]:
        """The samples drawn so far by (problem, sample); a line that a crash cut short is dropped from the file."""
        if not self.path.exists():
            return {}
        names = {field.name for field in fields(Sample)}
        found: dict[tuple[str, int], Sample] = {}
        broken = False
        for line in self.path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line) if line.strip() else None
                if record is not None:
                    sample = Sample(**{k: v for k, v in record.items() if k in names})
                    found[sample.problem, sample.sample] = sample
            except (ValueError, TypeError, AttributeError):
                broken = True
        if broken or not self.path.read_bytes().endswith(b"\n"):
            atomic_write(self.path, "".join(to_json(asdict(sample)) + "\n" for sample in found.values()))
        return found

    def append(self, samples: Sequence[Sample]) -> None:
        """Add finished samples, so that killing the process after this call does not lose them."""
        with self.path.open("ab") as file:
            file.write("".join(to_json(asdict(sample)) + "\n" for sample in samples).encode("ascii"))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
