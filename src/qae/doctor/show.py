"""Findings and verdicts as text."""

from collections.abc import Sequence

from qae.doctor.run import Verdict
from qae.integrations.finding import Finding


def findings_text(findings: Sequence[Finding]) -> str:
    """One line a finding; a fault is followed by its remedy.

    Args:
        findings: of one check.

    Example:
        >>> print(findings_text([Finding("ok", "trl", "1.16.0"), Finding("fault", "K", "is 0.4, not 0.2", "pass it")]))
        ok     trl  1.16.0
        FAULT  K    is 0.4, not 0.2
                    -> pass it
    """
    width = max((len(finding.what) for finding in findings), default=0)
    lines: list[str] = []
    for finding in findings:
        status = "FAULT" if finding.status == "fault" else finding.status
        lines.append(f"{status:<5}  {finding.what:<{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"{'':<7}{'':<{width}}  -> {finding.remedy}")
    return "\n".join(lines)


def verdict_text(verdict: Verdict) -> str:
    """The verdict on a run, in two lines.

    Args:
        verdict: of `check_run`.
    """
    active = {"quantile": "QAE is active", "mean": "QAE is NOT active", "other": "not QAE", "unknown": "cannot tell"}
    scale = f"\n  advantages are {verdict.scale}" if verdict.scale else ""
    return f"{active[verdict.kind]}: {verdict.found}{scale}"
