"""Questions to the page, by mouse and by keys: why, fit, the plan, describe, search."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.kubectl_gpushare.ui import story
from tests.kubectl_gpushare.ui.chromium import Play, Visit, tile

pytestmark = pytest.mark.slow


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
    expect(page.locator(".fit-answer")).to_have_text("see Fit")
    page.locator("#request").fill("0.5 + 16Gi memory-limit=24Gi --isolation=arbiter")
    expect(page.locator(".command code")).to_contain_text("--memory=16Gi --memory-limit=24Gi --isolation=arbiter")
    for model in ("NVIDIA A100-SXM4-80GB", '"NVIDIA A100-SXM4-80GB"'):
        page.locator("#request").fill(f"0.5 model={model} + 8Gi namespace=ml")
        flags = "--request=0.5 --memory=8Gi '--model=NVIDIA A100-SXM4-80GB' -n ml"
        expect(page.locator(".command code")).to_contain_text(flags)
        page.locator("#request").fill("0.5 gpu=2")
        expect(page.locator(".error")).to_contain_text('unknown word "gpu=": must be one of request=')
    page.locator("#request").fill("0.5 isolation=")
    expect(page.locator(".error")).to_contain_text('"isolation=" has no value')


def test_a_dragged_request_says_why_not(play: Play, visit: Visit) -> None:
    page = visit(play(story.busy()).server.address + "#fit=0.5+%2B+30Gi")
    expect(page.locator(".tile.fits").first).to_be_visible()
    page.locator(".brick").hover()
    page.mouse.down()
    tile(page, "b/2").hover()
    expect(page.locator(".ghost.no")).to_contain_text("b/2 has 0.25 of its compute free")
    page.mouse.up()
    expect(tile(page, "b/2")).to_contain_text("has 0.25 of its compute free")


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
