"""`rightsize`: requests against peaks, suggested sizes, and what those free."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpushare import contract, pod, quantity
from gpushare.gpunode import GpuNode
from gpushare.quantity import counted
from kubectl_gpushare.output.values import NONE, UNKNOWN, Cell, Column, Document, Row, Table, list_document, sentence
from kubectl_gpushare.planning import rightsizing
from kubectl_gpushare.planning.rightsizing import Advice, Size, Suggestion
from kubectl_gpushare.views import as_kubectl, cell_figures, gpu_summary

COLUMNS = (
    Column("NAMESPACE", least=6),
    Column("POD", least=14, middle=True),
    Column("GPUS", least=8, leave_out=4),
    Column("REQUEST", leave_out=1),
    Column("PEAK-COMPUTE", leave_out=6),
    Column("NEW-REQUEST", leave_out=2),
    Column("MEMORY", leave_out=1),
    Column("PEAK-MEMORY", leave_out=5),
    Column("NEW-MEMORY", leave_out=2),
    Column("OBSERVED", leave_out=3),
    Column("ADVICE"),
    Column("CONTAINERS", wide=True),
    Column("REASON", wide=True, least=20),
)
FREED_COLUMNS = (
    Column("GPU", least=8, middle=True),
    Column("FREE", leave_out=2),
    Column("FREED-COMPUTE"),
    Column("FREED-MEMORY"),
    Column("FREE-THEN", leave_out=1),
)

_STYLES = {Advice.SHRINK: "good", Advice.GROW: "warn", Advice.TOO_SHORT: "dim", Advice.UNKNOWN: "dim"}


@dataclasses.dataclass(frozen=True, slots=True)
class RightsizeListing:
    """Suggestions as they are printed."""

    suggestions: Sequence[Suggestion]
    gpu_names: Mapping[str, str]  # by UUID
    manifests: Mapping[tuple[str, str], pod.PodJson]  # the pods that could be read
    namespaces: bool = True  # whether the table has a column of them

    def table(self) -> Table:
        rows = [_row(suggestion, self.gpu_names) for suggestion in self.suggestions]
        held = rightsizing.total(_all(suggestion, suggestion.held) for suggestion in self.suggestions)
        wanted = rightsizing.total(_all(each, each.wanted or each.held) for each in self.suggestions)
        totals = {
            "GPUS": counted(len(self.suggestions), "share").replace(" ", "-"),
            "REQUEST": quantity.format_compute(held.request_percent),
            "NEW-REQUEST": quantity.format_compute(wanted.request_percent),
            "MEMORY": quantity.format_bytes(held.memory_bytes),
            "NEW-MEMORY": quantity.format_bytes(wanted.memory_bytes),
        }
        whole = Table(COLUMNS, rows, totals, what="pods that hold shares")
        return whole if self.namespaces else cell_figures.without(whole, COLUMNS[:1])

    def freed(self, nodes: Sequence[GpuNode]) -> Table:
        sums = rightsizing.freed(self.suggestions)
        rows = []
        for gpu in gpu_summary.summarize(nodes):
            if gpu.gpu.uuid in sums:
                compute, memory = sums[gpu.gpu.uuid].request_percent, sums[gpu.gpu.uuid].memory_bytes
                freed = (_signed(compute, quantity.format_compute), _signed(memory, quantity.format_bytes))
                then = cell_figures.share(max(0, gpu.free[0] + compute), max(0, gpu.free[1] + memory))
                rows.append((gpu.name, cell_figures.share(*gpu.free), *freed, then))
        return Table(FREED_COLUMNS, rows)

    def summary(self, min_observed_seconds: float) -> list[str]:
        if not self.suggestions:
            return ["no pod here holds a share"]
        sentences = []
        changes = sum(suggestion.wanted is not None for suggestion in self.suggestions)
        whole = rightsizing.total(rightsizing.freed(self.suggestions).values())
        if changes:
            free = f"{_signed(whole.request_percent, quantity.format_compute)} GPU of compute and "
            free += f"{_signed(whole.memory_bytes, quantity.format_bytes)} of memory"
            sentences.append(
                f"{changes} of {counted(len(self.suggestions), 'share')} could change in size and free {free}"
            )
        if short := sum(suggestion.advice is Advice.TOO_SHORT for suggestion in self.suggestions):
            least = as_kubectl.age(min_observed_seconds)
            rest = f"seen for less than {least}, so nothing is suggested: see --min-observed"
            sentences.append(f"{counted(short, 'share')} {rest}")
        if unknown := sum(suggestion.advice is Advice.UNKNOWN for suggestion in self.suggestions):
            sentences.append(f"{counted(unknown, 'share')} without anything to go by: -o wide says why")
        return sentences or [f"all {counted(len(self.suggestions), 'share')} fit"]

    def names(self) -> Iterator[str]:
        changing = dict.fromkeys(
            (suggestion.namespace, suggestion.pod) for suggestion in self.suggestions if suggestion.wanted is not None
        )
        return (f"pod/{name}" for _, name in changing)

    def commands(self) -> Iterator[str]:
        for suggestion in self.suggestions:
            if suggestion.wanted is None:
                continue
            words = ["kubectl", "gpushare", "resize", suggestion.pod, "-n", suggestion.namespace]
            container = container_of(suggestion, self.manifests)
            words += ["-c", container] if container else []
            for key, value in as_annotations(suggestion.wanted).items():
                words += [f"--{key.removeprefix(contract.PREFIX)}", value]
            yield shlex.join(words)

    def document(self) -> Document:
        sums = rightsizing.freed(self.suggestions)
        return list_document(
            "RightsizingList",
            (_item(one, self.gpu_names, container_of(one, self.manifests)) for one in self.suggestions),
            freed=_size_document(rightsizing.total(sums.values())),
            gpus=[
                {"name": self.gpu_names.get(uuid, ""), "uuid": uuid, "freed": _size_document(size)}
                for uuid, size in sums.items()
            ],
        )


def _row(suggestion: Suggestion, names: Mapping[str, str]) -> Row:
    peak, wanted = suggestion.peak, suggestion.wanted or suggestion.held
    return (
        suggestion.namespace,
        suggestion.pod,
        f"{suggestion.node}/{','.join(names.get(uuid, uuid).rpartition('/')[2] for uuid in suggestion.gpus)}",
        quantity.format_compute(suggestion.held.request_percent),
        UNKNOWN if peak.compute_ratio is None else f"{peak.compute_ratio:.2g}",
        _change(suggestion.held.request_percent, wanted.request_percent, quantity.format_compute),
        quantity.format_bytes(suggestion.held.memory_bytes),
        UNKNOWN if peak.memory_bytes is None else quantity.format_bytes(peak.memory_bytes),
        _change(suggestion.held.memory_bytes, wanted.memory_bytes, quantity.format_exactly),
        UNKNOWN if peak.memory_bytes is None else as_kubectl.age(peak.observed_seconds),
        Cell(str(suggestion.advice), _STYLES.get(suggestion.advice, "")),
        ",".join(suggestion.containers) or NONE,
        sentence(suggestion.reason),
    )


def _change(held: int, wanted: int, text: Callable[[int], str]) -> str | Cell:
    if wanted == held:
        return NONE
    return Cell(text(wanted), "good" if wanted < held else "warn")


def _all(suggestion: Suggestion, size: Size) -> Size:
    return Size(size.request_percent * len(suggestion.gpus), size.memory_bytes * len(suggestion.gpus))


def _signed(amount: int, text: Callable[[int], str]) -> str:
    return f"-{text(-amount)}" if amount < 0 else text(amount)


def _item(suggestion: Suggestion, names: Mapping[str, str], container: str) -> dict[str, Any]:
    wanted, ratio = suggestion.wanted, suggestion.peak.compute_ratio
    suffix = f".{container}" if container else ""
    return {
        "namespace": suggestion.namespace,
        "pod": suggestion.pod,
        "containers": list(suggestion.containers),
        "node": suggestion.node,
        "gpus": [{"name": names.get(uuid, ""), "uuid": uuid} for uuid in suggestion.gpus],
        "advice": str(suggestion.advice),
        "reason": suggestion.reason,
        "given": {**_size_document(suggestion.held), "limitPercent": suggestion.limit_percent},
        "peak": {
            "computePercent": None if ratio is None else round(ratio * 100, 2),
            "memoryBytes": suggestion.peak.memory_bytes,
        },
        "observedSeconds": round(suggestion.peak.observed_seconds),
        "suggested": _size_document(wanted or suggestion.held),
        "annotations": {f"{key}{suffix}": value for key, value in as_annotations(wanted).items()} if wanted else {},
    }


def _size_document(size: Size) -> dict[str, int]:
    return {"requestPercent": size.request_percent, "memoryBytes": size.memory_bytes}


def as_annotations(wanted: Size) -> dict[str, str]:
    """Return the size as annotations. Always both: memory without an annotation follows the request."""
    return {
        contract.REQUEST: quantity.format_compute(wanted.request_percent),
        contract.MEMORY: quantity.format_exactly(wanted.memory_bytes),
    }


def container_of(suggestion: Suggestion, manifests: Mapping[tuple[str, str], pod.PodJson]) -> str:
    if len(suggestion.containers) != 1:
        return ""
    name = suggestion.containers[0]
    manifest = manifests.get((suggestion.namespace, suggestion.pod))
    if manifest is None:
        return name if suggestion.several else ""
    annotations = pod.annotations_of(manifest)
    return name if any(f"{key}.{name}" in annotations for key in contract.PER_CONTAINER_KEYS) else ""
