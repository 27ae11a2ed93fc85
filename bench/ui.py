"""The page of `kubectl gpushare ui` on 5,000 nodes × 8 GPUs, in Chromium without a window and without a GPU.

Measures, in a real browser at 1440 × 900: the seconds from the last byte of the data to the first picture, frames a
second while the map scrolls, as dots and as tiles, and the memory of the page's process. Also the CPU time of
Chromium for these, and the seconds until the plugin prints the address.

Prints a table, then one JSON object a line per figure. Run: `python bench/ui.py [NODES]`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import cli
from playwright.sync_api import Browser, Page, sync_playwright

from lab import prerequisites

ADDRESS_SECONDS = 120.0
SCROLL_SECONDS = 3.0
GOALS = {"first.picture": 2.0, "dots.frames": 30.0, "tiles.frames": 30.0, "memory": 300.0}
UNITS = {
    "address": "s",
    "first.picture": "s",
    "first.picture.cpu": "s",
    "dots.frames": "1/s",
    "dots.frame.cpu": "s",
    "tiles.frames": "1/s",
    "tiles.frame.cpu": "s",
    "memory": "MiB",
    "heap": "MiB",
}

# Notes when the totals have been drawn, and the frame after them is done.
FIRST_PICTURE = """
window.firstPicture = new Promise((resolve) => {
  new MutationObserver((_, observer) => {
    if (!document.querySelector(".strip")) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => {
      const data = performance.getEntriesByType("resource").find((entry) => entry.name.includes("/cluster"));
      resolve((performance.now() - data.responseEnd) / 1000);
    }));
  }).observe(document, { childList: true, subtree: true });
});
"""
# Scrolls the map for a while, by a step in each frame; returns frames a second.
SCROLL = """
([seconds, step]) => new Promise((resolve) => {
  const map = document.getElementById("map");
  map.scrollTop = 0;
  let frames = 0;
  const began = performance.now();
  const next = () => {
    frames += 1;
    map.scrollTop += step;
    if (performance.now() - began < seconds * 1000) requestAnimationFrame(next);
    else resolve(frames / ((performance.now() - began) / 1000));
  };
  requestAnimationFrame(next);
})
"""


class Served(NamedTuple):
    """A running plugin, its address, and the seconds until it printed that."""

    process: subprocess.Popen[str]
    address: str
    seconds: float


def serve(path: Path) -> Served:
    began = time.perf_counter()
    command = [sys.executable, *cli.PLUGIN, "ui", "--from", str(path), "--no-browser"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(cli.ROOT)}
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().startswith("http://"):
            return Served(process, line.strip(), time.perf_counter() - began)
    sys.exit("the plugin printed no address")


def scrolling(browser: Browser, page: Page, what: str) -> dict[str, float]:
    """Return frames a second while the map scrolls, and the CPU seconds of a frame."""
    before = cpu_seconds(browser)
    frames = float(page.evaluate(SCROLL, [SCROLL_SECONDS, 60]))
    used = (cpu_seconds(browser) - before) / (frames * SCROLL_SECONDS)
    return {f"{what}.frames": frames, f"{what}.frame.cpu": used}


def memory_mib(browser: Browser, page: Page) -> tuple[float, float]:
    """Return the private memory of the page's process, and its JavaScript heap after a collection."""
    page.context.new_cdp_session(page).send("HeapProfiler.collectGarbage")
    heap = page.context.new_cdp_session(page).send("Runtime.getHeapUsage")["usedSize"] / 2**20
    processes: list[dict[str, Any]] = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    renderers = [process["id"] for process in processes if process["type"] == "renderer"]
    private = max(sum(_kib(pid, kind) for kind in ("Private_Clean:", "Private_Dirty:")) for pid in renderers)
    return private / 1024, heap


def cpu_seconds(browser: Browser) -> float:
    """Return the CPU time of all of Chromium's processes so far; unlike time, it does not depend on other programs."""
    processes: list[dict[str, Any]] = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return float(sum(process["cpuTime"] for process in processes))


def _kib(pid: int, kind: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    prerequisites.ensure_programs("chromium")
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        path = Path(directory) / "nodes.json"
        cli.save(path, count)
        served = serve(path)
        try:
            program = prerequisites.program("chromium")
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.add_init_script(FIRST_PICTURE)
            before = cpu_seconds(browser)
            page.goto(served.address)
            figures = {"address": served.seconds, "first.picture": page.evaluate("window.firstPicture")}
            figures["first.picture.cpu"] = cpu_seconds(browser) - before
            figures |= scrolling(browser, page, "dots")
            page.locator("#map").focus()
            page.keyboard.press("z")
            page.wait_for_selector(".tile")
            figures |= scrolling(browser, page, "tiles")
            figures["memory"], figures["heap"] = memory_mib(browser, page)
            browser.close()
        finally:
            served.process.terminate()
            served.process.wait()
        size = path.stat().st_size / 1e6
    print(f"{count} nodes × {cli.GPUS} GPUs, {size:.0f} MB of GPUNodes\n")
    for name, value in figures.items():
        print(f"{name:<18}{value:>9.3f} {UNITS[name]}")
    print()
    for name, value in figures.items():
        goal = GOALS.get(name)
        figure = {"figure": f"ui.{name}", "value": round(value, 3), "unit": UNITS[name]}
        print(json.dumps({**figure, **({"against": "goal", "ratio": round(value / goal, 2)} if goal else {})}))


if __name__ == "__main__":
    main()
