"""`top -i`: the screen with the tree, and its keys.

What is open, the filter and the selection belong to the screen and not to the data, so they stay while the cluster
changes. The tree is the last one that could be read; below it stands since when that is so.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, Static

from kubectl_gpushare import plugin_errors
from kubectl_gpushare.interactive.dialogs import AskScreen, PageScreen, painted
from kubectl_gpushare.interactive.tree_actions import PageRequest, TreeAction, TreeActions
from kubectl_gpushare.interactive.tree_reader import Outage
from kubectl_gpushare.interactive.tree_table import TreeTable
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.output.values import Page, field, section
from kubectl_gpushare.views import as_kubectl, gpu_summary, gpu_tree
from kubectl_gpushare.views.gpu_tree import ClusterTree, Look, TreeRow
from kubectl_gpushare.views.tree_rows import TreeRows

_Made = TypeVar("_Made")
_COUNT_SECONDS, _KEY_SECONDS = 0.06, 0.01  # a slice of counting rows, and the time for keys after it
_OPEN_ROWS = 40  # nodes and GPUs: if there are no more, all nodes are open at first
_OPEN_PODS = 5  # likewise the pods that hold nothing
_KEYS = "w why  d describe  c cordon  r resize  s sort  / filter  ? help  q quit"
_FILTER_KEYS = "Enter keep the filter  Esc show everything"
_HELP = (
    ("Up Down PgUp PgDn", "select a row; Home and End select the first and the last"),
    ("Right Left Enter", "open a row; close it, or go to the one above; do the other"),
    ("e E", "open all rows; close all"),
    ("s S", "sort by the next column, or the one before, numbers largest first"),
    ("/ Esc", "show only what has all these words: name, namespace, model, mode, UUID, label, status; show all again"),
    ("w", "why the pod waits, or is on this GPU"),
    ("d", "describe the node, GPU or pod"),
    ("c", "cordon or uncordon the GPU, or the GPUs of the node, after a question"),
    ("r", "resize the share of the pod, after a question"),
    ("q Ctrl-C", "quit"),
)


def _after(seconds: float) -> Callable[[], bool]:
    """Return whether the time has passed since now, when called."""
    until = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= until


class TreeShown(Message):
    """The reader has a new tree."""

    def __init__(self, tree: ClusterTree, outage: Outage | None) -> None:
        super().__init__()
        self.tree = tree
        self.outage = outage


class TreeScreen(Screen[None]):
    """The tree, a sentence about what is free above it, and what is wrong below it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("right,l", "open(True)"),
        ("left,h", "open(False)"),
        ("enter,space", "open_or_close"),
        ("e", "open_all(True)"),
        ("E", "open_all(False)"),
        ("s", "sort(1)"),
        ("S", "sort(-1)"),
        ("slash", "filter"),
        ("escape", "unfilter"),
        ("w", "why"),
        ("d", "describe"),
        ("c", "cordon"),
        ("r", "resize"),
        ("question_mark", "help"),
        ("q", "app.leave(0)"),
    ]

    def __init__(self, tree: ClusterTree, actions: TreeActions, place: Terminal) -> None:
        super().__init__()
        self._tree = tree
        self._actions = actions
        self._place = place
        self._namespace = actions.chosen.namespace
        self._outage: Outage | None = None
        self._said = ""  # the result of the last key
        self._rows: TreeRows | None = None
        self._look = Look(_opened_at_first(tree), sort_by=actions.chosen.sort_by or "name")

    def compose(self) -> ComposeResult:
        yield Static(id="caption")
        yield TreeTable(self._place)
        yield Static(id="message")
        yield Input(placeholder="words to look for", id="filter", select_on_focus=False)
        yield Static(painted(_KEYS, "dim", self._place), id="keys")

    def on_mount(self) -> None:
        self._table.focus()
        self._show()
        self.set_interval(1.0, self._tell)  # the age of an outage

    def on_tree_shown(self, message: TreeShown) -> None:
        self._tree, self._outage = message.tree, message.outage
        self._show()

    def on_tree_table_toggled(self) -> None:
        self.action_open_or_close()

    def on_input_changed(self, changed: Input.Changed) -> None:
        self._change(words=tuple(changed.value.lower().split()))

    def on_input_submitted(self) -> None:
        self._end_filter(is_shown=bool(self._look.words))

    def action_open(self, is_to_open: bool) -> None:
        row = self._table.settled()
        if row is None:
            return
        if is_to_open and row.has_children:
            self._change(opened=self._look.opened | {row.key})
        elif row.is_open and row.key in self._look.opened:
            self._change(opened=self._look.opened - {row.key})
        elif not is_to_open:
            self._table.select_parent()

    def action_open_or_close(self) -> None:
        row = self._table.settled()
        if row is not None and row.has_children:
            self._change(opened=self._look.opened ^ {row.key})

    def action_open_all(self, is_to_open: bool) -> None:
        self._change(opened=gpu_tree.all_keys(self._tree) if is_to_open else frozenset())

    def action_sort(self, step: int) -> None:
        keys = [key for key in gpu_tree.SORT_KEYS if self._tree.with_used or key not in gpu_tree.MEASURED_KEYS]
        before = keys.index(self._look.sort_by) if self._look.sort_by in keys else 0
        self._change(sort_by=keys[(before + step) % len(keys)])

    def action_filter(self) -> None:
        self._filter.display = True
        self.set_focus(self._filter)
        self.query_one("#keys", Static).update(painted(_FILTER_KEYS, "dim", self._place))

    def action_unfilter(self) -> None:
        self._said = ""
        self._filter.value = ""
        self._end_filter(is_shown=False)
        self._tell()

    def _end_filter(self, *, is_shown: bool) -> None:
        self._filter.display = is_shown
        self.set_focus(self._table)
        self.query_one("#keys", Static).update(painted(_KEYS, "dim", self._place))

    def action_why(self) -> None:
        self._open_page(self._actions.why)

    def action_describe(self) -> None:
        self._open_page(self._actions.describe)

    def action_cordon(self) -> None:
        self._ask(self._actions.cordon)

    def action_resize(self) -> None:
        self._ask(self._actions.resize)

    def action_help(self) -> None:
        self.app.push_screen(PageScreen(PageRequest(self._actions.typed("top", "-i"), self._help), self._place))

    @property
    def _table(self) -> TreeTable:
        return self.query_one(TreeTable)

    @property
    def _filter(self) -> Input:
        return self.query_one("#filter", Input)

    def _change(self, **look: object) -> None:
        self._said = ""
        self._look = dataclasses.replace(self._look, **look)  # type: ignore[arg-type]
        self._show()

    def _show(self) -> None:
        caption = self._tree.caption if self._tree.branches else gpu_summary.NO_NODES
        self.query_one("#caption", Static).update(painted(caption, "dim", self._place))
        self._rows = TreeRows(self._tree, self._look, self._namespace)
        self._rows.advance(is_due=_after(_COUNT_SECONDS))
        self._table.show(self._tree, self._rows, sort_by=self._look.sort_by)
        self._tell()
        self._count_on(self._rows)

    def _count_on(self, rows: TreeRows) -> None:
        """Let keys come first, then count further; `rows` are forgotten if something else is to be seen meanwhile."""
        if not rows.is_complete:
            self.set_timer(_KEY_SECONDS, lambda: self._count_more(rows))

    def _count_more(self, rows: TreeRows) -> None:
        if rows is not self._rows:
            return
        rows.advance(is_due=_after(_COUNT_SECONDS))
        self._table.grow()
        self._tell()
        self._count_on(rows)

    def _tell(self) -> None:
        """Show the most urgent message: an outage, the result of a key, or the first warning."""
        text, style = self._said, "bold"
        if self._outage is not None:
            age = as_kubectl.age(time.time() - self._outage.since)
            text, style = f"not updated for {age}: {self._outage.reason}", "bad"
        elif not text and self._look.words and self._rows is not None and self._rows.is_complete and not self._rows:
            text = "nothing has all these words: Esc shows everything"
        elif not text and self._tree.problems:
            first, *others = self._tree.problems
            text, style = f"warning: {first}" + (f" (? lists {len(others)} more)" if others else ""), "warn"
        self.query_one("#message", Static).update(painted(text, style, self._place))

    def _open_page(self, make: Callable[[TreeRow], PageRequest]) -> None:
        request = self._of_selected(make)
        if request is not None:
            self.app.push_screen(PageScreen(request, self._place))

    def _ask(self, make: Callable[[TreeRow], TreeAction]) -> None:
        def tell(done: list[str] | None) -> None:
            self._said = "; ".join(done or ())
            self._tell()

        action = self._of_selected(make)
        if action is not None:
            self.app.push_screen(AskScreen(action, self._actions.typed(*action.words), self._place), tell)

    def _of_selected(self, make: Callable[[TreeRow], _Made]) -> _Made | None:
        row = self._table.settled()
        if row is None:
            self._said = "the selected row has gone: select another" if self._rows else ""
            self._tell()
            return None
        try:
            return make(row)
        except plugin_errors.PluginError as error:
            self._said = str(error)
            self._tell()
            return None

    def _help(self) -> Page:
        keys = (entry for key, text in _HELP for entry in field(key, text))
        left_out = ", ".join(self._table.left_out)
        return (
            *keys,
            *field("Not Shown", left_out and f"{left_out}: the terminal is too narrow"),
            *section("Warnings", self._tree.problems, "warn"),
        )


def _opened_at_first(tree: ClusterTree) -> frozenset[gpu_tree.Key]:
    count = sum(1 + len(branch.row.gpus) for branch in tree.branches)
    opened = frozenset(map(gpu_tree.node_key, tree.branches)) if count <= _OPEN_ROWS else frozenset()
    return opened | {gpu_tree.UNPLACED} if len(tree.unplaced) <= _OPEN_PODS else opened
