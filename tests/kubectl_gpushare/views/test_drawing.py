"""Drawn shapes are valid SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from kubectl_gpushare.views import simulate


def test_each_shape_is_an_svg_element_at_its_position() -> None:
    shapes = (
        simulate.box(1, 2, 3, 4, "#ff0000"),
        simulate.poly_line(((0, 5), (9, 5)), "#00ff00", 2),
        simulate.text(8, 2, "gpq", "end"),
    )
    box, line, text = map(ElementTree.fromstring, shapes)
    assert [box.attrib[key] for key in ("x", "y", "width", "height", "fill")] == ["1.0", "2.0", "3.0", "4.0", "#ff0000"]
    assert (line.attrib["points"], line.attrib["stroke-width"]) == ("0.0,5.0 9.0,5.0", "2")
    assert (text.attrib["text-anchor"], text.text) == ("end", "gpq")


def test_text_is_escaped() -> None:
    assert ElementTree.fromstring(simulate.text(1, 1, "a<b>&")).text == "a<b>&"  # noqa: S314 - our own
