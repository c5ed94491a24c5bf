"""Which completions the report shows: few enough to send by mail, spread over steps, regimes and signs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qae.records import ReadTally, Rollout, read_rollouts, rollout_files, to_json
from qae.report.runs import rounded

# characters and tokens of one completion; the first pair whose sum over all completions fits is taken
LIMITS = ((5000, 1200), (2000, 400), (600, 120), (150, 0))
BYTES_IN_ALL = 2_000_000


def samples_of(run_dirs: list[Path], *, count: int, tally: ReadTally) -> list[dict[str, Any]]:
    """Completions to show of several runs, cut so that they fit into the page.

    Args:
        run_dirs: the run directories.
        count: completions in all.
        tally: counts broken lines.

    Returns:
        Dicts with run (index), step, prompt, text, what was cut, and where logged the tokens with their entropies.
    """
    each = max(1, count // len(run_dirs))
    picked = [
        (i, rollout)
        for i, run_dir in enumerate(run_dirs)
        for rollout in pick_samples(run_dir, steps=min(8, each), per_step=max(1, each // 8), tally=tally)
    ]
    shown: list[dict[str, Any]] = []
    for characters, tokens in LIMITS:
        shown = [{"run": i, **_shown(rollout, characters, tokens)} for i, rollout in picked]
        if sum(len(to_json(sample)) for sample in shown) <= BYTES_IN_ALL:
            break
    return shown


def pick_samples(run_dir: Path, *, steps: int, per_step: int, tally: ReadTally) -> list[Rollout]:
    """Completions that show most of a run.

    From each of a few steps (first and last among them), one by one from the cells of regime x sign of the
    advantage, of different prompts where there are, those with per-token entropies first.

    Args:
        run_dir: the run directory.
        steps: steps to take from.
        per_step: completions from each.
        tally: counts broken lines.

    Returns:
        The completions, by step.
    """
    files = rollout_files(run_dir)
    if not files:
        return []
    wanted = sorted({round(i * (len(files) - 1) / max(1, steps - 1)) for i in range(steps)})
    found: list[Rollout] = []
    for index in wanted:
        found += _spread(read_rollouts(files[index][1], tally=tally), per_step)
    return found


def _spread(rollouts: Iterator[Rollout], count: int) -> list[Rollout]:
    cells: dict[tuple[str, int], list[Rollout]] = {}
    prompts: set[tuple[str, int, str]] = set()
    for rollout in rollouts:
        sign = (rollout.advantage > 0) - (rollout.advantage < 0)
        cell = cells.setdefault((rollout.regime, sign), [])
        # a file may hold millions of long completions: keep what can be chosen, and the detailed ones in front
        if rollout.entropies_nats is not None:
            cell.insert(0, rollout)
            del cell[count:]
        elif len(cell) < count and (rollout.regime, sign, rollout.prompt_id) not in prompts:
            cell.append(rollout)
        prompts.add((rollout.regime, sign, rollout.prompt_id))
    chosen: list[Rollout] = []
    while len(chosen) < count and any(cells.values()):
        for cell in cells.values():
            if cell and len(chosen) < count:
                chosen.append(cell.pop(0))
    return sorted(chosen, key=lambda r: (r.group, -r.advantage))


def _shown(rollout: Rollout, characters: int, tokens: int) -> dict[str, Any]:
    text, tail, cut = rollout.completion, "", 0
    if len(text) > characters:
        cut = len(text) - characters
        text, tail = text[: characters * 4 // 5], text[-(characters // 5) :]
    record: dict[str, Any] = {
        "step": rollout.step,
        "id": rollout.prompt_id[:200],
        "prompt": rollout.prompt[:characters],
        "text": text,
        "tail": tail,
        "cut": cut,
        "tokens": rollout.tokens,
        "reward": rollout.reward,
        "outcome": rollout.outcome,
        "advantage": rounded(rollout.advantage),
        "regime": rollout.regime,
        "truncated": rollout.truncated,
        "entropy": None if rollout.entropy_mean_nats is None else rounded(rollout.entropy_mean_nats),
        "level": rollout.level,
    }
    entropies, pieces, logprobs = rollout.entropies_nats, rollout.token_texts, rollout.logprobs
    if entropies and tokens:
        record["entropies"] = [round(x, 3) for x in entropies[:tokens]]
        if pieces and len(pieces) == len(entropies):
            record["pieces"] = [piece[:200] for piece in pieces[:tokens]]
        if logprobs and len(logprobs) == len(entropies):
            record["logprobs"] = [round(x, 3) for x in logprobs[:tokens]]
    return record
