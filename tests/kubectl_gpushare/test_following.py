"""The alternate screen, on a terminal played by a few lines: its contents, and the text written for them."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubectl_gpushare.following import Screen

ROWS = 6
COMMAND = r"\x1b\[(\d+);1H(\x1b\[K|\x1b\[J)([^\x1b]*)"  # go to a line, clear it or all below, write text
PAGES = st.lists(st.text("ab", min_size=0, max_size=4), max_size=9)


class Terminal(io.StringIO):
    """A terminal with `ROWS` rows that understands only what a Screen writes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = ["junk"] * ROWS
        self.cursor = (0, 0)
        self.touched: set[int] = set()

    def write(self, text: str) -> int:
        for row, clear, shown in re.findall(COMMAND, text):
            at = int(row) - 1
            assert 0 <= at < ROWS
            self.touched.add(at)
            self.rows[at] = shown
            if clear == "\x1b[J":
                self.rows[at:] = [""] * (ROWS - at)
        assert re.sub(COMMAND, "", text) == ""
        return len(text)


@given(st.lists(PAGES, min_size=1, max_size=5))
@settings(max_examples=100)
def test_screen_shows_the_last_drawn_page(pages: list[list[str]]) -> None:
    terminal = Terminal()
    screen = Screen(terminal, None)
    for page in pages:
        screen.draw(page, ROWS)
        if len(page) <= ROWS:
            assert terminal.rows == [*page, *[""] * (ROWS - len(page))]
        else:
            assert terminal.rows[:-1] == page[: ROWS - 1]
            assert terminal.rows[-1].startswith(f"… {len(page) - ROWS + 1} more lines")


def test_screen_writes_only_changed_lines() -> None:
    terminal = Terminal()
    screen = Screen(terminal, None)
    screen.draw(["one", "two", "three"], ROWS)
    terminal.touched.clear()
    screen.draw(["one", "2", "three"], ROWS)
    assert terminal.touched == {1}
    terminal.touched.clear()
    screen.draw(["one", "2", "three"], ROWS)
    assert terminal.touched == set()


@pytest.mark.parametrize("size", [1, 3, ROWS])
def test_screen_redraws_everything_after_a_resize(size: int) -> None:
    terminal = Terminal()
    screen = Screen(terminal, None)
    page = [str(number) for number in range(size)]
    screen.draw(page, ROWS)
    terminal.rows = ["moved"] * ROWS
    screen.forget()
    screen.draw(page, ROWS)
    assert terminal.rows == [*page, *[""] * (ROWS - size)]
