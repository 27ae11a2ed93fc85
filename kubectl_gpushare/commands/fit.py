"""`fit`: whether pods would fit now, where they would go, and how many more, or why one does not."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import click

from gpushare import contract, errors, policies, quantity
from gpushare.refusal import Cause
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing
from kubectl_gpushare.output.values import Document, Field, Page, field, section
from kubectl_gpushare.planning import remedies
from kubectl_gpushare.planning.capacity import MAX, CapacityAnswer, FitResult
from kubectl_gpushare.source import chosen_source
from kubectl_gpushare.views import cell_figures
from kubectl_gpushare.views import pod_page as described

DOES_NOT_FIT = 2  # exit code

# Flag -> annotation of a pod.
_ASKED = {
    "request": (contract.REQUEST, "0.5", 'Guaranteed compute as a fraction of one GPU, such as 0.5, "50%" or 500m'),
    "limit": (contract.LIMIT, "1", "Maximum compute while the GPU has idle time"),
    "memory": (contract.MEMORY, "8Gi", "Device memory, such as 8Gi or 25%"),
    "gpus": (contract.GPUS, "N", "Number of GPUs on one node, each with this share"),
    "model": (contract.MODEL, "MODEL", "Accepted models, such as A100,H100"),
    "min_memory": (contract.MIN_MEMORY, "40Gi", "Minimum memory of the whole GPU"),
    "policy": (contract.POLICY, "NAME", ", ".join(policies.POLICIES)),
}


def _flags(function: Any) -> Any:
    for name, (_, metavar, text) in reversed(_ASKED.items()):
        complete = candidates.policies if name == "policy" else None
        flag = f"--{name.replace('_', '-')}"
        function = click.option(name, flag, metavar=metavar, help=text, shell_complete=complete)(function)
    return function


@click.command(short_help="Check whether a pod fits now, where it would go, and how many more would fit")
@options.file(
    "-f", "--filename", help="Pods, or workloads such as Deployments and Jobs, in JSON or YAML; - is standard input"
)
@_flags
@click.option("--count", type=click.IntRange(1, 1000), metavar="N", help="Number of pods (default: 1)")
@options.printed(("json", "yaml"))
@options.namespaced(candidates.namespaces, all_namespaces=False)
@options.connection(candidates.contexts)
def command(filename: str | None, count: int | None, **params: Any) -> int:
    """Check whether a pod fits now, where it would go, and how many more would fit.

    Places the pods one after the other, in memory, on the current cluster, by the webhook's rules and the
    ResourceQuotas of their namespaces. It creates nothing. The exit code is 0 if all fit, 2 if one does not, and 1 for
    any error.

    \b
    Examples:
      # Would this Deployment fit with all its replicas?
      kubectl gpushare fit -f deployment.yaml
    \b
      # Where would half a GPU with 20Gi go, and how many more of them fit?
      kubectl gpushare fit --request 0.5 --memory 20Gi
    \b
      # Eight whole GPUs on one node
      kubectl gpushare fit --request 1 --gpus 8
    \b
      # On a saved cluster, in a pipeline
      kubectl get gpunodes,nodes,pods -A -o yaml > cluster.yaml
      kubectl gpushare fit --request 0.5 --from cluster.yaml -o json
    """
    from gpushare.whatif.world import RequestingPod
    from kubectl_gpushare.planning import capacity
    from kubectl_gpushare.source import pod_files

    asked = {key: params.pop(name) for name, (key, _, _) in _ASKED.items()}
    annotations = {key: value for key, value in asked.items() if value is not None}
    chosen = options.collect(params)
    if bool(filename) == bool(annotations):
        raise click.UsageError("say what is to fit: either -f FILE, or --request, --memory and the like")
    if filename == "-" and "-" in chosen.files:
        raise click.UsageError("-f and --from cannot both be standard input")
    if not filename and not any(key in annotations for key in contract.SHARE_KEYS):
        raise click.UsageError("say how large the share is: --request, --memory or --gpus")
    origin = chosen_source.from_options(chosen)
    namespace = chosen.namespace or origin.default_namespace
    if filename:
        workloads = pod_files.read(filename, namespace=namespace)
    else:
        metadata = {"name": "asked", "namespace": namespace, "annotations": annotations}
        workloads = [pod_files.Manifest("", {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}})]
    wanted, wrong = [], []
    for workload in workloads:
        try:
            wanted.append(
                capacity.PodBatch(workload.name, RequestingPod.from_manifest(workload.pod), count or workload.count)
            )
        except errors.RequestError as error:
            wrong.append(f"{workload.name}: {error}" if workload.name else str(error))
    if not wanted:
        raise plugin_errors.PluginError("; ".join(wrong))
    snapshot = chosen_source.everything(origin, [batch.asked.manifest for batch in wanted])
    world = snapshot.world()
    notes = list(snapshot.notes)
    allowances = chosen_source.allowances(origin, (batch.asked.namespace for batch in wanted), notes)
    answer = capacity.answer(world, wanted, allowances)
    notes += world.unknown_claims(batch.asked.manifest for batch in wanted)
    printing.show_page("Fit", lambda: page(answer, notes), lambda: document(answer, notes), chosen)
    if wrong:
        raise plugin_errors.PluginError("; ".join(wrong))
    return 0 if answer.all_fit else DOES_NOT_FIT


_MAX_PLACES = 12


def page(answer: CapacityAnswer, notes: Sequence[str]) -> Page:
    several, before, after = len(answer.fits) > 1, answer.before, answer.after
    pods, places = sum(fit.wanted.count for fit in answer.fits), sum(len(fit.gpus) for fit in answer.fits)
    whole = sum(not fit.missing for fit in answer.fits)
    in_all = f"{whole} of {len(answer.fits)} fit, with {places} of {pods} pods"
    stranded = (
        f"{cell_figures.gpus(before.stranded_gpus)} of {cell_figures.gpus(before.free_gpus)} free GPUs now "
        f"({before.ratio:.0%}), "
        f"{cell_figures.gpus(after.stranded_gpus)} of {cell_figures.gpus(after.free_gpus)} then ({after.ratio:.0%})"
    )
    memory = quantity.format_bytes(after.largest_memory_bytes)
    largest = f"{quantity.format_compute(after.largest_percent)} with {memory}"
    more = "" if answer.more is None else f"{answer.more} more like the last; then {answer.no_more}"
    if answer.more is not None and answer.more >= MAX:
        more = f"at least {MAX} more like the last"
    return (
        *(entry for fit in answer.fits for entry in _fields(fit)),
        *field("In All", in_all if several else ""),
        *field("Stranded", stranded),
        *field("Largest Left", largest if after.largest_memory_bytes else "nothing"),
        *field("Fits More", more),
        *section("Not Looked At", notes, "warn"),
    )


def document(answer: CapacityAnswer, notes: Sequence[str]) -> Document:
    return {
        "fits": answer.all_fit,
        "pods": [
            {
                "name": fit.wanted.name,
                "asksFor": described.requested(fit.wanted.asked.manifest)[0],
                "count": fit.wanted.count,
                "gpus": list(fit.gpus),
                "missing": fit.missing,
                "reason": str(fit.refusal or ""),
                "changes": [{"kind": change.kind, "change": change.sentence, "gpus": change.gpus}
                            for change in fit.changes],
            }
            for fit in answer.fits
        ],
        "before": cell_figures.fragmentation_document(answer.before),
        "after": cell_figures.fragmentation_document(answer.after),
        "more": answer.more,
        "noMore": str(answer.no_more or ""),
        "notes": list(notes),
    }  # fmt: skip


def _fields(fit: FitResult) -> Iterator[Field]:
    yield from field("Name", fit.wanted.name)
    yield from field("Asks For", *described.requested(fit.wanted.asked.manifest)[0])
    if not fit.missing:
        yield from field("Fits", f"yes, on {_places(fit.gpus)}", style="good")
        return
    said = f"{len(fit.gpus)} of {fit.wanted.count}, on {_places(fit.gpus)}" if fit.gpus else "no"
    yield from field("Fits", said, style="bad")
    yield from field("Reason", str(fit.refusal), style="warn")
    if fit.refusal is not None and fit.refusal.cause is Cause.QUOTA:
        return
    changes = [f"{change.sentence}: on {change.gpus}" for change in fit.changes]
    yield from field("Would Fit", *(changes or [remedies.NONE]))


def _places(gpus: Sequence[str]) -> str:
    counted = collections.Counter(gpus)
    words = [place if count == 1 else f"{place} ({count})" for place, count in counted.items()]
    more = len(words) - _MAX_PLACES
    return ", ".join(words[:_MAX_PLACES]) + (f" and {more} more" if more > 0 else "")
