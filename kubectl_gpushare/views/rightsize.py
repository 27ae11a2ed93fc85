"""`rightsize`: what shares asked for against what they used at most, a size that would do, and what that frees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpushare import pod, quantity
from gpushare.gpunode import GpuNode
from kubectl_gpushare.output import documents
from kubectl_gpushare.output.table import NONE, UNKNOWN, Cell, Column, Row, Table, sentence
from kubectl_gpushare.planning import rightsizing
from kubectl_gpushare.planning.rightsizing import Advice, Size, Suggestion
from kubectl_gpushare.views import ages, cell_figures, gpu_summary, suggested_sizes

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
class View:
    """Suggestions as they are printed. `names`: of GPUs, by UUID; `manifests`: the pods, as far as they were read."""

    found: Sequence[Suggestion]
    names: Mapping[str, str]
    manifests: Mapping[tuple[str, str], pod.PodJson]

    def table(self, *, namespaces: bool = True) -> Table:
        """A row for each share."""
        rows = [_row(one, self.names) for one in self.found]
        whole = Table(COLUMNS, rows, _totals(self.found), what="pods that hold shares")
        return whole if namespaces else cell_figures.without(whole, COLUMNS[:1])

    def freed(self, nodes: Sequence[GpuNode]) -> Table:
        """What becomes free, GPU by GPU."""
        sums = rightsizing.freed(self.found)
        rows = [_freed_row(card, sums[card.gpu.uuid]) for card in gpu_summary.of(nodes) if card.gpu.uuid in sums]
        return Table(FREED_COLUMNS, rows)

    def summary(self, min_observed_seconds: float) -> list[str]:
        """In a sentence each: what it frees in the whole, and of whom nothing can be said."""
        told = []
        changes = sum(one.wanted is not None for one in self.found)
        whole = rightsizing.total(rightsizing.freed(self.found).values())
        if changes:
            free = f"{_signed(whole.request_percent, quantity.format_compute)} GPU of compute and "
            free += f"{_signed(whole.memory_bytes, quantity.format_bytes)} of memory"
            told.append(f"{changes} of {_shares(len(self.found))} could have another size, which would free {free}")
        if short := sum(one.advice is Advice.TOO_SHORT for one in self.found):
            least = ages.text(min_observed_seconds)
            told.append(f"{_shares(short)} seen for less than {least}, so nothing is suggested: see --min-observed")
        if unknown := sum(one.advice is Advice.UNKNOWN for one in self.found):
            told.append(f"{_shares(unknown)} without anything to go by: -o wide says why")
        return told or [f"all {_shares(len(self.found))} fit"]

    def names_of_pods(self) -> Iterator[str]:
        """The pods that could have another size, as `-o name` has them."""
        changing = dict.fromkeys((one.namespace, one.pod) for one in self.found if one.wanted is not None)
        return (f"pod/{name}" for _, name in changing)

    def commands(self) -> Iterator[str]:
        """A command line for each suggestion."""
        return suggested_sizes.commands(self.found, self.manifests)

    def document(self) -> documents.Document:
        """All as a `RightsizingList`."""
        sums = rightsizing.freed(self.found)
        return documents.listing(
            "RightsizingList",
            (_item(one, self.names, suggested_sizes.own(one, self.manifests)) for one in self.found),
            freed=_size_document(rightsizing.total(sums.values())),
            gpus=[
                {"name": self.names.get(uuid, ""), "uuid": uuid, "freed": _size_document(size)}
                for uuid, size in sums.items()
            ],
        )


def _row(one: Suggestion, names: Mapping[str, str]) -> Row:
    peak, wanted = one.peak, one.wanted or one.given
    return (
        one.namespace,
        one.pod,
        _places(one, names),
        quantity.format_compute(one.given.request_percent),
        UNKNOWN if peak.compute_ratio is None else f"{peak.compute_ratio:.2g}",
        _change(one.given.request_percent, wanted.request_percent, quantity.format_compute),
        quantity.format_bytes(one.given.memory_bytes),
        UNKNOWN if peak.memory_bytes is None else quantity.format_bytes(peak.memory_bytes),
        _change(one.given.memory_bytes, wanted.memory_bytes, suggested_sizes.exactly),
        UNKNOWN if peak.memory_bytes is None else ages.text(peak.observed_seconds),
        Cell(str(one.advice), _STYLES.get(one.advice, "")),
        ",".join(one.containers) or NONE,
        sentence(one.reason),
    )


def _change(given: int, wanted: int, text: Callable[[int], str]) -> str | Cell:
    if wanted == given:
        return "-"
    return Cell(text(wanted), "good" if wanted < given else "warn")


def _totals(found: Sequence[Suggestion]) -> Row:
    given = rightsizing.total(_all(one, one.given) for one in found)
    wanted = rightsizing.total(_all(one, one.wanted or one.given) for one in found)
    return (
        Cell("TOTAL", "bold"),
        "",
        _shares(len(found)).replace(" ", "-"),
        quantity.format_compute(given.request_percent),
        "",
        quantity.format_compute(wanted.request_percent),
        quantity.format_bytes(given.memory_bytes),
        "",
        quantity.format_bytes(wanted.memory_bytes),
        *[""] * 4,
    )


def _all(one: Suggestion, size: Size) -> Size:
    """Of all its GPUs."""
    return Size(size.request_percent * len(one.gpus), size.memory_bytes * len(one.gpus))


def _freed_row(card: gpu_summary.GpuSummary, size: Size) -> Row:
    percent, memory_bytes = card.free
    after = (max(0, percent + size.request_percent), max(0, memory_bytes + size.memory_bytes))
    return (
        card.name,
        cell_figures.share(percent, memory_bytes),
        _signed(size.request_percent, quantity.format_compute),
        _signed(size.memory_bytes, quantity.format_bytes),
        cell_figures.share(*after),
    )


def _signed(amount: int, text: Callable[[int], str]) -> str:
    return f"-{text(-amount)}" if amount < 0 else text(amount)


def _item(one: Suggestion, names: Mapping[str, str], container: str) -> dict[str, Any]:
    wanted = one.wanted
    suffix = f".{container}" if container else ""
    return {
        "namespace": one.namespace,
        "pod": one.pod,
        "containers": list(one.containers),
        "node": one.node,
        "gpus": [{"name": names.get(uuid, ""), "uuid": uuid} for uuid in one.gpus],
        "advice": str(one.advice),
        "reason": one.reason,
        "given": {**_size_document(one.given), "limitPercent": one.limit_percent},
        "peak": {
            "computePercent": None if one.peak.compute_ratio is None else round(one.peak.compute_ratio * 100, 2),
            "memoryBytes": one.peak.memory_bytes,
        },
        "observedSeconds": round(one.peak.observed_seconds),
        "suggested": _size_document(wanted or one.given),
        "annotations": {f"{key}{suffix}": value for key, value in suggested_sizes.asked(wanted).items()}
        if wanted
        else {},
    }


def _size_document(size: Size) -> dict[str, int]:
    return {"requestPercent": size.request_percent, "memoryBytes": size.memory_bytes}


def _places(one: Suggestion, names: Mapping[str, str]) -> str:
    indices = ",".join(names.get(uuid, uuid).rpartition("/")[2] for uuid in one.gpus)
    return f"{one.node}/{indices}"


def _shares(count: int) -> str:
    return "1 share" if count == 1 else f"{count} shares"
