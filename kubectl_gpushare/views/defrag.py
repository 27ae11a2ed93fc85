"""`defrag`: the moves in order, what they make room for, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpushare import ledger, pod, quantity
from gpushare.defragmentation import evicting
from gpushare.defragmentation.moves import DefragPlan, Move
from gpushare.gpu_capacity import Fragmentation
from gpushare.quantity import counted
from kubectl_gpushare.output.values import NONE, Column, Document, Field, Page, Section, Table, field, section
from kubectl_gpushare.views import cell_figures

_MAX_NAMES = 3  # pods named for one reason; documents name all
_COLUMNS = (
    Column("#"),
    Column("Pod", least=14, wrap=True),
    Column("From", least=10, wrap=True),
    Column("To", least=10, wrap=True),
    Column("Request"),
    Column("Memory"),
    Column("Owner", least=6, wrap=True),
    Column("Priority"),
)


def page(plan: DefragPlan, notes: Sequence[str], kept: Sequence[str] = ()) -> Page:
    moves = plan.moves
    rows = [_row(number, move) for number, move in enumerate(moves, 1)]
    return (
        *field("Now", _state(plan.before)),
        *field("Then", _state(plan.after) if moves else "as now: nothing is moved"),
        *_room(plan),
        Section(f"Moves ({len(rows)})", (Table(_COLUMNS, rows),) if rows else (NONE,)),
        *field("Never Moved", *(f"{counted(count, 'pod')}: {reason}" for reason, count in plan.fixed)),
        *field("Cordoned", *kept, style="warn"),
        *section("Not Looked At", notes, "warn"),
    )


def document(plan: DefragPlan, notes: Sequence[str]) -> Document:
    return {
        "before": cell_figures.fragmentation_document(plan.before),
        "after": cell_figures.fragmentation_document(plan.after),
        **({} if plan.gained is None else {"gainedGpus": round(plan.gained, 3)}),
        "steps": [
            {
                "for": step.name,
                "gpus": step.gpus,
                "reason": step.reason,
                "cordon": [{"node": node, "uuid": uuid} for node, uuid in step.closed],
                "moves": [_move(move) for move in step.moves],
            }
            for step in plan.steps
        ],
        "neverMoved": [{"reason": reason, "pods": count} for reason, count in plan.fixed],
        "notes": list(notes),
    }


def _room(plan: DefragPlan) -> Iterator[Field]:
    rest = sum(len(step.moves) for step in plan.steps if step.asked is None)
    if plan.gained is not None and not plan.moves:
        yield from field("Gained", "nothing: no move gains enough")
    elif plan.gained is not None and rest:
        moves = counted(rest, "move")
        yield from field("Gained", f"what is free serves more of what pods here ask for, by {moves}", style="good")
    emptied, made, there, none = (list[str]() for _ in range(4))
    alike: dict[str, list[str]] = {}
    for step in plan.steps:
        name = f"{step.name}, by {counted(len(step.moves), 'move')}"
        if step.gpus and step.asked is None:
            emptied.append(name)
        elif step.gpus:
            (made if step.moves else there).append(f"{name if step.moves else step.name}: on {step.gpus}")
        elif step.asked is not None:
            alike.setdefault(step.reason, []).append(step.name)
    for reason, names in alike.items():  # hundreds of pods may wait for the same reason
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        none.append(f"{', '.join(names[:_MAX_NAMES])}{more}: {reason}")
    yield from field("Empties", *emptied, style="good")
    yield from field("Makes Room For", *made, style="good")
    yield from field("Fits Already", *there)
    yield from field("No Way For", *none, style="warn")


def _row(number: int, move: Move) -> tuple[str, ...]:
    return (
        str(number),
        "/".join(pod.namespaced_name(move.manifest)),
        move.before,
        move.after,
        "CPU only" if move.is_cpu_only else quantity.format_compute(ledger.held_in_all(move.entry)[0]),
        NONE if move.is_cpu_only else quantity.format_bytes(ledger.held_in_all(move.entry)[1]),
        evicting.owner(move.manifest)[0] or NONE,
        str(pod.priority(move.manifest)),
    )


def _move(move: Move) -> Document:
    namespace, name = pod.namespaced_name(move.manifest)
    return {
        "pod": {"namespace": namespace, "name": name, "uid": pod.uid(move.manifest)},
        **({"cpuOnly": True} if move.is_cpu_only else {}),
        "from": move.before,
        "to": move.after,
        "cordoned": [{"node": node, "uuid": uuid} for node, uuid in move.closed],
    }


def _state(fragmentation: Fragmentation) -> str:
    memory = quantity.format_bytes(fragmentation.largest_memory_bytes)
    size = f"{quantity.format_compute(fragmentation.largest_percent)} with {memory}"
    largest = size if fragmentation.largest_memory_bytes else "none"
    stranded, free = map(cell_figures.gpus, (fragmentation.stranded_gpus, fragmentation.free_gpus))
    return f"{stranded} of {free} free GPUs stranded ({fragmentation.ratio:.0%}); largest single share {largest}"
