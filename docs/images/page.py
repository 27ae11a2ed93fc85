"""Takes the screenshot of the page of `kubectl gpushare ui`: the believable cluster, in the distribution's Chromium.

Run: `make pictures`.
"""

from __future__ import annotations

import dataclasses
import io
import os
import sys
import tempfile
import time
from pathlib import Path

import believable
from PIL import Image
from playwright.sync_api import sync_playwright

from kubectl_gpushare import options
from kubectl_gpushare.source import chosen_source, live_cluster
from kubectl_gpushare.ui import cluster_follower, page_answers, page_history, page_server, page_state
from lab import prerequisites

_SIZE = {"width": 1280, "height": 620}


def main(folder: str) -> None:
    """Write ui.png: a waiting pod is chosen, and the GPU that nearly fits is lit up."""
    time.time = lambda: believable.NOW
    prerequisites.ensure_programs("chromium")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["KUBECTL_PATH"] = str(believable.kubectl(Path(scratch)))
        chosen = options.Options()
        origin = chosen_source.from_options(chosen)
        assert isinstance(origin, live_cluster.LiveCluster)  # noqa: S101 - no file was named
        scene = dataclasses.replace(cluster_follower.ClusterFollower(origin, chosen, None).scene, cluster="prod")
        state = page_state.PageState(page_history.before(scene.snapshot, [], scene.at))
        state.publish(scene)
        server = page_server.PageServer(state, page_answers.PageAnswers(origin, chosen, lambda: scene))
        with sync_playwright() as playwright:
            program = prerequisites.program("chromium")
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            context = browser.new_context(viewport=_SIZE, device_scale_factor=1.5, timezone_id="UTC", locale="en-GB")
            page = context.new_page()
            page.goto(server.address)
            page.get_by_role("button", name=f"ml/{believable.WAITS}").click()
            page.wait_for_selector(".tile.lit")
            page.wait_for_selector(".waiting.open .page")
            page.mouse.move(0, 0)
            taken = Image.open(io.BytesIO(page.screenshot()))
            browser.close()
        state.close()
        server.close()
    taken.convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(Path(folder) / "ui.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
