"""`simulate`: the cluster as pods come and go, as a table, and as a picture in SVG."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

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
    said = f"{outcome.arrived} pods came, {outcome.waited} had to wait"
    ran = outcome.waited - outcome.never
    if ran:
        said += f", {ran} of them for {as_kubectl.age(outcome.waited_seconds / ran)} on average"
    if outcome.never:
        said += f"; {outcome.never} {'waits' if outcome.never == 1 else 'wait'} at the end"
    return said + (f"; the first because {outcome.first_refusal}" if outcome.first_refusal else "")


def document(outcome: SimulatedPod) -> Document:
    return {
        "arrived": outcome.arrived,
        "waited": outcome.waited,
        "waitedSeconds": round(outcome.waited_seconds, 3),
        "waitingAtTheEnd": outcome.never,
        "moments": [
            {
                "seconds": moment.at_seconds,
                "arrived": moment.arrived,
                "running": moment.running,
                "waiting": moment.waiting,
                "compute": {"allocatedPercent": moment.request_percent, "totalPercent": outcome.total_percent},
                "memory": {"allocatedBytes": moment.memory_bytes, "totalBytes": outcome.total_bytes},
                **cell_figures.fragmentation_document(moment.fragmentation),
                "largest": quantity.format_bytes(moment.fragmentation.largest_memory_bytes),
            }
            for moment in outcome.moments
        ],
    }


def picture(outcome: SimulatedPod) -> str:
    right, bottom = _WIDTH - 20, _HEIGHT - _EDGE
    most = max((moment.arrived for moment in outcome.moments), default=1)

    def at(part: float, arrived: int) -> tuple[float, float]:
        x = _EDGE + (right - _EDGE) * arrived / most
        return x, bottom - (bottom - 20) * min(1.0, max(0.0, part))

    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        height = bottom - (bottom - 20) * tenth / 10
        shapes.append(poly_line(((_EDGE, height), (right, height)), "#dddddd"))
        shapes.append(text(_EDGE - 8, height + 4, f"{tenth * 10}%", "end"))
    for number, (name, colour) in enumerate(_LINES):
        points = [at(_parts(moment, outcome)[number], moment.arrived) for moment in outcome.moments]
        x, y = _EDGE + 210 * number, _HEIGHT - 14
        shapes += [poly_line(points, colour, 2), box(x, y - 9, 12, 12, colour), text(x + 18, y + 2, name)]
    for part in (0, 1, 2, 3, 4):
        place = _EDGE + (right - _EDGE) * part / 4
        shapes.append(text(place, bottom + 18, str(most * part // 4), "middle"))
    shapes.append(text((right + _EDGE) / 2, bottom + 34, "pods that came", "middle"))
    return "\n".join([*shapes, "</svg>\n"])


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


def _parts(moment: Moment, outcome: SimulatedPod) -> tuple[float, ...]:
    gpus = outcome.total_percent / 100 or 1.0
    return (
        moment.request_percent / (outcome.total_percent or 1),
        moment.memory_bytes / (outcome.total_bytes or 1),
        moment.fragmentation.stranded_gpus / gpus,
        moment.waiting / (moment.arrived or 1),
    )


def poly_line(points: Iterable[tuple[float, float]], colour: str, width: int = 1) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" points="{places}"/>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return a line of text, of which the `anchor` (start, middle or end) is at `x`; `y` is its baseline."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'
