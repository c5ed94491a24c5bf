"""What a user waits for: `qae --help`, and from `qae train` to the first line, sampled token and finished step.

Help is compared with an interpreter that only imports what every such command line needs (typer and rich), and with
`trl --help` where `--trl-python` names an environment that has TRL. The sides alternate; each call is a new process,
the files are in the page cache after a warm-up.

Training is the tiny policy, as `qae train` runs it into a pipe: plain lines, the evaluation before training included,
because that is where the first token is sampled. Its clock starts before the process does. The sampler reports every
few tokens, so `first_token` is the time by which each row of the first batch has at most eight. `first_step` is given
for the recipe as it is and without that evaluation. The child is stopped after its first step.

Prints one JSON object; `--out` also writes it to a file.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

EVENTS = ("first_line", "first_token", "first_step")


def seconds_of(command: list[str]) -> float:
    """Wall seconds of a command that must succeed."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=300)
    return time.perf_counter() - started


def scripts_of(python: str, name: str) -> str:
    """The console script beside an interpreter."""
    return str(Path(python).with_name(name))


def first_moments(recipe: list[str], overrides: list[str]) -> dict[str, float]:
    """Seconds from the start of `qae train` to its first line, first tokens and first finished step."""
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["train", *recipe, *overrides, "--plain", "--run-dir", str(Path(folder) / "run")]
        command = [sys.executable, __file__, "--watch", str(write), *arguments]
        started = time.monotonic()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, pass_fds=[write], start_new_session=True)
        os.close(write)
        found: dict[str, float] = {}
        try:
            with os.fdopen(read) as events:
                for line in events:
                    name, moment = line.split()
                    found.setdefault(name, float(moment) - started)
                    if name == "first_step":
                        break
        finally:
            os.killpg(child.pid, signal.SIGKILL)  # with the grader's processes
            child.wait()
    missing = [name for name in EVENTS if name not in found]
    if missing:
        raise RuntimeError(f"qae train ended without {', '.join(missing)}: run `qae {' '.join(arguments)}` to see why")
    return found


def watch(write: int, arguments: list[str]) -> None:
    """The child: `qae` with these arguments, telling when it says, samples and finishes something."""
    import qae.cli
    import qae.terminal

    os.set_inheritable(write, False)
    told: set[str] = set()

    def tell(name: str) -> None:
        if name not in told:
            told.add(name)
            os.write(write, f"{name} {time.monotonic()}\n".encode())

    open_view = qae.terminal.open_view

    def open_watched(*args: Any, **kwargs: Any) -> Any:
        view = open_view(*args, **kwargs)
        say, event = view.say, view.event

        def watched_say(*args: Any, **kwargs: Any) -> None:
            say(*args, **kwargs)
            tell("first_line")

        def watched_event(name: str, /, **data: Any) -> None:
            event(name, **data)
            if name == "phase" and data["phase"] in ("eval", "sample") and data.get("tokens"):
                tell("first_token")
            if name == "step":
                tell("first_step")

        view.say, view.event = watched_say, watched_event
        return view

    qae.terminal.open_view = open_watched
    sys.argv = [scripts_of(sys.executable, "qae"), *arguments]
    qae.cli.main()


def main(argv: list[str] | None = None) -> None:
    """Parse the arguments, measure, print."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--watch"]:
        watch(int(argv[1]), argv[2:])
        return
    parser = harness.parser(__doc__)
    harness.add_trl(parser)
    parser.add_argument("--train-alternations", type=int, default=5)
    parser.add_argument("overrides", nargs="*", help="key=value for both runs, as for `qae train`")
    args = parser.parse_args(argv)
    helps = {
        "qae": [scripts_of(sys.executable, "qae"), "--help"],
        "floor": [sys.executable, "-c", "import typer, rich"],
    }
    trl_versions: dict[str, str] = {}
    if args.trl_python:
        helps["trl"] = [scripts_of(args.trl_python, "trl"), "--help"]
        ask = "from importlib.metadata import version; print(version('trl'))"
        trl_versions["trl"] = subprocess.check_output([args.trl_python, "-c", ask], text=True).strip()
    load_before = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {side: [] for side in helps}
    for alternation in range(args.alternations + 1):  # the first is a warm-up
        for side, command in helps.items():
            taken = seconds_of(command)
            if alternation:
                seconds[side].append(taken)

    runs = {"as_it_is": [], "without_evaluation": ["eval.problems=0"]}
    moments: dict[str, list[dict[str, float]]] = {run: [] for run in runs}
    for _ in range(args.train_alternations):
        for run, more in runs.items():
            moments[run].append(first_moments(["tiny"], [*args.overrides, *more]))

    where = harness.environment("qae", "torch", "transformers", "typer", "rich")
    where["versions"] |= trl_versions
    result = {
        "benchmark": "startup",
        **where,
        "load_average_before": load_before,
        "config": {"overrides": args.overrides, "alternations": args.alternations, "policy": "tiny"},
        "help_seconds": {side: harness.spread(taken) for side, taken in seconds.items()},
        "qae_help_over_floor": harness.ratios(seconds["qae"], seconds["floor"]),
        "trl_help_over_qae": harness.ratios(seconds["trl"], seconds["qae"]) if "trl" in seconds else None,
        "train_seconds": {
            run: {name: harness.spread([one[name] for one in found]) for name in EVENTS}
            for run, found in moments.items()
        },
        "targets": {"help_seconds": 0.5, "first_token_seconds": 10},
    }
    harness.finish(result, args.out)


if __name__ == "__main__":
    main()
