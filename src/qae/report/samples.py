"""Which completions the report shows: few enough to send by mail, spread over steps, regimes and signs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qae.records import ReadTally, Rollout, read_rollouts, rollout_files
from qae.report.runs import rounded

CHARACTERS_SHOWN = 4000
TAIL_SHOWN = 1000
TOKENS_SHOWN = 1200


def pick_samples(run_dir: Path, *, steps: int, per_step: int, tally: ReadTally) -> list[dict[str, Any]]:
    """Completions to show, as plain dicts for the page.

    From each of a few steps (first and last among them), one by one from the cells of regime x sign of the
    advantage, of different prompts where there are, those with per-token entropies first.

    Args:
        run_dir: the run directory.
        steps: steps to take from.
        per_step: completions from each.
        tally: counts broken lines.

    Returns:
        Dicts with step, prompt, text, what was cut, and where logged the tokens with their entropies.
    """
    files = rollout_files(run_dir)
    if not files:
        return []
    wanted = sorted({round(i * (len(files) - 1) / max(1, steps - 1)) for i in range(steps)})
    found: list[dict[str, Any]] = []
    for index in wanted:
        found += [_shown(r) for r in _spread(read_rollouts(files[index][1], tally=tally), per_step)]
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


def _shown(rollout: Rollout) -> dict[str, Any]:
    text, cut = rollout.completion, 0
    if len(text) > CHARACTERS_SHOWN + TAIL_SHOWN:
        cut = len(text) - CHARACTERS_SHOWN - TAIL_SHOWN
    record: dict[str, Any] = {
        "step": rollout.step,
        "id": rollout.prompt_id[:200],
        "prompt": rollout.prompt[:CHARACTERS_SHOWN],
        "text": text[:CHARACTERS_SHOWN] if cut else text,
        "tail": text[-TAIL_SHOWN:] if cut else "",
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
    entropies = rollout.entropies_nats
    if entropies:
        pieces = rollout.token_texts
        record["entropies"] = [round(x, 3) for x in entropies[:TOKENS_SHOWN]]
        if pieces and len(pieces) == len(entropies):
            record["pieces"] = [piece[:200] for piece in pieces[:TOKENS_SHOWN]]
        if rollout.logprobs and len(rollout.logprobs) == len(entropies):
            record["logprobs"] = [round(x, 3) for x in rollout.logprobs[:TOKENS_SHOWN]]
    return record
