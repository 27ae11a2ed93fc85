"""The screens above the tree: a page to read, and a change to confirm.

Threads read and change the cluster; a closed screen ignores answers that arrive later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, TypeVar

import click
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, Static

from gpushare import printable
from kubectl_gpushare import cli, plugin_errors
from kubectl_gpushare.interactive.tree_actions import PageRequest, TreeAction
from kubectl_gpushare.output import layout, terminal
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.output.values import Page, section

_Result = TypeVar("_Result")
_Work = TypeVar("_Work")
READING = "reading …"


class Finished(Message):
    """The work of a thread is done: `call` is to run on the screen that asked for it."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self.call = call


class Failed(Message):
    """A malformed file or a bug: it ends the program as it ends any other command."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def painted(text: str, style: str, place: Terminal) -> Text:
    """Return the text in a style. Text from the cluster may contain markup and control characters."""
    return Text.from_ansi(terminal.paint(printable.replaced(text), style, on=place.colours))


class WorkingScreen(Screen[_Result]):
    """A screen that shows one page, and works in threads."""

    place: Terminal
    page: Page | str = READING

    def work(self, run: Callable[[], _Work], done: Callable[[_Work], None]) -> None:
        """Call `run` in a thread, then `done` here; a PluginError becomes the page."""

        def in_thread() -> None:
            try:
                result = run()
            except (plugin_errors.PluginError, click.ClickException) as error:
                sentence = cli.sentence_of(error) if isinstance(error, click.ClickException) else str(error)
                self.post_message(Finished(lambda: self.fill(section("Error", [sentence], "bad"))))
            except Exception as error:
                self.app.post_message(Failed(error))
            else:
                self.post_message(Finished(lambda: done(result)))

        threading.Thread(target=in_thread, daemon=True).start()

    def on_finished(self, message: Finished) -> None:
        message.call()

    def on_resize(self) -> None:
        self.fill(self.page)

    def fill(self, page: Page | str) -> None:
        self.page = page
        lines = [page] if isinstance(page, str) else layout.page_lines(page, self._inside())
        self.query_one("#page", Static).update(Text.from_ansi("\n".join(lines)))

    def _inside(self) -> Terminal:
        return Terminal(max(20, self.size.width - 2), self.size.height, self.place.colours, self.place.unicode)


class PageScreen(WorkingScreen[None]):
    """The page of `why` or `describe`."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,w,d,question_mark", "dismiss")]

    def __init__(self, request: PageRequest, place: Terminal) -> None:
        super().__init__()
        self.place = place
        self._request = request

    def compose(self) -> ComposeResult:
        yield Static(painted(f"$ {self._request.command}", "bold", self.place))
        with VerticalScroll():
            yield Static(READING, id="page")
        yield Static(painted("↑↓ scroll   Esc back", "dim", self.place))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.work(self._request.make, self.fill)


class AskScreen(WorkingScreen[list[str]]):
    """A change: its command with flags to edit, then what it would do, then a second Enter to do it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss([])"), ("up", "scroll(-1)"), ("down", "scroll(1)")]

    def __init__(self, action: TreeAction, typed: str, place: Terminal) -> None:
        super().__init__()
        self.place = place
        self.page = ""
        self._action = action
        self._typed = typed
        self._planned: str | None = None  # the flags whose plan is on screen

    def compose(self) -> ComposeResult:
        yield Static(painted(f"$ {self._typed}", "bold", self.place))
        yield Input(self._action.flags, id="flags", select_on_focus=False)
        with VerticalScroll(can_focus=False):
            yield Static(id="page")
        yield Static(id="hint")

    def on_mount(self) -> None:
        flags = self.query_one(Input)
        flags.focus()
        flags.cursor_position = self._action.flags.find('""') + 1 or len(self._action.flags)
        self._hint()
        if self._action.plans_at_once:
            self._plan(flags.value)

    def on_input_changed(self) -> None:
        self._hint()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        if submitted.value != self._planned:
            self._plan(submitted.value)
            return
        self._planned = None  # the next Enter plans again
        self.fill("…")
        self.work(lambda: self._action.do(self._action.params(submitted.value)), self._end)

    def _end(self, done: list[str]) -> None:
        self.dismiss(done)

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def fill(self, page: Page | str) -> None:
        super().fill(page)
        self._hint()

    def _plan(self, flags: str) -> None:
        def show(page: Page) -> None:
            self._planned = flags
            self.fill(page)

        self.fill(READING)
        self.work(lambda: self._action.plan(self._action.params(flags)), show)

    def _hint(self) -> None:
        is_planned = self.query_one(Input).value == self._planned
        verb = self._action.words[0]
        said = f"Enter: {verb}, as shown" if is_planned else "Enter: show what would happen"
        style = "bold" if is_planned else "dim"
        self.query_one("#hint", Static).update(painted(f"{said}   Esc: change nothing", style, self.place))
