"""The page and the document of `fit`."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from gpushare import quantity
from gpushare.allocation import Isolation
from gpushare.refusal import Cause
from kubectl_gpushare.output.values import Document, Field, Page, field, section
from kubectl_gpushare.planning import remedies
from kubectl_gpushare.planning.capacity import MAX, CapacityAnswer, FitResult
from kubectl_gpushare.views import cell_figures
from kubectl_gpushare.views import pod_page as described

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
    if any(given.isolation is not Isolation.ARBITER for fit in answer.fits for given in fit.isolations):
        largest += " for a pod that names no isolation"
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
                "isolations": [{"isolation": given.isolation.value, "pods": given.pods, "why": given.why}
                               for given in fit.isolations],
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
    if described.is_isolation_notable(fit.wanted.asked.request, *(given.isolation for given in fit.isolations)):
        several = len(fit.isolations) > 1
        kinds = (f"{given.shown}{f' for {given.pods}' * several}: {given.why}" for given in fit.isolations)
        yield from field("Isolation", *kinds)
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
