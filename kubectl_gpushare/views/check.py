"""`check`: what was found, the worst first, each with why it matters and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpushare.preflight.finding import Finding, Severity, listed
from kubectl_gpushare.output import documents
from kubectl_gpushare.output.page import Commands, Page, Section

_STYLES = {Severity.BLOCKING: "bad", Severity.WARNING: "warn", Severity.UNKNOWN: "warn", Severity.INFO: "bold"}
_WORDS = (
    (Severity.BLOCKING, "blocks", "block"),
    (Severity.WARNING, "is a warning", "are warnings"),
    (Severity.UNKNOWN, "could not be told", "could not be told"),
    (Severity.INFO, "is worth knowing", "are worth knowing"),
    (Severity.OK, "is as it should be", "are as they should be"),
)


def page(findings: Sequence[Finding], *, all_of_them: bool) -> Page:
    """A section a finding, the worst first; what is as it should be only if all is asked for."""
    worst_first = sorted(findings, key=lambda one: -one.severity)
    sections = [_section(one) for one in worst_first if one.severity is not Severity.OK]
    fine = tuple(f"{one.rule}: {one.found}" for one in findings if one.severity is Severity.OK)
    return (*sections, *((Section("As it should be", fine, "good"),) if all_of_them and fine else ()))


def sentence(findings: Sequence[Finding]) -> str:
    """As `1 blocks; 2 are warnings; 20 are as they should be`."""
    parts = []
    for severity, singular, plural in _WORDS:
        number = sum(one.severity is severity for one in findings)
        if number:
            parts.append(f"{number} {singular if number == 1 else plural}")
    return "; ".join(parts)


def document(findings: Sequence[Finding]) -> documents.Document:
    """All of it as a `CheckList`, with what is as it should be."""
    return documents.listing("CheckList", (_item(one) for one in findings), summary=sentence(findings))


def names(findings: Sequence[Finding]) -> Iterator[str]:
    """Whom warnings and what blocks concern, each once; of what concerns the whole cluster, the rule."""
    bad = [one for one in findings if one.severity >= Severity.WARNING]
    return iter(dict.fromkeys(name for one in bad for name in one.subjects or (f"precondition/{one.rule}",)))


def _section(one: Finding) -> Section:
    concerned = f" ({listed(one.subjects, 4)})" if one.subjects else ""
    blocks: list[str | Commands] = [f"Found: {one.found}", f"Why: {one.why}"]
    if one.remedy:
        blocks.append(f"Remedy: {one.remedy}")
    if one.commands:
        blocks.append(Commands(tuple(line for command in one.commands for line in command.splitlines())))
    return Section(f"{one.severity.word}: {one.rule}{concerned}", tuple(blocks), _STYLES[one.severity])


def _item(one: Finding) -> dict[str, Any]:
    return {
        "rule": one.rule,
        "severity": one.severity.word,
        "subjects": list(one.subjects),
        "found": one.found,
        "why": one.why,
        "remedy": one.remedy,
        "commands": list(one.commands),
    }
