"""The page in a real Chromium: what it shows of a scripted story, by mouse, by keys, and for a screen reader."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops
from playwright.sync_api import Page, expect

from gpushare.gpunode import Resize
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.ui import page_server, saved_page
from kubectl_gpushare.ui.page_state import PageState
from tests.kubectl_gpushare.conftest import ROOT, Plugin
from tests.kubectl_gpushare.sample import GIB
from tests.kubectl_gpushare.ui import story
from tests.kubectl_gpushare.ui.conftest import MILLISECONDS, Visit

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden"
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
MAX_DIFFERENT = 0.02  # part of a picture, at a quarter of its size: fonts differ a little between machines
Play = Callable[[Any], story.Stage]


@pytest.fixture(autouse=True)
def _patience() -> None:
    expect.set_options(timeout=MILLISECONDS)


def tile(page: Page, name: str) -> Any:
    return page.locator(f'[data-gpu="{name}"]')


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


def test_a_waiting_pod_lights_up_the_gpu_that_nearly_fits(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address)
    page.get_by_role("button", name="ml/finetune").click()
    expect(page.locator(".tile.lit").first).to_contain_text("has")
    expect(page.get_by_text("kubectl gpushare why finetune -n ml")).to_be_visible()
    expect(page.locator(".waiting.open .page")).to_contain_text("Candidates")
    page.get_by_role("button", name="Plan moves that make room for it").click()
    expect(page.get_by_text("kubectl gpushare defrag finetune -n ml --apply")).to_be_visible()


def test_the_plan_shows_the_gpus_before_and_after(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address)
    page.locator("#map").press("p")
    expect(page.locator(".arrow").first).to_be_attached()
    assert page.locator('.tile [data-pod="ml/finetune"]').count() == 0
    page.get_by_role("button", name="After").click()
    expect(page.locator('.tile .compute [data-pod="ml/finetune"]')).to_have_count(1)
    page.get_by_role("button", name="Before").click()
    expect(page.locator('.tile [data-pod="ml/finetune"]')).to_have_count(0)


def test_commands_are_copied_and_never_run(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address, permissions=["clipboard-read", "clipboard-write"])
    tile(page, "a/0").click()
    page.get_by_role("button", name="Copy: kubectl gpushare describe gpu a/0").click()
    expect(page.get_by_role("button", name="Copy: kubectl gpushare describe gpu a/0")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "kubectl gpushare describe gpu a/0"


def test_a_gpu_a_pod_and_a_node_are_described(play: Play, visit: Visit) -> None:
    page = visit(play(story.failing()).server.address)
    tile(page, "a/2").click()
    expect(page.locator(".body")).to_contain_text("XID 79: the GPU has fallen off the bus")
    page.locator(".links").get_by_text("web/chat").click()
    expect(page.locator(".body")).to_contain_text("Why there")
    expect(tile(page, "a/2").locator(".mine")).to_have_count(2)
    page.get_by_role("option", name="node b:").click()
    expect(page.locator(".body")).to_contain_text("describe node b")


def test_a_typed_request_marks_the_gpus_that_it_fits(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address)
    page.keyboard.press("f")
    page.keyboard.type("0.5 + 30Gi")
    page.keyboard.press("Enter")
    expect(page.locator(".verdict")).to_contain_text("It fits, on")
    expect(page.locator(".tile.fits")).to_have_count(4)
    expect(page.locator(".tile.best")).to_have_count(1)
    expect(tile(page, "b/0")).to_have_class("tile unfit")
    page.locator("#request").fill("9")
    expect(page.locator(".error")).to_contain_text("is more than one GPU")


def test_a_dragged_request_says_why_not(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address + "#fit=0.5+%2B+30Gi")
    expect(page.locator(".tile.fits").first).to_be_visible()
    page.locator(".brick").hover()
    page.mouse.down()
    tile(page, "b/2").hover()
    expect(page.locator(".ghost.no")).to_contain_text("b/2 has 0.25 of its compute free")
    page.mouse.up()
    expect(tile(page, "b/2")).to_contain_text("has 0.25 of its compute free")


def test_the_story_is_followed(play: Play, visit: Visit) -> None:
    stage = play(story.busy())
    page = visit(stage.server.address)
    expect(page.locator("#tab-queue .badge")).to_have_text("1")
    stage.show(story.failing())
    expect(tile(page, "a/2")).to_contain_text("Unhealthy")
    expect(page.locator("button.figure.bad")).to_contain_text("1")
    stage.show(story.drained())
    expect(page.get_by_text("No pod waits for a GPU.")).to_be_visible()
    expect(tile(page, "b/0")).to_contain_text("fits 0.2 + 20Gi")
    page.locator("#map").press("h")
    expect(page.locator(".changes")).to_contain_text("ml/finetune")
    assert page.locator(".changes .kind").all_inner_texts() == ["Arrived", "Left", "GpuUnhealthy"]
    page.locator("#moment").focus()
    page.keyboard.press("Home")
    expect(page.locator("output")).to_contain_text("used n/a, because the page was not open")


def again(stage: story.Stage, page: Page) -> None:
    """Publish the same state once more, and wait until the page shows its time."""
    stage.show(dataclasses.replace(stage.scene, at=stage.scene.at + 5))
    clock = re.compile(f"live, .*{int(stage.scene.at) % 60:02}$")
    expect(page.locator(".state")).to_have_text(clock)


def test_a_live_page_keeps_what_is_read(play: Play, visit: Visit) -> None:
    stage = play(story.busy())
    page = visit(stage.server.address, height=420)
    page.locator("#map").press("p")
    page.get_by_role("button", name="After").click()
    plan = page.locator(".body").inner_text()
    again(stage, page)
    assert page.locator(".body").inner_text() == plan
    assert page.get_by_role("button", name="After").get_attribute("aria-pressed") == "true"
    tile(page, "a/0").click()
    expect(page.locator(".body .page")).to_be_visible()
    page.locator(".body .copy").focus()
    page.locator(".body").evaluate("(body) => { body.scrollTop = 90; body.firstElementChild.kept = true; }")
    again(stage, page)
    assert page.locator(".body").evaluate("(body) => [body.scrollTop, body.firstElementChild.kept]") == [90, True]
    assert "copy" in page.evaluate("document.activeElement.className")
    stage.show(story.failing())
    expect(tile(page, "a/2")).to_contain_text("Unhealthy")
    page.locator("#tab-plan").click()
    expect(page.locator(".body")).to_contain_text("plan again to see it over the map")
    assert page.locator(".arrow").count() == 0


def test_the_token_leaves_the_address_and_a_reload_works(play: Play, visit: Visit) -> None:
    stage = play(story.busy())
    page = visit(stage.server.address)
    assert "token" not in page.url
    page.reload()
    expect(tile(page, "a/0")).to_be_visible()
    other = page.context.new_page()  # has no token
    other.goto(page.url)
    expect(other.locator(".alerts .bad")).to_contain_text("has ended or was started again")


def test_a_hidden_tab_gives_its_connection_back(play: Play, visit: Visit) -> None:
    stage = play(story.busy())
    page = visit(stage.server.address)
    hidden = "(is) => { Object.defineProperty(document, 'hidden', {value: is, configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hidden, True)
    stage.show(story.failing())
    page.evaluate("fetch('/')")  # a round trip, in which the change would have arrived
    assert "Unhealthy" not in tile(page, "a/2").inner_text()
    page.evaluate(hidden, False)
    expect(tile(page, "a/2")).to_contain_text("Unhealthy")


def test_keys_reach_everything(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#map")).to_have_attribute("aria-activedescendant", "gpu-b%2F0")
    page.keyboard.press("Enter")
    expect(page.locator(".body")).to_contain_text("kubectl gpushare describe gpu b/0")
    page.locator("#map").press("n")
    expect(page.locator(".body")).to_contain_text("kubectl gpushare describe node b")
    page.keyboard.press("j")
    expect(page.locator(".waiting.open")).to_have_count(1)
    page.keyboard.press("g")
    expect(page.get_by_text("pool-a")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("web/ ra")
    expect(page.locator(".tile")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator(".tile")).to_have_count(8)
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("describe the GPU under the cursor")
    page.keyboard.press("Escape")
    page.keyboard.press("z")
    expect(page.locator(".map")).to_have_class("map is-dots")


def test_the_address_keeps_what_was_chosen(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address)
    page.get_by_role("button", name="Held, idle 1", exact=True).click()
    page.get_by_role("button", name="model", exact=True).click()
    page.locator("#namespace").select_option("ml")
    expect(page.locator(".tile")).to_have_count(1)
    tile(page, "a/0").click()
    page.reload()
    expect(page.locator(".tile")).to_have_count(1)
    expect(page.locator(".body")).to_contain_text("kubectl gpushare describe gpu a/0")
    assert page.locator("#namespace").input_value() == "ml"


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


def test_a_cluster_that_goes_away_and_comes_back(play: Play, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_urlsafe", lambda _: "always")
    stage = play(story.busy())
    page = visit(stage.server.address, is_calm=False)
    stage.show(dataclasses.replace(story.busy(), trouble="the API server cannot be reached"))
    expect(page.locator(".alerts .bad")).to_contain_text("this may be out of date: the API server cannot be reached")
    expect(page.locator(".tile")).to_have_count(8)
    stage.show(story.busy())
    expect(page.locator(".alerts .bad")).to_have_count(0)
    stage.close()
    expect(page.locator(".alerts .bad")).to_contain_text("`kubectl gpushare ui` does not answer")
    expect(page.locator(".tile")).to_have_count(8)
    stage.state = PageState()
    stage.show(story.failing())
    stage.server = page_server.PageServer(stage.state, stage, port=stage.server.port)
    expect(tile(page, "a/2")).to_contain_text("Unhealthy")
    expect(page.locator("body")).not_to_have_class("lost")


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
    expect(page.get_by_role("button", name="All 40000", exact=True)).to_be_visible()
    page.evaluate("document.getElementById('map').scrollTop = 600000")
    expect(page.locator(".tile").first).to_be_visible()
    assert page.locator(".tile").count() < 200
    page.wait_for_url(re.compile("at=gpu-node-"))


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
