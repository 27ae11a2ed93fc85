"""`audit`: shows whether the limits of every container are in force, and which other processes use the GPUs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.planning.auditing import ReportedAudit, parse_audit
from kubectl_gpushare.source import agents, chosen_source, live_cluster

if TYPE_CHECKING:
    from gpushare.gpunode import GpuNode
    from kubectl_gpushare.planning.auditing import AuditVerdict

# Exit codes. 1 is any error, as for every verb, and here also a node whose limits could not be checked.
IN_FORCE, NOT_CERTAIN, NOT_IN_FORCE = 0, 1, 2


@click.command(short_help="Prove that limits are in force, and name processes without one")
@click.argument("names", nargs=-1, metavar="[NODE...]", shell_complete=candidates.nodes)
@click.option("--no-headers", is_flag=True, help="Print rows only: no headers, no summary")
@options.printed(options.LISTS)
@options.selector
@click.option(
    "-A",
    "--all-namespaces",
    is_flag=True,
    expose_value=False,
    help="Accepted for symmetry: pods of all namespaces are always audited",
)
@options.connection(candidates.contexts)
def command(names: tuple[str, ...], **params: Any) -> int:
    """Prove that limits are in force, and name processes without one.

    Asks the agent of each node. The agent compares the ledger with the limits in force, checks that processes have the
    library mapped, and asks the driver for other processes on the GPUs.

    The table shows problems. -o wide also shows every share: LEDGER and ENFORCED are request..limit+memory. MEMORY BY
    is what refuses memory beyond the limit: driver (in every process), library (where it is loaded) or none. -o name
    prints pods with a limit that is not in force, and GPUs with processes that belong to no pod.

    If a running agent cannot be asked, the condition LimitsInForce of its GPUNode counts. The last report of a stopped
    agent is shown, but proves nothing. The exit code is 0 if all limits are in force, 2 if one is not, and 1 for any
    error, or if some node is unknown.

    \b
    Examples:
      # Problems on all nodes
      kubectl gpushare audit
    \b
      # Every container of a node
      kubectl gpushare audit gpu-1 -o wide
    \b
      # The nodes with one model, as JSON
      kubectl gpushare audit -l nvidia.com/gpu.product=NVIDIA-A100-SXM4-80GB -o json
    """
    from gpushare.gpunode import Mode
    from kubectl_gpushare.planning import auditing

    chosen = options.collect(params)
    origin = chosen_source.from_options(chosen)
    known = origin.gpu_nodes(label_selector=chosen.selector)
    missing = [name for name in names if name not in {node.name for node in known}]
    if missing:
        raise plugin_errors.KubectlNotFound("; ".join(f'no GPUNode "{name}"' for name in missing))
    nodes = [
        node
        for node in known
        if (not names or node.name in names)
        # It has, or may get, shares with limits.
        and (node.allocations or any(gpu.mode is Mode.FRACTIONAL for gpu in node.gpus))
    ]
    answers, ready, notes = _ask(origin, [node.name for node in nodes])
    verdict = auditing.check(nodes, answers, ready=ready)
    print_verdict(verdict, nodes, notes, chosen)
    return NOT_IN_FORCE if verdict.broken else NOT_CERTAIN if verdict.uncertain else IN_FORCE


def print_verdict(
    verdict: AuditVerdict, nodes: Sequence[GpuNode], notes: Sequence[str], chosen: options.Options
) -> None:
    from kubectl_gpushare.output import printing, terminal
    from kubectl_gpushare.views import audit, gpu_summary

    place = terminal.detect(sys.stdout, color=chosen.color)
    names = gpu_summary.names(nodes)
    said = (*notes, *audit.notes(verdict))
    listing = audit.listing(verdict, names, said)
    if chosen.output in printing.WRITERS:
        printing.show(listing, chosen)
        if chosen.output not in printing.DOCUMENTS:  # a document has the notes in it
            printing.warn(said)
        return
    tables = [listing.table(), *([audit.shares_table(verdict, names)] if chosen.wide else [])]
    lines = [[*printing.lines(table, place, chosen), ""] for table in tables if table.rows]
    end = [] if chosen.no_headers else terminal.wrapped(audit.summary(verdict), place)
    printing.write_lines([line for block in lines for line in block] + end, sys.stdout)
    printing.warn(said)


def _ask(
    origin: chosen_source.Source, names: Sequence[str]
) -> tuple[Mapping[str, ReportedAudit], frozenset[str], tuple[str, ...]]:
    if not isinstance(origin, live_cluster.LiveCluster):
        return {}, frozenset(), ("audits: files of --from have none",) if names else ()
    answers = agents.fetch(origin.kubectl, names, agents.AUDIT)
    read: dict[str, ReportedAudit] = {}
    senseless = []
    for name, text in answers.texts.items():
        try:
            read[name] = parse_audit(text)
        except ValueError as error:
            senseless.append(f"audit of {name}: its agent's answer is invalid to this plugin: {error}")
    return read, answers.ready, (*answers.notes("audits"), *senseless)
