"""Drawing: lines, boxes and words on a white page, written as SVG."""

from __future__ import annotations

import dataclasses
import enum
import html
from collections.abc import Sequence


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
    """Return the drawing as SVG."""
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
