"""The other page, on a terminal that is played by a few lines: what is on it, and what was written to get there."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubectl_gpushare.following import Screen

ROWS = 6
COMMAND = r"\x1b\[(\d+);1H(\x1b\[K|\x1b\[J)([^\x1b]*)"  # to a line, clear it or all below, a text
PAGES = st.lists(st.text("ab", min_size=0, max_size=4), max_size=9)


class Terminal(io.StringIO):
    """As many rows as `ROWS`, which understand what a screen writes and nothing else."""

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
def test_whatever_was_shown_before_the_page_is_what_was_drawn_last(pages: list[list[str]]) -> None:
    terminal = Terminal()
    screen = Screen(terminal, None)
    for page in pages:
        screen.draw(page, ROWS)
        if len(page) <= ROWS:
            assert terminal.rows == [*page, *[""] * (ROWS - len(page))]
        else:
            assert terminal.rows[:-1] == page[: ROWS - 1]
            assert terminal.rows[-1].startswith(f"… {len(page) - ROWS + 1} more lines")


def test_only_lines_that_have_changed_are_written() -> None:
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
def test_after_a_change_of_size_all_is_written_again(size: int) -> None:
    terminal = Terminal()
    screen = Screen(terminal, None)
    page = [str(number) for number in range(size)]
    screen.draw(page, ROWS)
    terminal.rows = ["moved"] * ROWS
    screen.forget()
    screen.draw(page, ROWS)
    assert terminal.rows == [*page, *[""] * (ROWS - size)]
