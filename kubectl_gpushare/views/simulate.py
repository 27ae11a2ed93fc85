"""`simulate`: the cluster as pods come and go, as a table, and as a picture in SVG."""

from __future__ import annotations

import dataclasses
import enum
import html
from collections.abc import Sequence
from typing import Any

from gpushare import quantity
from kubectl_gpushare.output.values import Cell, Column, Document, Table
from kubectl_gpushare.planning.simulation import Moment, SimulatedPod
from kubectl_gpushare.views import as_kubectl, cell_figures

MAX_LINES = 20  # of the table; documents have all moments

COLUMNS = (
    Column("TIME"),
    Column("ARRIVED"),
    Column("RUNNING"),
    Column("WAITING"),
    Column("COMPUTE"),
    Column("MEMORY", leave_out=2),
    Column("STRANDED", leave_out=3),
    Column("FRAG"),
    Column("LARGEST", leave_out=1),
)

_WIDTH, _HEIGHT, _EDGE = 900, 420, 60
# lines of the plot, in the order of `_parts`: (name, colour)
_LINES = (
    ("compute allocated", "#2a9d3a"),
    ("memory allocated", "#1f7fbf"),
    ("free but stranded", "#d1495b"),
    ("waiting, of the pods that came", "#8a8a8a"),
)


def table(outcome: SimulatedPod) -> Table:
    step = max(1, -(-len(outcome.moments) // MAX_LINES))
    chosen = [*reversed(outcome.moments[::-1][::step])]
    return Table(COLUMNS, [_row(moment, outcome) for moment in chosen], what="pods")


def summary(outcome: SimulatedPod) -> str:
    text = f"{outcome.arrived} pods came, {outcome.waited} had to wait"
    ran = outcome.waited - outcome.never
    if ran:
        text += f", {ran} of them for {as_kubectl.age(outcome.waited_seconds / ran)} on average"
    if outcome.never:
        text += f"; {outcome.never} {'waits' if outcome.never == 1 else 'wait'} at the end"
    return text + (f"; the first because {outcome.first_refusal}" if outcome.first_refusal else "")


def document(outcome: SimulatedPod) -> Document:
    return {
        "arrived": outcome.arrived,
        "waited": outcome.waited,
        "waitedSeconds": round(outcome.waited_seconds, 3),
        "waitingAtTheEnd": outcome.never,
        "moments": [_item(moment, outcome) for moment in outcome.moments],
    }


def picture(outcome: SimulatedPod) -> Drawing:
    right, bottom = _WIDTH - 20, _HEIGHT - _EDGE
    most = max((moment.arrived for moment in outcome.moments), default=1)

    def at(part: float, arrived: int) -> tuple[float, float]:
        x = _EDGE + (right - _EDGE) * arrived / most
        return x, bottom - (bottom - 20) * min(1.0, max(0.0, part))

    shapes: list[PolyLine | Box | Text] = []
    for tenth in range(0, 11, 2):
        height = bottom - (bottom - 20) * tenth / 10
        shapes.append(PolyLine(((_EDGE, height), (right, height)), "#dddddd"))
        shapes.append(Text(_EDGE - 8, height + 4, f"{tenth * 10}%", Anchor.END))
    for number, (name, colour) in enumerate(_LINES):
        shapes.append(
            PolyLine([at(_parts(moment, outcome)[number], moment.arrived) for moment in outcome.moments], colour, 2)
        )
        x, y = _EDGE + 210 * number, _HEIGHT - 14
        shapes += [Box(x, y - 9, 12, 12, colour), Text(x + 18, y + 2, name)]
    for part in (0, 1, 2, 3, 4):
        place = _EDGE + (right - _EDGE) * part / 4
        shapes.append(Text(place, bottom + 18, str(most * part // 4), Anchor.MIDDLE))
    shapes.append(Text((right + _EDGE) / 2, bottom + 34, "pods that came", Anchor.MIDDLE))
    return Drawing(_WIDTH, _HEIGHT, shapes)


def _row(moment: Moment, outcome: SimulatedPod) -> Sequence[str | Cell]:
    fragmentation = moment.fragmentation
    fits = fragmentation.largest_memory_bytes
    return (
        as_kubectl.age(moment.at_seconds),
        str(moment.arrived),
        str(moment.running),
        Cell(str(moment.waiting), "warn" if moment.waiting else ""),
        cell_figures.compute(moment.request_percent, outcome.total_percent),
        cell_figures.memory(moment.memory_bytes, outcome.total_bytes),
        cell_figures.gpus(fragmentation.stranded_gpus),
        cell_figures.fragmentation(fragmentation.free_gpus, fragmentation.stranded_gpus),
        cell_figures.share(fragmentation.largest_percent, fragmentation.largest_memory_bytes) if fits else "<none>",
    )


def _item(moment: Moment, outcome: SimulatedPod) -> dict[str, Any]:
    return {
        "seconds": moment.at_seconds,
        "arrived": moment.arrived,
        "running": moment.running,
        "waiting": moment.waiting,
        "compute": {"allocatedPercent": moment.request_percent, "totalPercent": outcome.total_percent},
        "memory": {"allocatedBytes": moment.memory_bytes, "totalBytes": outcome.total_bytes},
        **cell_figures.fragmentation_document(moment.fragmentation),
        "largest": quantity.format_bytes(moment.fragmentation.largest_memory_bytes),
    }


def _parts(moment: Moment, outcome: SimulatedPod) -> tuple[float, ...]:
    gpus = outcome.total_percent / 100 or 1.0
    return (
        moment.request_percent / (outcome.total_percent or 1),
        moment.memory_bytes / (outcome.total_bytes or 1),
        moment.fragmentation.stranded_gpus / gpus,
        moment.waiting / (moment.arrived or 1),
    )


class Anchor(enum.StrEnum):
    """Which part of a text is at its `x`."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


@dataclasses.dataclass(frozen=True, slots=True)
class PolyLine:
    """A line through these points."""

    points: Sequence[tuple[float, float]]
    colour: str  # `#rrggbb`
    width: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A rectangle filled with a colour."""

    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    anchor: Anchor = Anchor.START


@dataclasses.dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes; later ones cover earlier ones."""

    width: int
    height: int
    shapes: Sequence[PolyLine | Box | Text]


def svg(drawing: Drawing) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.width} {drawing.height}" '
    head += 'font-family="sans-serif" font-size="12">'
    page = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, page, *map(_element, drawing.shapes), "</svg>\n"])


def _element(shape: PolyLine | Box | Text) -> str:
    if isinstance(shape, PolyLine):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return f'<polyline fill="none" stroke="{shape.colour}" stroke-width="{shape.width}" points="{points}"/>'
    if isinstance(shape, Box):
        place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
        return f'<rect {place} fill="{shape.colour}"/>'
    words = html.escape(shape.text)
    return f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor.value}">{words}</text>'
