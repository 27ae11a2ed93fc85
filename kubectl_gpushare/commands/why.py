"""`why`: why a pod waits and what would help, or why it is on its GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpushare import contract, errors, pod
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing
from kubectl_gpushare.output.values import Document, Page, field
from kubectl_gpushare.source import chosen_source, inputs, workloads

if TYPE_CHECKING:
    from kubectl_gpushare.planning.reasons import Reasons
    from kubectl_gpushare.source.snapshot import Snapshot
    from kubectl_gpushare.views.pod_page import DescribedPod


@click.command(short_help="Explain why a pod waits and what would help, or why it is on this GPU")
@click.argument("name", metavar="POD|TYPE/NAME", shell_complete=candidates.pods_or_workloads)
@options.printed(("json", "yaml"))
@options.namespaced(candidates.namespaces, all_namespaces=False)
@options.connection(candidates.contexts)
def command(name: str, **params: Any) -> None:
    """Explain why a pod waits and what would help, or why it is on this GPU.

    Places the pod again, in memory, on the current cluster, by the webhook's rules. For a waiting pod, it shows every
    candidate with the rule and the numbers against it, nearest miss first, and the changes that would make the pod fit.
    Each change has been tried, and so has preemption. For a placed pod, it shows where else it could have gone.

    TYPE/NAME, such as `deploy/server`, is a Deployment, ReplicaSet, StatefulSet, DaemonSet, Job or CronJob. It explains
    one of its waiting pods, and why it cannot create missing pods.

    \b
    Examples:
      # Why a pod waits, and what would help
      kubectl gpushare why waiting -n ml
    \b
      # Why a pod is on this GPU and not on another
      kubectl gpushare why trainer -n ml
    \b
      # Every candidate, as JSON
      kubectl gpushare why waiting -n ml -o json
    """
    chosen = options.collect(params)
    printing.show_page("PodReasons", *explained(chosen_source.from_options(chosen), chosen, name), chosen)


def explained(
    origin: chosen_source.Source, chosen: options.Options, name: str
) -> tuple[Callable[[], Page], Callable[[], Document]]:
    """Return functions that make the page and the document about a pod. Raises `PluginError`."""
    from kubectl_gpushare.views import why

    meant = workloads.pod_meant(origin, chosen, name)
    manifest = meant.manifest
    try:
        snapshot = chosen_source.everything(origin, [manifest])
    except plugin_errors.KubectlForbidden as error:
        name, said = pod.namespaced_name(manifest)[1], pod.annotations_of(manifest).get(contract.REASON)
        raise plugin_errors.KubectlForbidden(f'{error}; pod "{name}" waits: {said}' if said else str(error)) from error
    notes = list(snapshot.notes)
    described_pod, explanation = reasons_of(origin, manifest, snapshot, notes)
    return (
        lambda: (*field("Missing", meant.missing, style="bad"), *why.page(described_pod, explanation, notes)),
        lambda: {**why.document(described_pod, explanation, notes), "missing": meant.missing},
    )


def reasons_of(
    origin: chosen_source.Source, manifest: pod.PodJson, snapshot: Snapshot, notes: list[str]
) -> tuple[DescribedPod, Reasons]:
    """Return all reasons of a pod: the engine's, Kueue's, helpful moves, and preemption. Raises `PluginError`."""
    from gpushare.defragmentation import evicting
    from kubectl_gpushare.planning import preempting, reasons
    from kubectl_gpushare.views import pod_page as described

    namespace, name = pod.namespaced_name(manifest)
    described_pod = described.find(manifest, snapshot.nodes)
    if not described_pod.ours:
        wrong = inputs.misspelt(manifest)
        hint = wrong or f"see `kubectl describe pod {name}`"
        raise plugin_errors.PluginError(f'pod "{name}" asks for no share of a GPU: {hint}')
    is_exclusive = contract.EXCLUSION in pod.annotations_of(manifest)
    allowances = chosen_source.allowances(origin, [namespace] if is_exclusive else (), notes)
    allowed = chosen_source.share_range(origin, namespace, notes)
    try:
        explanation = reasons.explain(manifest, snapshot, allowances.get(namespace, ()), allowed)
    except errors.RequestError as error:
        raise plugin_errors.PluginError(f'pod "{name}" has an invalid request: {error}') from error
    if reasons.KUEUE_GATE in pod.gates(manifest):
        workloads_of = chosen_source.read(
            lambda: origin.queue_workloads(namespace), chosen_source.WORKLOADS, notes, unsaved=""
        )
        explanation = reasons.with_queue(explanation, manifest, workloads_of or ())
    if explanation.refusal is not None:  # `defrag` reports it if the user may not read budgets
        budgets = evicting.Budgets.from_manifests(chosen_source.read(origin.budgets, chosen_source.BUDGETS, []) or ())
        explanation = reasons.with_moves(explanation, manifest, snapshot, budgets)
        explanation = preempting.with_victims(explanation, manifest, snapshot, budgets)
    return described_pod, explanation
