"""The widget of `top -i`: draws the rows on screen, between a line of headers and a line of totals.

The columns are fitted as those of `top`. Only visible rows are drawn, so their widths would jump while scrolling: a
column stays as wide as the widest cell that was seen.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kubectl_gpushare.output import layout
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.output.values import Column, Table
from kubectl_gpushare.views import gpu_tree
from kubectl_gpushare.views.gpu_tree import ClusterTree, Key, TreeRow
from kubectl_gpushare.views.tree_rows import TreeRows

_AROUND = 2  # lines: headers and totals
_SELECTED = Style(reverse=True)


class _Sought(NamedTuple):
    """The row to select once it is counted; until then the cursor stays where it was, beyond the counted rows, too."""

    key: Key
    line: int  # of the screen


class TreeTable(ScrollView, can_focus=True):
    """A list of rows with a selected one. `place` says which characters and colours the terminal has."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "move(-1)"),
        ("down,j", "move(1)"),
        ("pageup", "page(-1)"),
        ("pagedown", "page(1)"),
        ("home,g", "to_end(False)"),
        ("end,G", "to_end(True)"),
    ]

    class Toggled(Message):
        """The selected row is to be opened or closed."""

    def __init__(self, place: Terminal) -> None:
        super().__init__()
        self._place = place
        self._tree: ClusterTree | None = None
        self._rows: TreeRows | None = None
        self._cursor = 0
        self._sought: _Sought | None = None
        self._widest: dict[str, int] = {}  # characters, by header
        self._lines: tuple[tuple[int, ...], list[Strip]] | None = None  # what they depend on, and the drawn lines
        self._sort_by = ""
        self.left_out: tuple[str, ...] = ()  # headers of columns that the terminal has no room for

    @property
    def selected(self) -> TreeRow | None:
        """The selected row; None until it has been counted."""
        return self._rows[self._cursor] if self._rows and self._sought is None else None

    def settled(self) -> TreeRow | None:
        """Return the row that was selected, for a key that acts on it: count until it is found; None if it has gone."""
        sought = self._sought
        self._settle()
        row = self.selected
        return row if sought is None or row is None or row.key == sought.key else None

    def show(self, tree: ClusterTree, rows: TreeRows, *, sort_by: str = "") -> None:
        """Show these rows. The selected one stays selected and in its line."""
        before = self.selected
        if before is not None:
            self._sought = _Sought(before.key, self._cursor - self.scroll_offset.y)
        self._tree, self._rows, self._sort_by = tree, rows, sort_by
        self.grow()

    def grow(self) -> None:
        """Show the rows that have been counted since."""
        rows, sought = self._rows, self._sought
        if rows is None:
            return
        found = rows.find(sought.key) if sought else None
        if found is not None or rows.is_complete:
            self._sought = None
        if self._sought is None:
            self._cursor = min(self._cursor, max(0, len(rows) - 1)) if found is None else found
        self.virtual_size = Size(self.size.width, len(rows) + _AROUND)
        self._changed()
        if sought is not None:
            self.scroll_to(y=self._cursor - sought.line, animate=False)
        if sought is not None and self._sought is None:
            self._keep_in_view()

    def _settle(self) -> None:
        rows, sought = self._rows, self._sought
        if rows is None or sought is None:
            return
        if rows.find(sought.key) is None:
            rows.advance(is_due=lambda: rows.find(sought.key) is not None)
        self.grow()

    def select(self, index: int) -> None:
        self._sought = None
        self._cursor = max(0, min(index, self._length - 1))
        self._keep_in_view()
        self._changed()

    def action_move(self, lines: int) -> None:
        self._settle()
        self.select(self._cursor + lines)

    def action_page(self, pages: int) -> None:
        self._settle()
        self.select(self._cursor + pages * max(1, self._visible - 1))

    def action_to_end(self, last: bool) -> None:
        if last and self._rows is not None:
            self._rows.advance()
            self.grow()
        self.select(self._length - 1 if last else 0)

    def select_parent(self) -> None:
        if (row := self.settled()) is not None and (rows := self._rows) is not None:
            above = range(self._cursor - 1, -1, -1)
            self.select(next((place for place in above if rows[place].depth < row.depth), self._cursor))

    def on_resize(self, event: events.Resize) -> None:
        self._widest.clear()
        self.virtual_size = Size(event.size.width, self._length + _AROUND)
        self._keep_in_view()
        self._changed()

    def on_click(self, event: events.Click) -> None:
        row = self.scroll_offset.y + event.y - 1
        if 0 < event.y < self.size.height - 1 and row < self._length:
            again = row == self._cursor and self._sought is None
            self.select(row)
            if again:
                self.post_message(self.Toggled())

    def render_line(self, y: int) -> Strip:
        lines = self._drawn()
        return lines[y] if y < len(lines) else Strip.blank(self.size.width)

    @property
    def _length(self) -> int:
        return len(self._rows or ())

    @property
    def _visible(self) -> int:
        return max(0, self.size.height - _AROUND)

    def _changed(self) -> None:
        self._lines = None
        self.refresh()

    def _keep_in_view(self) -> None:
        first = self.scroll_offset.y
        if self._cursor < first:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._visible and self._cursor >= first + self._visible:
            self.scroll_to(y=self._cursor - self._visible + 1, animate=False)

    def _drawn(self) -> list[Strip]:
        depends_on = (self.scroll_offset.y, *self.size)
        if self._lines is None or self._lines[0] != depends_on:
            self._lines = depends_on, self._draw(*depends_on)
        return self._lines[1]

    def _draw(self, first: int, width: int, height: int) -> list[Strip]:
        if self._tree is None or self._rows is None or not width:
            return []
        marks = ("▸", "▾", "│") if self._place.unicode else ("+", "-", "|")
        shown = self._rows[first : first + self._visible]
        drawn = [gpu_tree.cells(self._tree, row, marks=marks) for row in shown]
        columns = tuple(self._titled(column) for column in self._tree.columns)
        totals = self._tree.totals
        ruler = []
        for place, column in enumerate(self._tree.columns):
            seen = [row[place] for row in drawn]
            widest = max((len(cell if isinstance(cell, str) else cell.text) for cell in seen), default=0)
            self._widest[column.header] = max(widest, self._widest.get(column.header, 0))
            ruler.append("x" * self._widest[column.header])
        pairs = zip(columns, self._tree.columns, strict=True)
        named = {title.header: totals[column.header] for title, column in pairs if column.header in totals}
        here = Terminal(width, height, self._place.colours, self._place.unicode)
        text, self.left_out = layout.draw(Table(columns, [*drawn, ruler], named), here)
        lines = [text[0], *text[1 : len(drawn) + 1], *[""] * (self._visible - len(drawn)), text[-1]]
        drawn_lines = (Text.from_ansi(line).render(self.app.console) for line in lines)
        strips = [Strip(segments).adjust_cell_length(width) for segments in drawn_lines]
        at = self._cursor - first + 1
        if self._sought is None and 0 < at <= len(shown):
            strips[at] = strips[at].apply_style(_SELECTED)
        return strips

    def _titled(self, column: Column) -> Column:
        if column.header.lower() != self._sort_by or column.header == "NAME":
            return column
        return column._replace(header=f"{column.header}{'▼' if self._place.unicode else '*'}")
