"""A drawing is the same as SVG and as PNG, and a PNG is one that others can read."""

from __future__ import annotations

import struct
import zlib
from xml.etree import ElementTree

import pytest

from kubectl_gpushare.output import drawing, glyphs
from kubectl_gpushare.output.drawing import Anchor, Box, Drawing, PolyLine, Text
from kubectl_gpushare.views import simulate

RED, WHITE, BLACK = (255, 0, 0), (255, 255, 255), (0, 0, 0)


def points(content: bytes) -> list[list[tuple[int, ...]]]:
    """Rows of colours: a reader by the standard, for what we write."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        kind, body = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        assert struct.unpack(">I", content[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    width, height, *kind_of = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert kind_of == [8, 2, 0, 0, 0]
    raw = zlib.decompress(chunks[b"IDAT"])
    assert len(raw) == height * (1 + 3 * width)
    rows = [raw[row * (1 + 3 * width) + 1 : (row + 1) * (1 + 3 * width)] for row in range(height)]
    return [[tuple(row[3 * x : 3 * x + 3]) for x in range(width)] for row in rows]


def test_boxes_and_lines_are_where_they_belong() -> None:
    found = points(drawing.png(Drawing(10, 6, [Box(1, 1, 3, 2, "#ff0000"), PolyLine(((0, 5), (9, 5)), "#ff0000")])))
    assert (len(found[0]), len(found)) == (20, 12)
    assert [x for x in range(20) if found[3][x] == RED] == [2, 3, 4, 5, 6, 7]
    assert found[0] == [WHITE] * 20
    assert found[10].count(RED) > 15


@pytest.mark.parametrize(("anchor", "left"), [(Anchor.START, 20), (Anchor.MIDDLE, 14.5), (Anchor.END, 9)])
def test_words_begin_or_end_where_they_are_anchored(anchor: Anchor, left: int) -> None:
    found = points(drawing.png(Drawing(40, 12, [Text(20, 9, "08", anchor)])))
    black = [x for row in found for x, colour in enumerate(row) if colour == BLACK]
    assert abs(min(black) / 2 - left) <= 1
    assert abs(max(black) / 2 - (left + 11)) <= 1


def test_what_is_outside_of_the_page_is_cut_off() -> None:
    shapes = [
        Box(-5, -5, 100, 100, "#ff0000"),
        PolyLine(((-3, -3), (50, 50)), "#000000", 2),
        Text(8, 2, "gpq", Anchor.START),
    ]
    assert len(points(drawing.png(Drawing(10, 6, shapes)))) == 12


def test_every_character_of_a_picture_has_a_glyph() -> None:
    words = "".join(name for name, _ in simulate._LINES) + "0123456789% pods that came"
    assert set(words) <= glyphs.GLYPHS.keys()
    assert all(len(rows) == glyphs.HEIGHT for rows in glyphs.GLYPHS.values())


def test_words_are_no_markup() -> None:
    ElementTree.fromstring(drawing.svg(Drawing(9, 9, [Text(1, 1, "a<b>&")])))  # noqa: S314 - our own
