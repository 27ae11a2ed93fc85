"""Draws which folders import which: all packages, and the agent's folders.

A folder is one floor above the highest folder that it imports. An arrow that follows from others is left out, and
folders that import each other, which no rule allows, get a red line.

Run: `make docs`.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import grimp

from docs.images import system

PACKAGES: Final = ("webhook", "deviceplugin", "kubectl_gpushare", "gpushare")
WIDTH: Final = 960
FLOOR: Final = 84  # pixels from one floor to the next
HEIGHT: Final = 32
GAP: Final = 16

Graph = Mapping[str, frozenset[str]]


def house() -> str:
    """Return the picture of all packages, with `gpushare` as its two folders with I/O, and the domain."""

    def folder(module: str) -> str:
        parts = module.split(".")
        if parts[0] != "gpushare":
            return parts[0]
        return ".".join(parts[:2]) if parts[1:2] in (["cluster"], ["daemon"]) else "gpushare (domain)"

    return picture("The packages of gpushare, and which of them import which", imports(PACKAGES, folder))


def agent() -> str:
    """Return the picture of the agent's folders, and of the modules next to them."""

    def folder(module: str) -> str:
        return module.partition(".")[2].partition(".")[0]

    return picture("The folders of the agent, and which of them import which", imports(("deviceplugin",), folder))


def imports(packages: Iterable[str], folder: Callable[[str], str]) -> Graph:
    """Return what each folder imports directly. folder: the folder of a module; "" leaves the module out."""
    first, *others = packages
    graph = grimp.build_graph(first, *others, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        if here := folder(module):
            there = {folder(name) for name in graph.find_modules_directly_imported_by(module)}
            found.setdefault(here, set()).update(there - {here, ""})
    return {name: frozenset(there) for name, there in found.items()}


def floors(graph: Graph) -> list[list[str]]:
    """Return the folders floor by floor, the lowest first; folders that import each other share one."""
    reached = _reached(graph)
    levels: dict[str, int] = {}
    for name in sorted(graph, key=lambda name: len(reached[name])):
        circle = {other for other in reached[name] if name in reached[other]}
        levels[name] = 1 + max((levels.get(other, 0) for other in reached[name] - circle), default=-1)
    return [sorted(name for name in graph if levels[name] == level) for level in range(max(levels.values()) + 1)]


def picture(title: str, graph: Graph) -> str:
    """Return the picture as SVG."""
    rows = floors(graph)
    places = _places(rows)
    height = len(rows) * FLOOR + HEIGHT
    reached = _reached(graph)
    lines = []
    for name, there in sorted(graph.items()):
        for other in sorted(there):
            if name in reached[other]:
                lines.append(_line("wrong", places[name], places[other]))
            elif not any(other in reached[between] for between in there - {other}):
                lines.append(_line("line", places[name], places[other]))
    light = "".join(f"{name}{{{light}}}" for name, (light, _) in system.THEMES.items())
    dark = "".join(f"{name}{{{dark}}}" for name, (_, dark) in system.THEMES.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}">',
            f"<title>{html.escape(title)}</title>",
            f"<style>{system.FONTS}.wrong{{stroke:#cf222e;stroke-width:3}}{light}"
            f"@media (prefers-color-scheme:dark){{{dark}}}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
            *lines,
            *itertools.chain.from_iterable(_box(name, *place) for name, place in sorted(places.items())),
            "</svg>\n",
        ]
    )


def _reached(graph: Graph) -> dict[str, set[str]]:
    """Return all folders that each folder imports, directly or not."""
    reached = {name: set(there) for name, there in graph.items()}
    for _ in graph:
        for there in reached.values():
            there.update(*(reached[other] for other in list(there)))
    return reached


def _places(rows: list[list[str]]) -> dict[str, tuple[float, float, float]]:
    """Return where each box is: its left edge, its upper edge and its width."""
    places = {}
    for level, row in enumerate(rows):
        widths = [max(64.0, len(name) * system.EM["code"] * system.SIZE["code"] + GAP) for name in row]
        space = (WIDTH - sum(widths)) / (len(row) + 1)
        left = space
        for name, width in zip(row, widths, strict=True):
            places[name] = left, (len(rows) - level - 1) * FLOOR + FLOOR / 2, width
            left += width + space
    return places


def _box(name: str, x: float, y: float, width: float) -> list[str]:
    return [
        f'<rect class="ours" x="{x:.0f}" y="{y:g}" width="{width:.0f}" height="{HEIGHT}" rx="6"/>',
        f'<text class="code" x="{x + width / 2:.0f}" y="{y + 20:g}" text-anchor="middle">{html.escape(name)}</text>',
    ]


def _line(kind: str, start: tuple[float, float, float], end: tuple[float, float, float]) -> str:
    ends = {"x1": start[0] + start[2] / 2, "y1": start[1] + HEIGHT, "x2": end[0] + end[2] / 2, "y2": end[1]}
    attributes = " ".join(f'{name}="{value:.0f}"' for name, value in ends.items())
    return f'<line class="{kind}" {attributes}/>'
