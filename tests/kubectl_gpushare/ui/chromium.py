"""The distribution's Chromium, and what tests find on a page in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from kubectl_gpushare.ui.page_model import Scene
from lab import prerequisites
from tests.kubectl_gpushare.ui.story import Stage

MILLISECONDS = 20_000.0  # that anything on the page may take on a busy machine

Play = Callable[[Scene], Stage]
Visit = Callable[..., Page]


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """Run Chromium. Playwright runs an event loop while it is open, beside which no other test could."""
    prerequisites.ensure_programs("chromium")
    expect.set_options(timeout=MILLISECONDS)
    # Chromium's sandbox needs another user than root, or a kernel feature that containers lack.
    arguments = ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none", "--force-color-profile=srgb"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=prerequisites.program("chromium"), args=arguments)
        yield browser
        browser.close()


def tile(page: Page, name: str) -> Locator:
    return page.locator(f'[data-gpu="{name}"]')
