"""Clusters that the page has to show as they are: unknown, lent, forbidden, hostile, empty, large, saved."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from gpushare.gpunode import Resize
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.ui import saved_page
from kubectl_gpushare.ui.page_model import Scene
from kubectl_gpushare.views import gpu_summary
from tests.kubectl_gpushare.conftest import Plugin
from tests.kubectl_gpushare.sample import GIB
from tests.kubectl_gpushare.ui import story
from tests.kubectl_gpushare.ui.chromium import Play, Visit, tile

pytestmark = pytest.mark.slow


def test_idle_and_unknown_are_told_apart(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address)
    expect(page.locator("button.figure.warn")).to_contain_text("0.2")
    expect(tile(page, "a/0")).to_contain_text("1 idle")
    dark = visit(play(story.fleet(2)).server.address)
    expect(dark.locator(".strip")).to_contain_text("n/a because agents were not asked")


def test_lent_memory_is_drawn_and_not_free(play: Play, visit: Visit) -> None:
    scene = story.busy()
    first, second = scene.snapshot.nodes
    entry = next(entry for entry in first.allocations if str(entry.pod) == "web/search")
    share = dataclasses.replace(entry.shares[0], memory_limit_bytes=60 * GIB)
    entries = (*(each for each in first.allocations if each is not entry), dataclasses.replace(entry, shares=(share,)))
    lender = dataclasses.replace(first, allocations=entries, resizes=(Resize(entry.id, 0, 54 * GIB, 0),))
    snapshot = dataclasses.replace(scene.snapshot, nodes=(lender, second))
    page = visit(play(dataclasses.replace(scene, snapshot=snapshot)).server.address)
    lent, hole = tile(page, "a/3").locator(".memory .lent"), tile(page, "a/3").locator(".memory .hole")
    assert lent.evaluate("(each) => [each.style.left, each.style.width]") == ["55%", "12.5%"]
    assert hole.evaluate("(each) => [each.style.left, each.style.width]") == ["67.5%", "32.5%"]
    expect(tile(page, "a/3").locator(".memory .limit")).to_have_count(1)
    expect(tile(page, "a/3")).to_contain_text("54/80Gi")
    expect(tile(page, "a/3")).to_have_attribute("aria-label", re.compile("10Gi of it is lent.*lent 10Gi, limit 60Gi"))


def test_an_empty_gpu_that_takes_nothing_says_why(play: Play, visit: Visit) -> None:
    scene = story.busy()
    empty = story.node("c")
    gpus = (dataclasses.replace(empty.gpus[0], owner="other", unowned=True), *empty.gpus[1:])
    nodes = (*scene.snapshot.nodes, dataclasses.replace(empty, gpus=gpus))
    page = visit(
        play(dataclasses.replace(scene, snapshot=dataclasses.replace(scene.snapshot, nodes=nodes))).server.address
    )
    expect(tile(page, "c/0").locator(".says")).to_have_text(re.compile("belongs to another device plugin"))
    expect(tile(page, "c/0")).to_have_attribute("aria-label", re.compile("fits nothing new: belongs to another"))
    expect(page.get_by_role("button", name="Full 1", exact=True)).to_be_visible()


def test_an_empty_map_says_why(play: Play, visit: Visit) -> None:
    page = visit(play(Scene(Snapshot(()), story.NOW, "new", is_live=True)).server.address)
    expect(page.locator(".nothing")).to_have_text(gpu_summary.NO_NODES)
    page = visit(play(story.busy()).server.address)
    expect(page.locator(".nothing")).to_be_hidden()
    page.locator("#search").fill("no such thing")
    expect(page.locator(".nothing")).to_contain_text("No GPU matches")


def test_no_rights_to_pods_leave_the_rest(play: Play, visit: Visit) -> None:
    note = "what pods take of their nodes: user eve may not list pods"
    scene = story.busy()
    scene = dataclasses.replace(scene, snapshot=Snapshot(scene.snapshot.nodes, notes=(note,)))
    page = visit(play(scene).server.address)
    expect(page.locator(".body")).to_contain_text("The queue is n/a, because user eve may not list pods")
    expect(page.locator(".tile")).to_have_count(8)


def test_hostile_names_are_text(play: Play, visit: Visit, tmp_path: Path) -> None:
    page = visit(play(story.hostile()).server.address)
    page.locator(".tile").nth(1).click()
    page.locator("#map").press("j")
    page.locator("#map").press("h")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert "\u202e" not in page.evaluate("document.body.textContent")
    assert "onerror" in page.evaluate("document.body.textContent")


def test_five_thousand_nodes_are_dots_that_become_tiles(play: Play, visit: Visit) -> None:
    stage = play(story.fleet(5000))
    page = visit(stage.server.address)
    page.wait_for_selector(".map.is-dots")
    assert page.evaluate("document.querySelectorAll('*').length") < 1000
    page.locator("#search").fill("gpu-node-4321/5")
    expect(page.get_by_role("button", name="All 1", exact=True)).to_be_visible()
    page.locator("#map").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("z")
    expect(tile(page, "gpu-node-4321/5")).to_be_visible()
    page.locator("#search").fill("")
    expect(page.get_by_role("button", name="All 40,000", exact=True)).to_be_visible()
    page.evaluate("document.getElementById('map').scrollTop = 600000")
    expect(page.locator(".tile").first).to_be_visible()
    assert page.locator(".tile").count() < 200
    page.wait_for_url(re.compile("at=gpu-node-"))


@pytest.mark.parametrize("zoom", ["tiles", "dots"])
def test_a_phone_draws_no_more_than_it_shows(play: Play, visit: Visit, zoom: str) -> None:
    page = visit(play(story.fleet(60)).server.address + f"#zoom={zoom}", width=390, height=844)
    page.locator("#map").evaluate("(map) => { map.scrollTop = map.scrollHeight; }")
    drawn = page.locator(".tile").last if zoom == "tiles" else page.locator("canvas")
    expect(drawn).to_be_visible()
    assert page.locator(".tile").count() < 60
    assert page.locator("#map").evaluate("(map) => map.clientHeight <= 0.75 * innerHeight")
    assert page.locator("canvas").evaluate(
        "(dots) => dots.hidden || dots.clientHeight === dots.parentElement.clientHeight"
    )


def test_a_saved_page_works_without_a_server(plugin: Plugin, visit: Visit, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert plugin("ui", "--from", saved, "--export", path).code == 0
    page = visit(path.as_uri())
    expect(page.locator(".tile")).to_have_count(13)
    page.get_by_role("button", name="ml/waiting").click()
    expect(tile(page, "gpu-1/3")).to_contain_text("fits here now")
    page.locator("#request").fill("0.5")
    expect(page.locator(".fit-answer")).to_have_text("3 fit")
    page.locator("#request").fill("0.33")
    page.locator("#tab-fit").click()
    expect(page.locator(".error")).to_contain_text("n/a, because this is a saved page")
    assert saved_page.page() not in path.read_text()
