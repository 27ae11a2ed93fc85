"""Drawing: lines, boxes and words on a white page, written as SVG or as PNG."""

from __future__ import annotations

import dataclasses
import enum
import html
import struct
import zlib
from collections.abc import Iterator, Sequence

from kubectl_gpushare.output import glyphs

_SCALE = 2  # points of a PNG for each of the drawing
_WHITE, _BLACK = b"\xff\xff\xff", b"\x00\x00\x00"
_BETWEEN = 1  # columns of a glyph's points between two


class Anchor(enum.StrEnum):
    """Which end of a text is at its place."""

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
    """On one line, which stands at `y`."""

    x: float
    y: float
    text: str
    anchor: Anchor = Anchor.START


@dataclasses.dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes, the later ones above the earlier."""

    width: int
    height: int
    shapes: Sequence[PolyLine | Box | Text]


def svg(drawing: Drawing) -> str:
    """The drawing as SVG."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.width} {drawing.height}" '
    head += 'font-family="sans-serif" font-size="12">'
    page = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, page, *map(_element, drawing.shapes), "</svg>\n"])


def png(drawing: Drawing) -> bytes:
    """The drawing as PNG, twice as large."""
    page = _Page(drawing.width * _SCALE, drawing.height * _SCALE)
    for shape in drawing.shapes:
        page.draw(shape)
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunks(page))


def _element(shape: PolyLine | Box | Text) -> str:
    if isinstance(shape, PolyLine):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return f'<polyline fill="none" stroke="{shape.colour}" stroke-width="{shape.width}" points="{points}"/>'
    if isinstance(shape, Box):
        place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
        return f'<rect {place} fill="{shape.colour}"/>'
    words = html.escape(shape.text)
    return f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor.value}">{words}</text>'


class _Page:
    """Points in rows, three bytes each."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.rows = [bytearray(_WHITE * width) for _ in range(height)]

    def draw(self, shape: PolyLine | Box | Text) -> None:
        if isinstance(shape, Box):
            self._fill(shape.x, shape.y, shape.width, shape.height, bytes.fromhex(shape.colour[1:]))
        elif isinstance(shape, PolyLine):
            for one, other in zip(shape.points, shape.points[1:], strict=False):
                self._line(one, other, shape.width, bytes.fromhex(shape.colour[1:]))
        else:
            self._words(shape)

    def _fill(self, x: float, y: float, width: float, height: float, colour: bytes) -> None:
        left, top = max(0, round(x * _SCALE)), max(0, round(y * _SCALE))
        right = min(self.width, round((x + width) * _SCALE))
        for row in self.rows[top : max(0, round((y + height) * _SCALE))] if left < right else ():
            row[left * 3 : right * 3] = colour * (right - left)

    def _line(self, one: tuple[float, float], other: tuple[float, float], width: int, colour: bytes) -> None:
        steps = max(1, round(max(abs(other[0] - one[0]), abs(other[1] - one[1])) * _SCALE))
        for step in range(steps + 1):
            x, y = (start + (end - start) * step / steps - width / 2 for start, end in zip(one, other, strict=True))
            self._fill(x, y, width, width, colour)

    def _words(self, shape: Text) -> None:
        advance = glyphs.WIDTH + _BETWEEN
        length = advance * len(shape.text) - _BETWEEN
        left = shape.x - {Anchor.START: 0, Anchor.MIDDLE: length / 2, Anchor.END: length}[shape.anchor]
        for number, character in enumerate(shape.text):
            for down, bits in enumerate(glyphs.GLYPHS.get(character, glyphs.UNKNOWN)):
                for along in range(glyphs.WIDTH):
                    if bits >> (glyphs.WIDTH - 1 - along) & 1:
                        self._fill(left + number * advance + along, shape.y - 7 + down, 1, 1, _BLACK)


def _chunks(page: _Page) -> Iterator[bytes]:
    header = struct.pack(">IIBBBBB", page.width, len(page.rows), 8, 2, 0, 0, 0)  # 8 bits each of red, green, blue
    points = zlib.compress(b"".join(b"\0" + row for row in page.rows))
    for kind, content in ((b"IHDR", header), (b"IDAT", points), (b"IEND", b"")):
        yield struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
