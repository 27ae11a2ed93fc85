"""`rightsize`: finds shares that are larger than their pods' use, or too small for it."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpushare import errors, pod, printable
from gpushare.config import value_parsers
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing, terminal
from kubectl_gpushare.output.values import Listing
from kubectl_gpushare.planning import rightsizing
from kubectl_gpushare.source import agents, chosen_source, inputs, live_cluster

if TYPE_CHECKING:
    from kubectl_gpushare.source.snapshot import Snapshot
    from kubectl_gpushare.views import rightsize

_MARGIN = re.compile(r"(\d{1,4}(?:\.\d{1,4})?)(%?)")


@click.command(short_help="Compare the requests of shares with their peak usage, and suggest sizes")
@click.argument("names", nargs=-1, metavar="[POD...]", shell_complete=candidates.pods)
@click.option("--margin", default="20%", metavar="PART", help="Margin above the peak (default: 20%)")
@click.option(
    "--min-observed",
    default="30m",
    metavar="TIME",
    help="Skip shares that were observed for less, such as 2h (default: 30m)",
)
@options.file(
    "--metrics", multiple=True, help="Read the peaks from saved metrics of agents or Prometheus; may be repeated"
)
@click.option("--no-headers", is_flag=True, help="Print rows only: no headers, no totals")
@options.printed((*options.LISTS, "commands"))
@options.selector
@options.namespaced(candidates.namespaces)
@options.connection(candidates.contexts)
def command(names: tuple[str, ...], margin: str, min_observed: str, metrics: tuple[str, ...], **params: Any) -> None:
    """Compare the requests of shares with their peak usage, and suggest sizes.

    Uses the peaks that the agents have measured since the share's first process started: the maximum memory, and the
    highest 10-second mean of compute. A suggestion is the peak plus a margin, rounded up to 0.05, and to 256Mi or, from
    4Gi on, 1Gi. Memory may grow. A request never grows, because compute above it came from idle time.

    Changes nothing. It prints the commands that would resize the shares; -o commands prints only these, and -o name the
    pods that could have another size. To make a size permanent, put it into the pod template; -o yaml has the
    annotations.

    \b
    Examples:
      # The pods of the namespace
      kubectl gpushare rightsize
    \b
      # All pods that were observed for a day, with a margin of half the peak
      kubectl gpushare rightsize -A --min-observed 24h --margin 50%
    \b
      # Only the commands that resize them
      kubectl gpushare rightsize -A -o commands
    \b
      # From saved objects and metrics
      kubectl get gpunodes,pods -A -o yaml > cluster.yaml
      kubectl gpushare rightsize -A --from cluster.yaml --metrics metrics.txt
    """
    from kubectl_gpushare.planning import rightsizing
    from kubectl_gpushare.views import gpu_summary, rightsize

    rules = rightsizing.Rules(_part(margin), _seconds(min_observed))
    if any("/" in name for name in names):
        raise click.UsageError("a pod's name has no slash: write `rightsize POD -n NAMESPACE`")
    chosen = options.collect(params)
    origin = chosen_source.from_options(chosen)
    if not chosen.all_namespaces and not chosen.namespace:
        chosen = dataclasses.replace(chosen, namespace=origin.default_namespace)
    snapshot = chosen_source.with_pods(
        origin, origin.gpu_nodes(), namespace=chosen.namespace, label_selector=chosen.selector
    )
    manifests = {pod.namespaced_name(manifest): manifest for manifest in snapshot.pods or ()}
    concerned = [
        (node, entry.pod)
        for node in snapshot.nodes
        for entry in node.allocations
        if (not names or entry.pod.name in names)
        and (not chosen.namespace or entry.pod.namespace == chosen.namespace)
        and (not chosen.selector or (entry.pod.namespace, entry.pod.name) in manifests)
    ]
    known, notes = _peaks(origin, metrics, sorted({node.name for node, _ in concerned}))
    shown = {(ref.namespace, ref.name) for _, ref in concerned}
    suggestions = [
        suggestion
        for suggestion in rightsizing.suggest(snapshot.nodes, known, rules)
        if (suggestion.namespace, suggestion.pod) in shown
    ]
    suggestions.sort(key=lambda each: (gpu_summary.natural(each.namespace), gpu_summary.natural(each.pod)))
    listing = rightsize.RightsizeListing(
        suggestions, gpu_summary.names(snapshot.nodes), manifests, namespaces=not chosen.namespace
    )
    _print(listing, snapshot, rules.min_observed_seconds, chosen)
    printing.warn([*snapshot.notes, *notes])
    missing = [name for name in names if name not in {suggestion.pod for suggestion in suggestions}]
    if missing:
        raise plugin_errors.KubectlNotFound("; ".join(f'no pod that holds a share "{name}"' for name in missing))


def _print(
    listing: rightsize.RightsizeListing, snapshot: Snapshot, min_observed_seconds: float, chosen: options.Options
) -> None:
    if chosen.output == "commands":
        commands = [*listing.commands()]
        printing.write_words(commands, sys.stdout)
        if not commands:
            printing.write_words(listing.summary(min_observed_seconds), sys.stderr)
        return
    printing.show(Listing(listing.table, listing.document, listing.names), chosen)
    if not listing.suggestions or chosen.no_headers or chosen.output in printing.WRITERS:
        return
    place = terminal.detect(sys.stdout, color=chosen.color)
    freed = listing.freed(snapshot.nodes)
    parts = (
        [line for text in listing.summary(min_observed_seconds) for line in terminal.wrapped(text, place)],
        printing.lines(freed, place, chosen) if freed.rows else [],
        list(map(printable.replaced, listing.commands())),
    )
    printing.write_lines([line for part in parts if part for line in ("", *part)], sys.stdout)


def _peaks(
    origin: chosen_source.Source, metrics: Sequence[str], nodes: Sequence[str]
) -> tuple[Mapping[rightsizing.ShareKey, rightsizing.ReportedPeak], tuple[str, ...]]:
    if metrics:
        texts = [inputs.text(path) for path in metrics]
        for path, text in zip(metrics, texts, strict=True):
            if f"\n{rightsizing.PEAK_MEMORY}{{" not in f"\n{text}":
                raise plugin_errors.FileError(
                    f"{inputs.name(path)} has no {rightsizing.PEAK_MEMORY}: save what an agent answers at /metrics"
                )
        return rightsizing.parse_peaks(texts), ()
    if not isinstance(origin, live_cluster.LiveCluster):
        return {}, ("peaks: files of --from have none: add --metrics FILE, with what agents answer at /metrics",)
    answers = agents.fetch(origin.kubectl, nodes, agents.METRICS)
    older = [node for node, text in answers.texts.items() if rightsizing.PEAK_MEMORY not in text]
    if older:
        reason = "the agent measures none, so it is older than this plugin"
        answers = dataclasses.replace(answers, failures={**answers.failures, reason: older})
    return rightsizing.parse_peaks(answers.texts.values()), answers.notes("peaks")


def _part(text: str) -> float:
    match = _MARGIN.fullmatch(text.strip())
    if match is None:
        raise click.UsageError(f'--margin "{text}" is not a part: write it as 20% or 0.2')
    return float(match[1]) / (100 if match[2] else 1)


def _seconds(text: str) -> float:
    try:
        return value_parsers.parse_duration(text.strip()) / 1e9
    except errors.ConfigError as error:
        raise click.UsageError(f'--min-observed "{text}" {error}') from error
