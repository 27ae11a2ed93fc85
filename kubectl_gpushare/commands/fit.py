"""`fit`: whether pods would fit now, where they would go, and how many more, or why one does not."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from gpushare import contract, errors, pod, policies, quantity, resource_quota
from gpushare.gpu_capacity import Fragmentation
from gpushare.placement import Placement, exclusive_gpus
from gpushare.refusal import Cause, Refusal
from gpushare.resource_quota import Allowance
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World
from kubectl_gpushare import candidates, options, plugin_errors
from kubectl_gpushare.output import printing
from kubectl_gpushare.output.values import Document, Field, Page, field, section
from kubectl_gpushare.planning import remedies
from kubectl_gpushare.planning.remedies import Remedy
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
            wanted.append(PodBatch(workload.name, RequestingPod.from_manifest(workload.pod), count or workload.count))
        except errors.RequestError as error:
            wrong.append(f"{workload.name}: {error}" if workload.name else str(error))
    if not wanted:
        raise plugin_errors.PluginError("; ".join(wrong))
    snapshot = chosen_source.everything(origin, [batch.asked.manifest for batch in wanted])
    world = snapshot.world()
    notes = list(snapshot.notes)
    allowances = chosen_source.allowances(origin, (batch.asked.namespace for batch in wanted), notes)
    found = answer(world, wanted, allowances)
    notes += world.unknown_claims(batch.asked.manifest for batch in wanted)
    printing.show_page("Fit", lambda: page(found, notes), lambda: document(found, notes), chosen)
    if wrong:
        raise plugin_errors.PluginError("; ".join(wrong))
    return 0 if found.all_fit else DOES_NOT_FIT


MAX = 1000  # copies of one pod that are tried

Allowances = Mapping[str, tuple[Allowance, ...]]  # by namespace
_Left = dict[str, tuple[Allowance, ...]]  # the same, while pods are placed
_NO_QUOTAS: Final[Allowances] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class PodBatch:
    """Several equal pods."""

    name: str
    asked: RequestingPod
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class FitResult:
    """The places of the pods that fit, in order, and why the next one does not."""

    wanted: PodBatch
    gpus: tuple[str, ...]
    refusal: Refusal | None
    changes: tuple[Remedy, ...]  # with each of them the next pod would fit

    @property
    def missing(self) -> int:
        return self.wanted.count - len(self.gpus)


@dataclasses.dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """The results of all batches."""

    fits: tuple[FitResult, ...]
    before: Fragmentation
    after: Fragmentation
    more: int | None  # pods like the last batch's would fit; None if some pods do not fit
    no_more: Refusal | None = None  # why not one more than that

    @property
    def all_fit(self) -> bool:
        return not any(fit.missing for fit in self.fits)


def answer(world: World, wanted: Sequence[PodBatch], allowances: Allowances = _NO_QUOTAS) -> CapacityAnswer:
    """Place the pods in this order, as the webhook would; restore the world afterwards."""
    undone: list[Callable[[], None]] = []
    left = dict(allowances)
    world.bounds = {name: exclusive_gpus.bound_of(name, quotas) for name, quotas in left.items()}
    before = world.fragmentation()
    try:
        fits = tuple(_fit(world, batch, left, undone) for batch in wanted)
        after = world.fragmentation()
        if not wanted or any(fit.missing for fit in fits):
            return CapacityAnswer(fits, before, after, None)
        more, refusal = _as_many(world, wanted[-1].asked, MAX, left, undone)
        return CapacityAnswer(fits, before, after, len(more), refusal)
    finally:
        world.bounds = {}
        for undo in reversed(undone):
            undo()


def _fit(world: World, batch: PodBatch, left: _Left, undone: list[Callable[[], None]]) -> FitResult:
    gpus, refusal = _as_many(world, batch.asked, batch.count, left, undone)
    changes: Sequence[Remedy] = ()
    if refusal is not None and refusal.cause is not Cause.QUOTA:  # rejected by a quota, however much is free
        whole = world.refuse(batch.asked.manifest, batch.asked.request)
        changes = remedies.all_of(world, batch.asked, whole.rejected) if isinstance(whole, Refusal) else ()
    return FitResult(batch, gpus, refusal, tuple(changes))


def _as_many(
    world: World, asked: RequestingPod, count: int, left: _Left, undone: list[Callable[[], None]]
) -> tuple[tuple[str, ...], Refusal | None]:
    gpus: list[str] = []
    amounts = resource_quota.asked(asked.manifest, asked.request)
    uncounted = resource_quota.uncounted(left.get(asked.namespace, ()), asked.manifest, asked.request)
    if uncounted is not None:
        return (), Refusal(uncounted, cause=Cause.QUOTA)
    while len(gpus) < count:
        quotas = left.get(asked.namespace, ())
        lacks = next(filter(None, (quota.lacks(amounts) for quota in quotas)), None)
        if lacks is not None:
            return tuple(gpus), Refusal(lacks, cause=Cause.QUOTA)
        copy = _copy(asked.manifest, len(undone))
        outcome = world.place(copy, asked.request)
        if not isinstance(outcome, Placement):
            return tuple(gpus), outcome
        gpus.append(worlds.gpus(outcome, world.views))
        undone.append(world.assign(copy, asked.request, outcome))
        left[asked.namespace] = tuple(quota.after(amounts) for quota in quotas)
    return tuple(gpus), None


def _copy(manifest: pod.PodJson, number: int) -> pod.PodJson:
    metadata = {key: value for key, value in (manifest.get("metadata") or {}).items() if key != "uid"}
    return {**manifest, "metadata": {**metadata, "name": f"{metadata.get('name') or 'pod'}-copy-{number}"}}


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
