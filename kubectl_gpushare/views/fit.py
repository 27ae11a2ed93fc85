"""`fit`: where pods would go, the fragmentation then, how many more would fit, or why one does not."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from gpushare import quantity
from gpushare.gpu_capacity import Fragmentation
from gpushare.refusal import Cause
from kubectl_gpushare.output import documents
from kubectl_gpushare.output.page import Field, Page, Section, field
from kubectl_gpushare.planning import remedies
from kubectl_gpushare.planning.capacity import MAX, CapacityAnswer, FitResult
from kubectl_gpushare.views import cell_figures
from kubectl_gpushare.views.describe import pod_page as described

_MAX_PLACES = 12


def page(answer: CapacityAnswer, notes: Sequence[str]) -> Page:
    """Return the answer as a page."""
    several = len(answer.fits) > 1
    fields = tuple(entry for fit in answer.fits for entry in _fields(fit, several=several))
    missing = (Section("Not Looked At", tuple(notes), "warn"),) if notes else ()
    return (
        *fields,
        *field("In All", _in_all(answer) if several else ""),
        *field("Stranded", _change(answer.before, answer.after)),
        *field("Largest Left", _largest(answer.after)),
        *field("Fits More", _more(answer)),
        *missing,
    )


def document(answer: CapacityAnswer, notes: Sequence[str]) -> documents.Document:
    """Return the same as the content of a `FitResult`."""
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


def _fields(fit: FitResult, *, several: bool) -> Iterator[Field]:
    name = fit.wanted.name if several or fit.wanted.name else ""
    yield from field("Name", name)
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
    """Return `gpu-1/0` or `gpu-1/0 (2), gpu-1/1 and 5 more`."""
    counted = collections.Counter(gpus)
    words = [place if count == 1 else f"{place} ({count})" for place, count in counted.items()]
    more = len(words) - _MAX_PLACES
    return ", ".join(words[:_MAX_PLACES]) + (f" and {more} more" if more > 0 else "")


def _change(before: Fragmentation, after: Fragmentation) -> str:
    return (
        f"{cell_figures.gpus(before.stranded_gpus)} of {cell_figures.gpus(before.free_gpus)} free GPUs now "
        f"({before.ratio:.0%}), "
        f"{cell_figures.gpus(after.stranded_gpus)} of {cell_figures.gpus(after.free_gpus)} then ({after.ratio:.0%})"
    )


def _largest(after: Fragmentation) -> str:
    if not after.largest_memory_bytes:
        return "nothing"
    memory = quantity.format_bytes(after.largest_memory_bytes)
    return f"{quantity.format_compute(after.largest_percent)} with {memory}"


def _more(answer: CapacityAnswer) -> str:
    if answer.more is None:
        return ""
    if answer.more >= MAX:
        return f"at least {MAX} more like the last"
    return f"{answer.more} more like the last; then {answer.no_more}"


def _in_all(answer: CapacityAnswer) -> str:
    pods, places = sum(fit.wanted.count for fit in answer.fits), sum(len(fit.gpus) for fit in answer.fits)
    whole = sum(not fit.missing for fit in answer.fits)
    return f"{whole} of {len(answer.fits)} fit, with {places} of {pods} pods"
