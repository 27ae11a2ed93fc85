"""A drawing is valid SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from kubectl_gpushare.views.simulate import Anchor, Box, Drawing, PolyLine, Text, svg


def test_each_shape_is_an_svg_element_at_its_position() -> None:
    shapes = [Box(1, 2, 3, 4, "#ff0000"), PolyLine(((0, 5), (9, 5)), "#00ff00", 2), Text(8, 2, "gpq", Anchor.END)]
    page = ElementTree.fromstring(svg(Drawing(10, 6, shapes)))  # noqa: S314 - our own
    assert page.attrib["viewBox"] == "0 0 10 6"
    _, box, line, text = page
    assert [box.attrib[key] for key in ("x", "y", "width", "height", "fill")] == ["1.0", "2.0", "3.0", "4.0", "#ff0000"]
    assert (line.attrib["points"], line.attrib["stroke-width"]) == ("0.0,5.0 9.0,5.0", "2")
    assert (text.attrib["text-anchor"], text.text) == ("end", "gpq")


def test_text_is_escaped() -> None:
    page = ElementTree.fromstring(svg(Drawing(9, 9, [Text(1, 1, "a<b>&")])))  # noqa: S314 - our own
    assert page[-1].text == "a<b>&"
