"""From paths to one record: what was logged, what each baseline would have done, what looks wrong, which K."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from qae.audit.rows import read_completion_tables, read_jsonl
from qae.audit.scalars import read_scalars
from qae.audit.sources import find_sources
from qae.audit.store import UNKNOWN, GroupStore
from qae.audit.tokens import WORDS, TokenStore
from qae.audit.whatif import DEFAULT_KS, Composition, compare_baselines, compare_regimes, name_logged_baseline
from qae.detect import Verdict, detect_from_metrics
from qae.groups import fraction_meant
from qae.records import SCHEMA, ReadTally, Record, atomic_write, to_json

COMPOSITIONS = 20_000
MANY_GROUPS = 100


def audit_paths(
    paths: list[Path],
    *,
    ks: Sequence[float] = DEFAULT_KS,
    right_above: float | None = None,
    words: Sequence[str] = WORDS,
) -> Record:
    """Audit rollout dumps and scalar logs.

    Args:
        paths: files and directories of qae, verl, TRL or plain JSONL, in any mix.
        ks: levels of the quantile to compare.
        right_above: a completion without a logged outcome is right if its reward is above this. Without it,
            rewards that take two values only are read as wrong and right, and others leave the outcome unknown.
        words: words of doubt, to be counted over time.

    Returns:
        A record of plain numbers and texts (`qae.audit.audit_text` prints it): counts, sizes, pass_rates, regimes,
        baselines, hints, tokens, entropy, k, warnings.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: nothing under the paths could be read, or a level is not strictly between 0 and 1.

    Example:
        >>> import tempfile
        >>> dump = Path(tempfile.mkdtemp()) / "dump.jsonl"
        >>> _ = dump.write_text('{"prompt_id": 1, "rewards": [1, 0, 0, 0]}')
        >>> found = audit_paths([dump], ks=[0.4])
        >>> found["groups"], found["regimes"][0]["hard_frac"]
        (1, 1.0)
    """
    sources = find_sources([Path(path) for path in paths])
    if not (sources.rollouts or sources.tables or sources.scalars):
        looked = ", ".join(str(path) for path in paths)
        raise ValueError(f"found neither rollouts nor scalars in {looked}; expected JSONL with a prompt and a reward")
    for k in ks:
        fraction_meant(k)
    store, tokens, tally = GroupStore(), TokenStore(words), ReadTally()
    notes = [f"{path} was not understood" for path in sources.unknown]
    for path in sources.rollouts:
        store.source = str(path.parent)
        read_jsonl(path, store, tally, tokens)
    if sources.tables:
        notes += read_completion_tables(sources.tables, store, tally)
    verdicts: dict[str, Verdict] = {}
    for path in sources.scalars:
        try:
            verdicts[str(path)] = detect_from_metrics(read_scalars(path, tally))
        except (ValueError, OSError) as error:
            notes.append(f"{path} could not be read: {error}")
    verdicts = {name: verdict for name, verdict in verdicts.items() if verdict.kind != "unknown"} or verdicts
    record: Record = {"schema": SCHEMA, "paths": [str(path) for path in paths]}
    record |= {"lines": tally.lines, "broken": tally.broken, "broken_where": tally.where}
    record |= {"entropy": {name: asdict(verdict) for name, verdict in verdicts.items()}}
    if store.rows:
        record |= _groups(store, ks, right_above, notes) | {"tokens": tokens.record()}
    record["k"] = _recommended(record, list(verdicts.values()))
    record |= {"notes": notes, "warnings": _warnings(record)}
    return record


def save_audit(record: Record, run_dir: Path) -> Path:
    """Leave an audit in a run directory, where the report of the run finds it.

    Args:
        record: of `audit_paths`.
        run_dir: the run directory.

    Returns:
        The file written, run_dir/audit.json.
    """
    path = run_dir / "audit.json"
    atomic_write(path, to_json(record) + "\n")
    return path


def _groups(store: GroupStore, ks: Sequence[float], right_above: float | None, notes: list[str]) -> Record:
    compositions, outcomes = _with_outcomes(store.compositions(), right_above)
    sizes: Counter[int] = Counter()
    for composition, count in compositions.items():
        sizes[len(composition)] += count
    sample = compositions
    if len(compositions) > COMPOSITIONS:
        chosen = random.Random(0).sample(sorted(compositions), COMPOSITIONS)
        sample = Counter({composition: compositions[composition] for composition in chosen})
        notes.append(f"baselines are compared on {COMPOSITIONS} of {len(compositions)} different groups")
    logged = name_logged_baseline(_whole_groups(store), ks=ks)
    flat = _flat(compositions)
    if len(store) >= MANY_GROUPS and outcomes[:7] != "unknown" and not flat["all_wrong"] + flat["all_right"]:
        notes.append(
            "no group is all wrong or all right: dynamic sampling replaced such groups before they were written, so "
            "pass rates are those of the groups that were kept"
        )
    return {
        "rows": store.rows,
        "unscored": store.unscored,
        "groups": len(store),
        "steps": len(store.steps),
        "sizes": {str(size): count for size, count in sorted(sizes.items(), reverse=True)},
        "outcomes": outcomes,
        "pass_rates": _pass_rates(compositions),
        "flat": flat,
        "regimes": [asdict(line) for line in compare_regimes(compositions, ks=ks)],
        "baselines": [asdict(line) for line in compare_baselines(sample, ks=ks)],
        "logged_baseline": None if logged is None else {"name": logged[0], "largest_difference": logged[1]},
        "hints": {
            "length_unit": store.length_unit,
            **{f"length_{kind}": sums.mean for kind, sums in store.length.items() if sums.count},
            "truncated_frac": store.truncated.mean,
            "duplicate_frac": store.duplicates / store.texts if store.texts else None,
        },
    }


def _with_outcomes(compositions: Counter[Composition], right_above: float | None) -> tuple[Counter[Composition], str]:
    """Fill in unknown outcomes from the rewards where that is safe, and say how."""
    values: set[float] = set()
    unknown = False
    for composition in compositions:
        values.update(reward for reward, _ in composition)
        unknown = unknown or any(outcome == UNKNOWN for _, outcome in composition)
    if not unknown:
        return compositions, "logged"
    if right_above is None:
        if len(values) > 2:
            return compositions, "unknown: rewards take more than two values; say which are right with right_above"
        right_above = min(values) if len(values) == 2 else 0.0
    found: Counter[Composition] = Counter()
    for composition, count in compositions.items():
        filled = tuple((r, int(r > right_above) if o == UNKNOWN else o) for r, o in composition)
        found[filled] += count
    return found, f"rewards above {right_above:g} are right"


def _pass_rates(compositions: Counter[Composition]) -> dict[str, int]:
    """Groups by pass rate: all wrong, nine tenths between, all right."""
    names = ["0", *(f"{i / 10:g}-{(i + 1) / 10:g}" for i in range(10)), "1"]
    counts = dict.fromkeys(names, 0)
    for composition, count in compositions.items():
        outcomes = [outcome for _, outcome in composition]
        if not outcomes or UNKNOWN in outcomes:
            continue
        rate = sum(outcomes) / len(outcomes)
        name = names[0] if rate == 0 else names[-1] if rate == 1 else names[1 + min(9, int(rate * 10))]
        counts[name] += count
    return counts


def _flat(compositions: Counter[Composition]) -> dict[str, int]:
    """Groups in which outcomes are all equal, and those of them whose rewards differ all the same."""
    names = ("all_wrong", "all_right", "all_wrong_rewards_differ", "all_right_rewards_differ")
    found: dict[str, int] = dict.fromkeys(names, 0)
    for composition, count in compositions.items():
        outcomes = {outcome for _, outcome in composition}
        if len(composition) < 2 or len(outcomes) != 1 or UNKNOWN in outcomes:
            continue
        name = "all_right" if 1 in outcomes else "all_wrong"
        found[name] += count
        if composition[0][0] != composition[-1][0]:
            found[f"{name}_rewards_differ"] += count
    return found


def _whole_groups(store: GroupStore) -> list[tuple[int, float, float]]:
    """Logged advantages, without the last group if the store stopped in its middle."""
    if len(store.logged) < store.kept_advantages:
        return store.logged
    last = store.logged[-1][0]
    return [row for row in store.logged if row[0] != last]


def _recommended(record: Record, verdicts: list[Verdict]) -> Record:
    """An interval of K by the paper's rule, which looks at the entropy curve."""
    kinds = {verdict.kind for verdict in verdicts}
    k, confidence = 0.4, "low"
    if "explosion" in kinds and "collapse" in kinds:
        reason = "one log explodes and another collapses: look at each run by itself"
    elif "explosion" in kinds:
        confidence, reason = (
            "medium",
            "entropy explodes: the paper lowers K to 0.4, so that fewer prompts count as easy",
        )
    elif "collapse" in kinds:
        k, confidence = 0.6, "medium"
        reason = "entropy collapses: the paper raises K to 0.6, so that more prompts count as easy"
    elif "healthy" in kinds:
        reason = "entropy is healthy: there is no reason to change; 0.4 is the paper's default with Clip-Higher"
    else:
        reason = (
            "no entropy curve long enough was found, which the paper's rule needs: 0.4 is its default with Clip-Higher"
        )
    sizes = {int(size): count for size, count in record.get("sizes", {}).items() if int(size) > 1}
    size = max(sizes, key=lambda s: (sizes[s], s)) if sizes else None
    found: Record = {"k": k, "confidence": confidence, "reason": reason, "group_size": size}
    if size:
        rank = math.ceil(round(k * size, 9))
        found["interval"] = [(rank - 1) / size, rank / size]
        fragile = [line["fragile_frac"] for line in record.get("regimes", []) if line["k"] == k]
        if fragile and fragile[0] > 0.4:
            found["confidence"] = "low"
            found["reason"] += f"; {fragile[0]:.0%} of the mixed groups change sides if one completion flips"
    return found


def _warnings(record: Record) -> list[str]:
    found: list[str] = []
    if record["broken"]:
        found.append(f"{record['broken']} broken lines were skipped ({', '.join(record['broken_where'])})")
    if not record.get("rows"):
        return found
    sizes = {int(size): count for size, count in record["sizes"].items()}
    groups, single, empty = record["groups"], sizes.get(1, 0), sizes.get(0, 0)
    if single == groups:
        found.append(
            f"{groups} groups for {record['rows']} completions: every group has one member, so there is no baseline "
            "to compare with. Is the group id made for each completion instead of each prompt?"
        )
    elif single > groups / 2:
        found.append(f"{single} of {groups} groups have one member: they have no baseline and get advantage 0")
    elif single:
        found.append(f"{single} groups have one member and get advantage 0")
    if empty:
        found.append(f"{empty} groups have no scored completion")
    if record["unscored"]:
        found.append(f"{record['unscored']} completions have no reward: left out of their groups")
    if len([size for size in sizes if size > 1]) > 1:
        told = ", ".join(f"{count} of size {size}" for size, count in sizes.items())
        found.append(f"group sizes differ: {told}")
    hidden = record["flat"]["all_wrong_rewards_differ"]
    if hidden:
        found.append(
            f"{hidden} groups are all wrong, but their shaped rewards differ: a filter or a baseline on the reward "
            "takes them for mixed and reinforces wrong completions"
        )
    return found + _hint_warnings(record["hints"])


def _hint_warnings(hints: Record) -> list[str]:
    found: list[str] = []
    right, wrong = hints.get("length_right"), hints.get("length_wrong")
    if right and wrong and max(right, wrong) > 1.5 * min(right, wrong):
        longer = "right" if right > wrong else "wrong"
        found.append(
            f"{longer} completions are much longer (right {right:.0f}, wrong {wrong:.0f} {hints['length_unit']}): "
            "check that length is not what is rewarded"
        )
    if (hints.get("truncated_frac") or 0) > 0.1:
        found.append(f"{hints['truncated_frac']:.0%} of the completions are truncated")
    if (hints.get("duplicate_frac") or 0) > 0.2:
        found.append(f"{hints['duplicate_frac']:.0%} of the completions repeat another of their group word for word")
    return found
