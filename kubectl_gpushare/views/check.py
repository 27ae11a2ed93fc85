"""`check`: the findings, the worst first, each with why it matters and its remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpushare.preflight.finding import Finding, Severity, listed
from kubectl_gpushare.output import documents
from kubectl_gpushare.output.page import Commands, Page, Section

_STYLES = {Severity.BLOCKING: "bad", Severity.WARNING: "warn", Severity.UNKNOWN: "warn", Severity.INFO: "bold"}
_WORDS = (
    (Severity.BLOCKING, "blocking", "blocking"),
    (Severity.WARNING, "warning", "warnings"),
    (Severity.UNKNOWN, "unknown", "unknown"),
    (Severity.INFO, "info", "info"),
    (Severity.OK, "passed", "passed"),
)


def page(findings: Sequence[Finding], *, all_of_them: bool) -> Page:
    """Return A section per finding, the worst first; those that are fine only with `all_of_them`."""
    worst_first = sorted(findings, key=lambda finding: -finding.severity)
    sections = [_section(finding) for finding in worst_first if finding.severity is not Severity.OK]
    fine = tuple(f"{finding.rule}: {finding.found}" for finding in findings if finding.severity is Severity.OK)
    return (*sections, *((Section("As it should be", fine, "good"),) if all_of_them and fine else ()))


def sentence(findings: Sequence[Finding]) -> str:
    """Return a sentence such as `1 blocking, 2 warnings, 20 passed`."""
    parts = []
    for severity, singular, plural in _WORDS:
        number = sum(finding.severity is severity for finding in findings)
        if number:
            parts.append(f"{number} {singular if number == 1 else plural}")
    return ", ".join(parts)


def document(findings: Sequence[Finding]) -> documents.Document:
    """Return all findings as a `CheckList`."""
    return documents.listing("CheckList", (_item(finding) for finding in findings), summary=sentence(findings))


def names(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the subjects of warnings and blocking findings, each once; the rule, if it is about the whole cluster."""
    bad = [finding for finding in findings if finding.severity >= Severity.WARNING]
    return iter(
        dict.fromkeys(name for finding in bad for name in finding.subjects or (f"precondition/{finding.rule}",))
    )


def _section(finding: Finding) -> Section:
    concerned = f" ({listed(finding.subjects, 4)})" if finding.subjects else ""
    blocks: list[str | Commands] = [f"Found: {finding.found}", f"Why: {finding.why}"]
    if finding.remedy:
        blocks.append(f"Remedy: {finding.remedy}")
    if finding.commands:
        blocks.append(Commands(tuple(line for command in finding.commands for line in command.splitlines())))
    return Section(f"{finding.severity.word}: {finding.rule}{concerned}", tuple(blocks), _STYLES[finding.severity])


def _item(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity.word,
        "subjects": list(finding.subjects),
        "found": finding.found,
        "why": finding.why,
        "remedy": finding.remedy,
        "commands": list(finding.commands),
    }
