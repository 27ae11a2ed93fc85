"""Draws `top -i` on the believable cluster, with a GPU opened and a pod selected."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator

from rich.color import ColorSystem
from textual.strip import Strip

from docs.images import believable
from kubectl_gpushare import options
from kubectl_gpushare.commands import top
from kubectl_gpushare.interactive.tree_actions import TreeActions
from kubectl_gpushare.interactive.tree_app import TreeApp
from kubectl_gpushare.interactive.tree_reader import TreeReader
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.source import live_cluster

_KEYS = ("down", "down", "down", "down", "down", "right", "down")  # to the first pod of gpu-1/2


def lines(columns: int, rows: int) -> list[str]:
    """Return the screen with escape sequences; kubectl is the one of KUBECTL_PATH."""
    chosen = options.Options()
    origin = live_cluster.LiveCluster(chosen.kubectl())
    reader = TreeReader(origin, top.Maker("gpus", (), chosen, origin, None).snapshot)
    tree = dataclasses.replace(reader.tree(origin.gpu_nodes()), now=believable.NOW)
    app = TreeApp(tree, TreeActions(origin, chosen), Terminal(colours=True))

    async def session() -> list[Strip]:
        async with app.run_test(size=(columns, rows)) as pilot:
            await pilot.press(*_KEYS)
            await pilot.pause()
            return app.screen._compositor.render_strips()

    kept = os.environ.pop("NO_COLOR", None)
    try:
        strips = asyncio.run(session())
    finally:
        if kept is not None:
            os.environ["NO_COLOR"] = kept
    return ["".join(_ansi(strip)).rstrip() for strip in strips]


def _ansi(strip: Strip) -> Iterator[str]:
    for segment in strip:
        style = segment.style
        yield segment.text if style is None else style.render(segment.text, color_system=ColorSystem.STANDARD)
