"""`-w`: its output while the cluster does not answer, and the alternate screen on a terminal of a few lines."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.gpunode import GpuNode
from kubectl_gpushare import following, options, plugin_errors
from kubectl_gpushare.following import Screen
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import gpu_table
from tests import builders

ROWS = 6


class ChangingFeed:
    """A watch that reports some changes, and is interrupted then."""

    nodes: Sequence[GpuNode] = ()
    trouble = ""

    def __init__(self, changes: int) -> None:
        self._waits = iter([True, False] * changes)

    def wait(self, *_: object, **__: object) -> bool:
        for is_changed in self._waits:
            return is_changed
        raise KeyboardInterrupt


def test_a_list_stays_while_something_around_the_gpunodes_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    gone = plugin_errors.KubectlError("nodes: connection refused")
    answers = iter(["first", gone, gone, "second"])

    def make(_: Sequence[GpuNode]) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return gpu_table.listing(Snapshot((builders.node(answer),)), (), options.Options(), now=0.0)

    with pytest.raises(KeyboardInterrupt):
        following._reprint(ChangingFeed(changes=3), make, options.Options())  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    assert err == "warning: nodes: connection refused\n"
    first, second = out.split("\n\n")
    assert "first/0" in first
    assert "second/0" in second


def test_a_first_list_that_cannot_be_read_is_an_error() -> None:
    def make(_: Sequence[GpuNode]) -> Any:
        raise plugin_errors.KubectlError("nodes: connection refused")

    with pytest.raises(plugin_errors.KubectlError):
        following._reprint(ChangingFeed(changes=1), make, options.Options())  # type: ignore[arg-type]


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
