"""A page that stays open: it follows a scripted story, keeps what a person reads, and says what it lost."""

from __future__ import annotations

import dataclasses
import re
import secrets

import pytest
from playwright.sync_api import Page, expect

from kubectl_gpushare.ui import page_server
from kubectl_gpushare.ui.page_state import PageState
from tests.kubectl_gpushare.ui import story
from tests.kubectl_gpushare.ui.chromium import Play, Visit, tile

pytestmark = pytest.mark.slow


def again(stage: story.Stage, page: Page) -> None:
    """Publish the same state once more, and wait until the page shows its time."""
    stage.show(dataclasses.replace(stage.scene, at=stage.scene.at + 5))
    clock = re.compile(f"live, .*{int(stage.scene.at) % 60:02}$")
    expect(page.locator(".state")).to_have_text(clock)


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


def test_a_waiting_pods_entry_stays_while_its_age_changes(play: Play, visit: Visit) -> None:
    stage = play(story.busy())
    page = visit(stage.server.address)
    entry = page.get_by_role("button", name="ml/finetune")
    expect(entry).to_contain_text("3h")
    entry.focus()
    page.locator(".waiting").evaluate("(entry) => { entry.kept = entry.firstElementChild.kept = true; }")
    stage.show(dataclasses.replace(stage.scene, at=stage.scene.at + 3600))
    expect(entry).to_contain_text("4h")
    assert page.locator(".waiting").evaluate("(entry) => [entry.kept, entry.firstElementChild.kept]") == [True, True]
    assert page.evaluate("document.activeElement.id") == "waits-ml%2Ffinetune"
    entry.click()
    expect(entry).to_have_attribute("aria-expanded", "true")
    entry.click()
    expect(entry).to_have_attribute("aria-expanded", "false")


def test_a_chosen_pod_that_is_placed_lights_up_no_gpu_any_more(play: Play, visit: Visit) -> None:
    stage = play(story.busy())
    page = visit(stage.server.address)
    page.get_by_role("button", name="ml/finetune").click()
    expect(page.locator(".tile.lit").first).to_be_visible()
    stage.show(story.drained())
    expect(page.locator(".body")).to_contain_text("ml/finetune waits no longer.")
    expect(page.locator(".tile.lit")).to_have_count(0)
    expect(tile(page, "b/0").locator(".mine")).to_have_count(2)
    page.get_by_role("button", name="Describe it").click()
    expect(page.locator(".body")).to_contain_text("kubectl gpushare describe pod finetune -n ml")


def test_silence_is_told_from_a_quiet_cluster(play: Play, visit: Visit) -> None:
    stage = play(story.busy())
    page = visit(stage.server.address)
    page.evaluate("() => { const now = Date.now; Date.now = () => now() + 42_000; }")
    page.locator("#map").press("t")
    expect(page.locator(".state.old")).to_have_text(re.compile(r"no news for \d+ s"))
    stage.show(story.failing())
    expect(page.locator(".state.live")).to_have_text(re.compile("live, "))


def test_the_page_asks_again_by_itself_only_after_a_pause(play: Play, visit: Visit) -> None:
    stage = play(story.busy())
    page = visit(stage.server.address)
    page.clock.install()
    page.evaluate("""() => {
      const real = window.fetch;
      window.asked = [];
      window.fetch = (address, ...more) => {
        if (String(address).startsWith("describe")) window.asked.push(performance.now());
        return real(address, ...more);
      };
    }""")
    tile(page, "a/0").click()
    expect(page.locator(".body .page")).to_be_visible()
    for _ in range(3):
        again(stage, page)
        page.clock.fast_forward(1500)
    again(stage, page)
    page.clock.fast_forward(60_000)
    page.wait_for_function("window.asked.length > 1")
    first, *others = page.evaluate("window.asked")
    assert others[0] - first >= 5000


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
