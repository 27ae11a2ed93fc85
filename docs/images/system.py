"""Draws the parts of gpushare and what they say to each other, for README.md and docs/index.md.

The SVG follows the reader's light or dark theme. Text widths are estimated for DejaVu Sans, which is wider than the
fonts of most browsers, and a text that is too wide for its place is an error.

Run: `make docs`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

WIDTH, HEIGHT = 960, 626
LEFT, MIDDLE, RIGHT, COLUMN = 48, 370, 692, 220  # where the columns begin, and how wide they are
GAP = MIDDLE - LEFT - COLUMN
EM = {"title": 0.7, "text": 0.6, "code": 0.61, "label": 0.6}  # mean width of a character, in sizes of the font
SIZE = {"title": 14, "text": 13, "code": 12, "label": 12}
HEAD = 5  # half the width of an arrow's head

# class: its style in the light theme, and in the dark one
THEMES = {
    ".paper": ("fill:#ffffff", "fill:#0d1117"),
    ".band": ("fill:#f6f8fa;stroke:#d1d9e0", "fill:#151b23;stroke:#3d444d"),
    ".theirs": ("fill:#ffffff;stroke:#818b98", "fill:#212830;stroke:#656c76"),
    ".ours": ("fill:#ddf4ff;stroke:#0969da", "fill:#0c2a4d;stroke:#4493f8"),
    ".mark": ("fill:#0969da", "fill:#4493f8"),
    ".share": ("fill:#b6e3ff", "fill:#1f4f8f"),
    ".other": ("fill:#eaeef2", "fill:#2f3742"),
    ".free": ("fill:none", "fill:none"),
    ".line": ("stroke:#59636e", "stroke:#9198a1"),
    ".head": ("fill:#59636e", "fill:#9198a1"),
    ".title,.text,.code": ("fill:#1f2328", "fill:#f0f6fc"),
    ".label,.of-band": ("fill:#59636e", "fill:#9198a1"),
    ".number": ("fill:#ffffff", "fill:#0d1117"),
}
FONTS = (
    "text{font-family:-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif;font-size:13px}"
    ".title{font-size:14px;font-weight:600}.label,.of-band{font-size:12px}.number{font-size:12px;font-weight:700}"
    ".code{font-size:12px;font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".line{fill:none;stroke-width:1.5}rect{stroke-width:1.2}"
)

Point = tuple[float, float]


def picture() -> str:
    """Return the picture as SVG."""
    drawn = [
        *_band(128, 132, "Control plane"),
        *_band(324, 278, "GPU node"),
        *_legend(MIDDLE, 46, "ours", "part of gpushare"),
        *_legend(MIDDLE, 70, "theirs", "Kubernetes, and yours"),
        *_box(LEFT, 24, 64, "Your pod", 'gpushare.io/request: "0.5"', code=True),
        *_box(RIGHT, 24, 64, "kubectl gpushare", "top, why, fit, describe …", number=4),
        *_box(LEFT, 164, 72, "API server"),
        *_box(MIDDLE, 164, 72, "Webhook", "picks node and GPU", number=1),
        *_box(RIGHT, 164, 72, "GPUNodes", "ledger: who holds what", ours=True),
        *_box(LEFT, 382, 56, "kubelet"),
        *_box(MIDDLE, 360, 124, "Agent", number=2),
        *_inner(MIDDLE, 394, "device plugin"),
        *_inner(MIDDLE, 438, "arbiter"),
        *_box(RIGHT, 360, 124, "Container"),
        *_inner(RIGHT, 394, "your program", ours=False),
        *_inner(RIGHT, 438, "preloaded library", number=3),
        *_gpu(530, 48),
        *_arrow([(LEFT + 110, 88), (LEFT + 110, 164)], "create", (LEFT + 120, 112)),
        *_arrow([(RIGHT + 110, 88), (RIGHT + 110, 164)], "read", (RIGHT + 120, 112)),
        *_across(LEFT, 184, "review"),
        *_across(LEFT, 218, "pinned pod", back=True),
        *_across(MIDDLE, 200, "reserve"),
        *_arrow([(LEFT + 110, 236), (LEFT + 110, 382)], "bound to that node", (LEFT + 120, 296)),
        *_across(LEFT, 410, "Allocate", inner=(0, 12)),
        *_across(MIDDLE, 410, "mount", inner=(12, 0)),
        *_across(MIDDLE, 454, "limits, turns", inner=(12, 12), back=True, forth=True),
        *_arrow([(MIDDLE + 110, 360), (MIDDLE + 110, 300), (RIGHT + 110, 300), (RIGHT + 110, 236)]),
        *_text(
            "label", (MIDDLE + RIGHT) / 2 + 110, 292, "report the GPUs and their health", within=260, anchor="middle"
        ),
        *_arrow([(RIGHT + 110, 470), (RIGHT + 110, 530)]),
        *_text("label", RIGHT + 100, 514, "kernels, in its turn", within=180, anchor="end"),
    ]
    return "\n".join([*_head(), *drawn, "</svg>"]) + "\n"


def _head() -> list[str]:
    light = "".join(f"{name}{{{light}}}" for name, (light, _) in THEMES.items())
    dark = "".join(f"{name}{{{dark}}}" for name, (_, dark) in THEMES.items())
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<title>How a pod gets its share of a GPU: webhook, agent, preloaded library and kubectl gpushare</title>",
        f"<style>{FONTS}{light}@media (prefers-color-scheme:dark){{{dark}}}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
    ]


def _band(top: float, height: float, name: str) -> list[str]:
    x = LEFT - 24
    return [
        f'<rect class="band" x="{x}" y="{top}" width="{WIDTH - 2 * x}" height="{height}" rx="8"/>',
        *_text("of-band", x + 12, top + 20, name, within=120),
    ]


def _legend(x: float, y: float, kind: str, text: str) -> list[str]:
    return [
        f'<rect class="{kind}" x="{x + 30}" y="{y - 10}" width="16" height="12" rx="3"/>',
        *_text("label", x + 56, y, text, within=COLUMN - 56),
    ]


def _box(
    x: float,
    y: float,
    height: float,
    title: str,
    text: str = "",
    *,
    number: int = 0,
    ours: bool = False,
    code: bool = False,
) -> list[str]:
    """Return a part of the system; those with a number are gpushare's."""
    kind = "ours" if ours or number else "theirs"
    line = y + (24 if text or height > 100 else height / 2 + 5)
    return [
        f'<rect class="{kind}" x="{x}" y="{y}" width="{COLUMN}" height="{height}" rx="6"/>',
        *_text("title", x + COLUMN / 2, line, title, within=COLUMN - 60, anchor="middle"),
        *(
            _text("code" if code else "text", x + COLUMN / 2, line + 24, text, within=COLUMN - 16, anchor="middle")
            if text
            else ()
        ),
        *(_number(x + 20, y + 19, number) if number else ()),
    ]


def _inner(x: float, y: float, text: str, *, ours: bool = True, number: int = 0) -> list[str]:
    """Return a part of a part."""
    kind = "ours" if ours else "theirs"
    return [
        f'<rect class="{kind}" x="{x + 12}" y="{y}" width="{COLUMN - 24}" height="32" rx="4"/>',
        *_text("text", x + COLUMN / 2, y + 21, text, within=COLUMN - 80, anchor="middle"),
        *(_number(x + 30, y + 16, number) if number else ()),
    ]


def _gpu(y: float, height: float) -> list[str]:
    """Return a GPU as a bar of which each share has its part."""
    whole, left = WIDTH - 2 * LEFT, float(LEFT)
    drawn = []
    for kind, part, text in (("free", 0.2, "free"), ("other", 0.3, "a notebook: 0.3"), ("share", 0.5, "your pod: 0.5")):
        drawn += [
            f'<rect class="{kind}" x="{left:g}" y="{y}" width="{part * whole:g}" height="{height}"/>',
            *_text("text", left + part * whole / 2, y + 29, text, within=part * whole, anchor="middle"),
        ]
        left += part * whole
    return [
        *_text("label", LEFT, y - 8, "One GPU, its compute and its memory", within=300),
        *drawn,
        f'<rect class="line" x="{LEFT}" y="{y}" width="{whole}" height="{height}" rx="4"/>',
    ]


def _across(
    x: float, y: float, label: str, *, inner: Point = (0, 0), back: bool = False, forth: bool = False
) -> list[str]:
    """Return an arrow from a column to the next, with its label on top; `inner`: how far it goes into both boxes."""
    path: list[Point] = [(x + COLUMN - inner[0], y), (x + COLUMN + GAP + inner[1], y)]
    drawn = _arrow(path[::-1] if back else path)
    if back and forth:
        drawn += _tip(*path)
    return [*drawn, *_text("label", x + COLUMN + GAP / 2, y - 7, label, within=GAP, anchor="middle")]


def _arrow(points: Sequence[Point], label: str = "", place: Point = (0, 0)) -> list[str]:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    drawn = [f'<polyline class="line" points="{path}"/>', *_tip(points[-2], points[-1])]
    return [*drawn, *_text("label", *place, label, within=180)] if label else drawn


def _tip(before: Point, end: Point) -> list[str]:
    (x, y), (dx, dy) = end, (end[0] - before[0], end[1] - before[1])
    length = abs(dx) + abs(dy)  # one of them is 0
    ux, uy = dx / length, dy / length
    corners = [(x, y), *((x - 9 * ux + side * uy, y - 9 * uy + side * ux) for side in (HEAD, -HEAD))]
    return [f'<polygon class="head" points="{" ".join(f"{a:g},{b:g}" for a, b in corners)}"/>']


def _number(x: float, y: float, number: int) -> list[str]:
    return [
        f'<circle class="mark" cx="{x}" cy="{y}" r="9.5"/>',
        f'<text class="number" x="{x}" y="{y + 4.3:g}" text-anchor="middle">{number}</text>',
    ]


def _text(kind: str, x: float, y: float, text: str, *, within: float, anchor: str = "start") -> list[str]:
    size = "label" if kind == "of-band" else kind
    if len(text) * EM[size] * SIZE[size] > within:
        raise ValueError(f"{text!r} has no room in {within:g} pixels: shorten it")
    return [f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(text, quote=False)}</text>']
