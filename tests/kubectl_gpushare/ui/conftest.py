"""The distribution's Chromium, one for each module, and pages of the story in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request

from kubectl_gpushare.ui.page_model import Scene
from tests.kubectl_gpushare.ui import chromium
from tests.kubectl_gpushare.ui.chromium import Play, Visit
from tests.kubectl_gpushare.ui.story import Stage


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.launched() as launched:
        yield launched


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """Serve a page of a scene until the test ends."""
    stages: list[Stage] = []

    def start(scene: Scene) -> Stage:
        stages.append(Stage(scene, tmp_path))
        return stages[-1]

    yield start
    for stage in stages:
        stage.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Open an address; at the end no page may have logged an error or asked another server for anything."""
    complaints: list[str] = []
    contexts = []

    def open_page(address: str, *, width: int = 1280, height: int = 800, is_calm: bool = True, **more: Any) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            timezone_id="UTC",
            locale="en-GB",
            reduced_motion="reduce",
            **more,
        )
        contexts.append(context)
        context.set_default_timeout(chromium.MILLISECONDS)
        page = context.new_page()

        def requested(request: Request) -> None:
            if not request.url.startswith((address.partition("?")[0].partition("#")[0], "data:")):
                complaints.append(f"asks for {request.url}")

        def logged(message: ConsoleMessage) -> None:
            # Chromium drops its connections when a lab of another worker adds or removes a network interface.
            if message.type == "error" and "net::ERR_NETWORK_CHANGED" not in message.text:
                complaints.append(message.text)

        page.on("request", requested)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if is_calm:
            page.on("console", logged)
        page.goto(address)
        page.wait_for_selector(".strip")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
