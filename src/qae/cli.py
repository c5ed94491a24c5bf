"""The command `qae`. Everything heavy is imported inside the command that needs it."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

import qae

INTERRUPTED = 130
FAULT = 1
USAGE = 2
CANNOT_TELL = 3

app = typer.Typer(
    help=f"{qae.__doc__.splitlines()[0] if qae.__doc__ else ''}",
    epilog="`qae train` alone trains the shipped tiny policy. Anywhere: --debug (or QAE_DEBUG=1) shows tracebacks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
KeyValues = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE_OR_YAML] [KEY=VALUE]...", help="What to run; `qae recipes` lists recipes.", show_default=False
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines instead of the live view.")]


def main() -> None:
    """Run the command; an error that the user can mend is one line and exit code 2."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1 or os.environ.get("QAE_DEBUG", "0") not in ("", "0")
    try:
        app(args=arguments, prog_name="qae")
    except SystemExit as done:
        if not done.code and arguments[:1] == ["train"] and "--help" in arguments:
            from qae.settings import print_keys

            print_keys(Console())
        raise
    except Exception as error:
        if debug or not is_for_the_user(error):
            raise
        fail(str(error))


def is_for_the_user(error: BaseException) -> bool:
    """Whether qae raised it to say what is wrong with its input: such an error needs no traceback.

    These are qae's own exceptions, and a ValueError or a missing file or package that qae's own code raised, not a
    library under it.
    """
    if type(error).__module__.startswith("qae."):
        return True
    if not isinstance(error, (ValueError, FileNotFoundError, ModuleNotFoundError)):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("qae.")


def fail(message: str) -> NoReturn:
    """Say what is wrong in one red line and leave with code 2."""
    line = " ".join(message.split())
    Console(stderr=True).print(f"error: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise SystemExit(USAGE)


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"qae {qae.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    arguments: KeyValues = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue this run directory.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where to write.", show_default="runs/<name>-<time>")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the configuration and the plan; compute nothing.")
    ] = False,
    plain: Plain = False,
) -> None:
    """Train a language model with reinforcement learning on verifiable rewards.

    Values come from the command line, the recipe (default: tiny), the preset and the defaults, in this order.
    Every key with its default and meaning stands below the options.
    """
    from qae.settings import read_arguments

    console = Console()
    asked = read_arguments(arguments or [], resume)
    if dry_run:
        _dry_run(console, asked, run_dir or resume)
        return
    from qae.terminal import open_view, print_summary

    view = open_view(console, plain=plain)
    try:
        view.say(f"qae {qae.__version__}: {asked.title}")
        view.progress.steps = asked.config.steps
        view.event("phase", phase="load")
        finished = _run(view, asked.config, run_dir, resume)
        report = None if asked.config.engine.prepare_only else _report_after(view, finished)
    finally:
        view.close()
    print_summary(console, view.progress, report)


def _dry_run(console: Console, asked: Any, run_dir: Path | None) -> None:
    from qae.settings import print_settings

    console.print(
        f"qae {qae.__version__}: {asked.title} (dry run: nothing is computed or written)\n",
        markup=False,
        soft_wrap=True,
    )
    print_settings(console, asked)
    if asked.config.engine.name == "verl":
        from qae.engines.verl.run import plan

        differs, command = plan(asked.config, run_dir)
        console.print("\nwhat verl does in its own way", style="bold")
        for sentence in differs:
            console.print(f"  {sentence}", markup=False, highlight=False, soft_wrap=True)
        console.print("\nthe command (engine.prepare_only=true writes it and its data)", style="bold")
        console.print(command, markup=False, highlight=False, soft_wrap=True)
        return
    console.print("\nwhat will happen", style="bold")
    from qae.trainer.plan import describe_plan

    for label, sentence in describe_plan(asked.config):
        console.print(f"  {label:<11} {sentence}", markup=False, highlight=False, soft_wrap=True)
    place = run_dir or Path("runs") / f"{asked.config.name}-<time>"
    console.print(f"  {'writes':<11} {place}", markup=False, highlight=False, soft_wrap=True)


def _run(view: Any, config: Any, run_dir: Path | None, resume: Path | None) -> Path:
    try:
        from qae.engines.dispatch import train as train_loop
        from qae.trainer.loop import Interrupted
    except KeyboardInterrupt:
        _stopped(view, "stopped before the run began")
    try:
        return train_loop(config, run_dir=run_dir, resume=resume, observer=view)
    except Interrupted as error:
        _stopped(view, str(error))
    except KeyboardInterrupt:
        from qae.terminal import latest_checkpoint

        where = view.progress.run_dir
        saved = latest_checkpoint(where) if where else None
        _stopped(
            view,
            f"stopped at once; continue from step {int(saved.name)} with `qae train --resume {where}`"
            if saved
            else "stopped before the first checkpoint: there is nothing to continue from",
        )


def _stopped(view: Any, line: str) -> NoReturn:
    view.close()
    view.say(line)
    raise SystemExit(INTERRUPTED)


def _report_after(view: Any, run_dir: Path) -> Path | None:
    from qae.audit import audit_paths, save_audit
    from qae.report import write_report

    try:
        save_audit(audit_paths([run_dir]), run_dir)
    except Exception as error:  # the run is worth more than its audit, and than its report
        view.say(f"warning: the audit failed ({type(error).__name__}: {error}); try: qae audit {run_dir}")
    try:
        return write_report([run_dir], run_dir / "report.html")
    except Exception as error:
        view.say(f"warning: the report failed ({type(error).__name__}: {error}); try: qae report {run_dir}")
        return None


@app.command(name="eval")
def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="tiny, smollm2, a directory, a Hub id, a run, or the server's name."),
    ] = None,
    bench: Annotated[
        list[str] | None,
        typer.Option(help="Benchmarks, comma-separated: aime24, aime25, amc23; aime24=FILE reads that file."),
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="JSONL or Parquet file, or Hub id; may be repeated.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Column of the problem in --data.")] = None,
    answer: Annotated[str | None, typer.Option(help="Column of the gold answer in --data.")] = None,
    split: Annotated[str, typer.Option(help="Split of a Hub id in --data.")] = "test",
    subset: Annotated[str | None, typer.Option(help="Subset of a Hub id in --data, such as main.")] = None,
    samples: Annotated[int, typer.Option(help="Completions a problem.")] = 32,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Nucleus.")] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest completion.", show_default="what the context leaves, at most 4096")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random streams.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="String that ends a completion; may be repeated.")] = None,
    suffix: Annotated[str | None, typer.Option(help="Text after each prompt.", show_default="the benchmark's")] = None,
    system: Annotated[str | None, typer.Option(help="System message of chat prompts.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Prompts as chat.", show_default="if the model has a template"),
    ] = None,
    grader: Annotated[str, typer.Option(help="How completions are graded.")] = "math",
    endpoint: Annotated[str | None, typer.Option(help="OpenAI-compatible server, up to and with /v1.")] = None,
    endpoint_extra: Annotated[str | None, typer.Option(help="Further request fields, as JSON.")] = None,
    concurrency: Annotated[int, typer.Option(help="Requests to the server at once.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Where to write.", show_default="evals/<model>")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="BASELINE TREATMENT", help="Compare two finished evaluations, paired by problem."),
    ] = None,
) -> None:
    """Measure pass@1, pass@k and maj@k of a model on benchmarks or files. The same command again continues."""
    from qae.settings import read_json
    from qae.terminal.evaluation import EvalView
    from qae.trainer.keys import ConfigError

    console = Console()
    if compare is None and model is None:
        raise ConfigError("nothing to evaluate: give a MODEL, or --compare with two evaluations")
    console.print(f"qae {qae.__version__}: {model or 'comparing'}", markup=False, highlight=False)
    from qae.evaluation.command import compare_directories, evaluate_model
    from qae.evaluation.samples import EvalSettings

    if compare is not None:
        typer.echo(compare_directories(*compare))
        return
    settings = EvalSettings(
        samples=samples, temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed,
        stop=tuple(stop or ()), suffix=suffix, system=system, chat=chat, grader=grader,
    )  # fmt: skip
    names = [name for part in bench or [] for name in part.split(",")]
    extra = read_json("--endpoint-extra", endpoint_extra)
    try:
        with EvalView(console) as view:
            _, where = evaluate_model(
                str(model), settings, bench=names, data=data or [], prompt=prompt, answer=answer, split=split,
                subset=subset, endpoint=endpoint, endpoint_extra=extra, concurrency=concurrency, device=device,
                dtype=dtype, out=out, watch=view.watch, progress=view.within,
            )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here")
        raise SystemExit(INTERRUPTED) from None
    typer.echo((where / "table.md").read_text())
    typer.echo(f"details: {where}    look at them: qae report {where}/<set>")


@app.command()
def scale(
    arguments: KeyValues = None,
    gpu: Annotated[str, typer.Option(help="a100, h100, h200 or b200.")] = "h100",
    gpus: Annotated[str, typer.Option(help="How many, comma-separated.")] = "8,32,256",
    mean_tokens: Annotated[
        float | None, typer.Option(help="Of a completion.", show_default="a quarter of rollout.max_tokens")
    ] = None,
    zero_frac: Annotated[float, typer.Option(help="Share of rows with advantage 0.")] = 0.75,
    sampled_frac: Annotated[
        float, typer.Option(help="Completions sampled for each one trained on; above 1 with dynamic sampling.")
    ] = 1.0,
) -> None:
    """Estimate memory and time of a step on a cluster, on paper: no model and no GPU is touched."""
    from qae.settings import read_arguments
    from qae.trainer.keys import ConfigError

    asked = read_arguments(arguments or ["paper/qwen3-8b-dapo"])
    counts = tuple(int(part) for part in gpus.split(",") if part.strip().isdigit() and int(part) > 0)
    if not counts:
        raise ConfigError(f"--gpus {gpus} must be whole numbers with commas between, such as 8,32")
    from qae.engines.scale import scale_text

    typer.echo(
        scale_text(
            asked.config, gpu_name=gpu, gpus=counts, mean_tokens=mean_tokens, zero_frac=zero_frac,
            sampled_frac=sampled_frac,
        )
    )  # fmt: skip


@app.command()
def study(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="STUDY.yaml", help="The study; with --redraw, kept summaries.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Where to write.", show_default="runs/study-<name>")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time.", show_default="processors")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Do these runs now, in this order: BLOCK/ARM or a pattern; repeatable.")
    ] = None,
    share: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="SUMMARY",
            help="summary.json of another study: runs of the same configuration count as finished; repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan: runs and minutes; compute nothing.")
    ] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Run nothing; sum up the runs that are finished.")] = False,
    again: Annotated[
        bool, typer.Option("--redraw", help="Tables, figures and pages of kept summary.json files, computed anew.")
    ] = False,
    plain: Plain = False,
) -> None:
    """Run arms x seeds in parallel, paired, and say what they show. The same command again goes on."""
    from qae.study.command import conduct, redraw
    from qae.study.command import dry_run as plan
    from qae.study.runner import StudyStopped
    from qae.trainer.keys import ConfigError

    if again:
        redraw(paths, out=out, tell=typer.echo)
        return
    if len(paths) > 1:
        raise ConfigError(f"one study at a time, got {len(paths)}; several summaries go with --redraw")
    at_a_time = jobs or os.cpu_count() or 1
    if dry_run:
        typer.echo(plan(paths[0], out=out, jobs=at_a_time, only=only or (), shared=share or ()))
        return
    try:
        where = conduct(
            paths[0],
            out=out,
            jobs=at_a_time,
            console=Console(),
            plain=plain,
            sum_up_only=summary,
            only=only or (),
            shared=share or (),
        )
    except StudyStopped as stopped:
        typer.echo(str(stopped))
        raise SystemExit(INTERRUPTED) from None
    typer.echo((where / "summary.md").read_text())
    typer.echo(f"page: {where / 'report.html'}    record: {where / 'summary.json'}")


@app.command()
def recipes(name: Annotated[str | None, typer.Argument(help="Print this recipe.")] = None) -> None:
    """List the recipes that `qae train` knows by name."""
    from qae.settings import first_sentence
    from qae.trainer.keys import read_recipe, recipe_names, recipe_text

    if name is not None:
        read_recipe(name)
        typer.echo(recipe_text(name), nl=False)
        return
    names = recipe_names()
    width = max(map(len, names))
    for recipe in names:
        typer.echo(f"{recipe:<{width}}  {first_sentence(recipe_text(recipe))}")


@app.command()
def fetch(what: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct, about 100 MB.")]) -> None:
    """Download a small pretrained model into the cache."""
    from qae.trainer.keys import ConfigError

    if what != "smollm2":
        raise ConfigError(f"nothing called {what!r} to fetch; try: qae fetch smollm2")
    typer.echo("fetching SmolLM2-135M-Instruct (about 100 MB) ...")
    from qae.policies import fetch_smollm2

    typer.echo(f"{fetch_smollm2()}\nuse it with: qae train smollm2-addition")


@app.command()
def audit(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Runs, dumps and logs of qae, verl, TRL, TensorBoard or wandb; JSONL."),
    ],
    k: Annotated[
        list[float] | None, typer.Option(help="K to compare; may be repeated.", show_default="0.2 to 0.8")
    ] = None,
    right_above: Annotated[
        float | None,
        typer.Option(help="Where no outcome is logged: a completion is right if its reward is above this."),
    ] = None,
    word: Annotated[
        list[str] | None, typer.Option(help="Word of doubt to count; may be repeated.", show_default="wait, hm, ...")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="For a run: one small gradient step from its checkpoint under each baseline; entropy change predicted "
            "and measured.",
        ),
    ] = False,
    batches: Annotated[int, typer.Option(min=1, help="With --measure: batches to take the step on.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers there.")] = None,
) -> None:
    """Say what other baselines would have done with logged rewards, what happened to the entropy, and which K.

    The audit of one run directory is left there as audit.json: `qae report` shows it.
    """
    from qae.audit import audit_paths, audit_text, save_audit
    from qae.audit.tokens import WORDS
    from qae.audit.whatif import DEFAULT_KS
    from qae.records import atomic_write, to_json
    from qae.trainer.keys import ConfigError

    is_run = len(paths) == 1 and (paths[0] / "config.yaml").is_file()
    if measure and not is_run:
        raise ConfigError(f"--measure needs one run directory with a config.yaml, got {', '.join(map(str, paths))}")
    found = audit_paths(paths, ks=k or DEFAULT_KS, right_above=right_above, words=word or WORDS)
    if measure:
        from qae.audit.measure import measure_entropy_steps

        found["entropy_step"] = measure_entropy_steps(
            paths[0], batches=batches, tell=lambda text: typer.echo(text, err=True)
        )
    typer.echo(audit_text(found), nl=False)
    if json_file is not None:
        atomic_write(json_file, to_json(found) + "\n")
        typer.echo(f"\nnumbers: {json_file}")
    if is_run:
        typer.echo(f"\nkept: {save_audit(found, paths[0])}    look at it: qae report {paths[0]}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; several are compared.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="File to write.", show_default="RUN/report.html; report.html for several"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown instead of a page: to -o, or shown.")] = False,
    png: Annotated[bool, typer.Option("--png", help="Also a picture of the page; needs Chromium or Chrome.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Serve the page here while the runs go on.")] = False,
    port: Annotated[int, typer.Option(help="Port of --watch on 127.0.0.1; 0: any free one.")] = 8765,
) -> None:
    """Write one self-contained HTML page about runs."""
    from qae.records import atomic_write
    from qae.report import serve_report, write_markdown, write_png, write_report
    from qae.trainer.keys import ConfigError

    asked = {"--watch": watch, "--markdown": markdown, "--png": png, "--out": out is not None}
    for alone, others in (("--watch", ("--markdown", "--png", "--out")), ("--markdown", ("--png",))):
        clash = next((other for other in others if asked[alone] and asked[other]), None)
        if clash:
            raise ConfigError(f"{alone} cannot go with {clash}: leave out one of them")
    if watch:
        serve_report(runs, port=port, title=title, ready=lambda at: typer.echo(f"{at}  (Ctrl-C stops)"))
        return
    if markdown:
        text = write_markdown(runs)
        if out is None:
            typer.echo(text, nl=False)
        else:
            atomic_write(out, text)
            typer.echo(out)
        return
    page = write_report(runs, out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html")), title=title)
    typer.echo(page)
    if png:
        typer.echo(write_png(page, page.with_suffix(".png")))


@app.command()
def doctor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HOST] [KEY=VALUE | FILE.yaml]...", help="A framework, and your settings for it."),
    ] = None,
    run: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Say which baseline this run's advantages have.")
    ] = None,
) -> None:
    """Prove that quantile advantages are active: in a framework, or in a finished run.

    Exit code 0: they are. 1: a fault, or a run of another baseline. 3: the run cannot tell.
    """
    from qae.doctor import check_host, check_machine, check_run, findings_text, list_hosts, verdict_text
    from qae.integrations.finding import has_fault

    if run:
        verdict = check_run(run)
        typer.echo(verdict_text(verdict))
        raise typer.Exit({"quantile": 0, "unknown": CANNOT_TELL}.get(verdict.kind, FAULT))
    findings = check_host(arguments[0], arguments[1:]) if arguments else [*check_machine(), *list_hosts()]
    typer.echo(findings_text(findings))
    raise typer.Exit(FAULT if has_fault(findings) else 0)
