"""`check`: the preconditions of gpushare, before it is installed and at any time after that."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from gpushare.preflight.finding import Finding, Severity, listed
from kubectl_gpushare import candidates, options
from kubectl_gpushare.output.values import Commands, Document, Page, Section, list_document

# Exit codes, as those of `audit`.
FINE, NOT_TOLD, NOT_FINE = 0, 1, 2
_FORMATS = ("wide", "json", "yaml", "name")


@click.command(short_help="Check whether a cluster meets the requirements of gpushare, with reasons and remedies")
@click.option(
    "--before-install",
    is_flag=True,
    help="Check what an installation needs: your permissions, GPUs in use, the network to the webhook",
)
@options.file(
    "manifests",
    "-f",
    "--filename",
    multiple=True,
    help="Manifests to check, instead of the installed or the default ones; - is standard input; may be repeated",
)
@click.option(
    "--fail-on",
    type=click.Choice(("warning", "blocking")),
    default="warning",
    help="The least severity for exit code 2 (default: warning)",
)
@options.namespaced(candidates.namespaces, all_namespaces=False)
@options.printed(_FORMATS)
@options.connection(candidates.contexts)
def command(before_install: bool, manifests: tuple[str, ...], fail_on: str, **params: Any) -> int:
    """Check whether a cluster meets the requirements of gpushare, with reasons and remedies.

    Checks each precondition (docs/preconditions.md) against the objects of the cluster. On nodes with an agent, the
    agent's report of its node counts. Objects that you may not read are reported as unknown. If gpushare is installed,
    the API server gets a dry run of a pod with a share, in the namespace of -n or in default: it creates nothing, and
    shows whether the API server reaches the webhook. -o wide also lists the preconditions that are met; -o name prints
    the objects with warnings and blocking problems.

    The exit code is 0 without warnings and blocking problems, 2 if there are any, and 1 for any error, or if something
    is unknown. With --fail-on blocking it is 2 if something blocks, and otherwise 0.

    \b
    Examples:
      # What is wrong with this installation
      kubectl gpushare check
    \b
      # What to fix before an installation
      kubectl gpushare check --before-install
    \b
      # The same for your own manifests
      kubectl kustomize config/default | kubectl gpushare check --before-install -f -
    \b
      # A saved cluster
      kubectl get nodes,namespaces,daemonsets,deployments,runtimeclasses -A -o yaml > cluster.yaml
      kubectl gpushare check --before-install --from cluster.yaml
    """
    from gpushare import preflight
    from kubectl_gpushare.source import inputs, preconditions

    chosen = options.collect(params)
    to_install = inputs.objects(manifests)
    if chosen.files:
        facts = preconditions.of_objects(inputs.objects(chosen.files), to_install, installing=before_install)
    else:
        where = chosen.namespace or "default"  # every cluster has this namespace
        facts = preconditions.of_cluster(
            chosen.kubectl(), to_install, installing=before_install, namespace_of_trial=where
        )
    findings = preflight.check(facts)
    _print(findings, chosen)
    least = Severity[fail_on.upper()]
    if any(finding.severity >= least for finding in findings):
        return NOT_FINE
    unknown = least is Severity.WARNING and any(finding.severity is Severity.UNKNOWN for finding in findings)
    return NOT_TOLD if unknown else FINE


def _print(findings: Sequence[Finding], chosen: options.Options) -> None:
    from kubectl_gpushare.output import layout, printing, terminal

    if chosen.output in printing.DOCUMENTS:
        printing.write_document(document(findings), chosen)
        return
    if chosen.output == "name":
        printing.write_words(names(findings), sys.stdout)
        return
    place = terminal.detect(sys.stdout, color=chosen.color)
    blocks = [layout.page_lines((section,), place) for section in page(findings, all_of_them=chosen.wide)]
    end = terminal.wrapped(sentence(findings), place)
    printing.write_lines([line for block in blocks for line in (*block, "")] + end, sys.stdout)


_STYLES = {Severity.BLOCKING: "bad", Severity.WARNING: "warn", Severity.UNKNOWN: "warn", Severity.INFO: "bold"}
_WORDS = (
    (Severity.BLOCKING, "blocking", "blocking"),
    (Severity.WARNING, "warning", "warnings"),
    (Severity.UNKNOWN, "unknown", "unknown"),
    (Severity.INFO, "info", "info"),
    (Severity.OK, "passed", "passed"),
)


def page(findings: Sequence[Finding], *, all_of_them: bool) -> Page:
    worst_first = sorted(findings, key=lambda finding: -finding.severity)
    sections = [_section(finding) for finding in worst_first if finding.severity is not Severity.OK]
    fine = tuple(f"{finding.rule}: {finding.found}" for finding in findings if finding.severity is Severity.OK)
    return (*sections, *((Section("As it should be", fine, "good"),) if all_of_them and fine else ()))


def sentence(findings: Sequence[Finding]) -> str:
    parts = []
    for severity, singular, plural in _WORDS:
        number = sum(finding.severity is severity for finding in findings)
        if number:
            parts.append(f"{number} {singular if number == 1 else plural}")
    return ", ".join(parts)


def document(findings: Sequence[Finding]) -> Document:
    items = (
        {
            "rule": finding.rule,
            "severity": finding.severity.word,
            "subjects": list(finding.subjects),
            "found": finding.found,
            "why": finding.why,
            "remedy": finding.remedy,
            "commands": list(finding.commands),
        }
        for finding in findings
    )
    return list_document("CheckList", items, summary=sentence(findings))


def names(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the subjects of warnings and blocking findings, each once; the rule, if it is about the whole cluster."""
    bad = [finding for finding in findings if finding.severity >= Severity.WARNING]
    return iter(dict.fromkeys(name for each in bad for name in each.subjects or (f"precondition/{each.rule}",)))


def _section(finding: Finding) -> Section:
    concerned = f" ({listed(finding.subjects, 4)})" if finding.subjects else ""
    blocks: list[str | Commands] = [f"Found: {finding.found}", f"Why: {finding.why}"]
    if finding.remedy:
        blocks.append(f"Remedy: {finding.remedy}")
    if finding.commands:
        blocks.append(Commands(tuple(line for command in finding.commands for line in command.splitlines())))
    return Section(f"{finding.severity.word}: {finding.rule}{concerned}", tuple(blocks), _STYLES[finding.severity])
