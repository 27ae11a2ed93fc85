"""The page's looks: golden pictures of a scripted story, widths from a phone's on, and what axe says."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops
from playwright.sync_api import Page, expect

from tests.kubectl_gpushare.conftest import ROOT
from tests.kubectl_gpushare.ui import story
from tests.kubectl_gpushare.ui.chromium import Play, Visit, tile

GOLDEN = Path(__file__).parent / "golden"
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
MAX_DIFFERENT = 0.02  # part of a picture, at a quarter of its size: fonts differ a little between machines

pytestmark = pytest.mark.slow


def different(one: Image.Image, other: Image.Image) -> float:
    """Return which part of two pictures differs clearly, at a quarter of their size."""
    if one.size != other.size:
        return 1.0
    small = [picture.convert("L").resize((picture.width // 4, picture.height // 4)) for picture in (one, other)]
    histogram = ImageChops.difference(*small).histogram()
    return sum(histogram[24:]) / sum(histogram)


def compare(page: Page, name: str) -> None:
    page.mouse.move(0, 0)
    page.wait_for_timeout(50)
    taken = Image.open(io.BytesIO(page.screenshot()))
    path = GOLDEN / f"{name}.png"
    if os.environ.get("GPUSHARE_REFRESH_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        taken.convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(path, optimize=True)
        return
    part = different(taken, Image.open(path).convert("RGB"))
    assert part < MAX_DIFFERENT, f"{part:.1%} of the picture differs from {path}"


def test_a_busy_cluster_looks_as_it_should(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address)
    expect(tile(page, "b/3")).to_be_visible()
    compare(page, "busy")


def test_a_failed_gpu_looks_as_it_should(play: Play, visit: Visit) -> None:
    page = visit(play(story.failing()).server.address, color_scheme="dark")
    expect(tile(page, "a/2")).to_contain_text("Unhealthy")
    compare(page, "failed")


def test_a_plan_looks_as_it_should(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address)
    page.locator("#map").press("p")
    expect(page.locator(".arrow").first).to_be_attached()
    compare(page, "plan")


def test_many_gpus_look_as_they_should(play: Play, visit: Visit) -> None:
    page = visit(play(story.fleet(60)).server.address)
    page.wait_for_selector(".map.is-dots")
    compare(page, "dots")


def test_a_phone_shows_the_same(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address, width=390, height=844)
    expect(tile(page, "a/0")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    compare(page, "phone")


def test_pictures_that_differ_are_told_apart() -> None:
    busy, failed = (Image.open(GOLDEN / f"{name}.png").convert("RGB") for name in ("busy", "plan"))
    assert different(busy, busy) == 0
    assert different(busy, failed) > MAX_DIFFERENT


def violations(page: Page) -> list[str]:
    """Return axe's findings, each with its elements."""
    page.evaluate(AXE.read_text())
    # A tile's name says in words what its bars draw, so it is not the text of the tile.
    options = {"resultTypes": ["violations"], "rules": {"label-content-name-mismatch": {"enabled": False}}}
    found: list[dict[str, Any]] = page.evaluate("(o) => axe.run(document, o).then((r) => r.violations)", options)
    return [f"{each['id']}: {json.dumps([node['html'][:160] for node in each['nodes'][:3]])}" for each in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(play: Play, visit: Visit, scheme: str) -> None:
    assert AXE.exists(), f"{AXE} is missing: run `make page`"
    stage = play(story.failing())
    views = ("", "#fit=0.5&tab=fit", "#tab=history", "#tab=details&sel=gpu:a/2", "#zoom=dots&group=pool")
    for fragment in views if scheme == "light" else views[:2]:  # the other scheme has other colours alone
        page = visit(stage.server.address + fragment, color_scheme=scheme, bypass_csp=True)
        if "fit" in fragment:
            expect(page.locator(".verdict")).to_be_visible()
        assert violations(page) == [], fragment
    page = visit(stage.server.address, color_scheme=scheme, bypass_csp=True)
    page.get_by_role("button", name="ml/finetune").click()
    expect(page.locator(".waiting.open .page")).to_be_visible()
    assert violations(page) == []
