"""`-w`: shows a list again after every change, by a watch: in place on a terminal, appended in a pipe."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TextIO

from gpushare import codec, contract, errors
from gpushare.gpunode import GpuNode
from kubectl_gpushare import cli, kubectl, plugin_errors
from kubectl_gpushare.options import Options
from kubectl_gpushare.output import printing, terminal
from kubectl_gpushare.output.values import Listing
from kubectl_gpushare.source import live_cluster

SETTLE_SECONDS = 0.2  # changes that follow each other this closely are shown together
POLL_SECONDS = 5.0  # between redraws for figures that no watch reports, such as usage
_LOOK_SECONDS = 0.5  # between checks of the terminal's size; also the longest that a change is held back

Make = Callable[[Sequence[GpuNode]], Listing]


def follow(origin: live_cluster.LiveCluster, make: Make, chosen: Options, *, label_selector: str) -> None:
    """Show the list that `make` builds of the GPUNodes until interrupted; on a terminal also every POLL_SECONDS."""
    gc.enable()  # `__main__` has turned it off, and this may run for days
    # Any signal must restore the terminal and end the watching kubectl.
    cli.interrupt_on_any_signal()
    feed = Feed(origin, label_selector=label_selector)
    try:
        if sys.stdout.isatty() and chosen.output in {"", "table", "wide"}:
            with opened(sys.stdout) as page:
                _redraw(feed, page, make, chosen)
        else:
            _reprint(feed, make, chosen)
    finally:
        feed.close()


def _redraw(feed: Feed, page: Screen, make: Make, chosen: Options) -> None:
    size = None
    changed = True
    drawn_at = 0.0
    listing = None
    while not page.quit_pressed():
        place = terminal.detect(sys.stdout, color=chosen.color)
        if place != size:
            page.forget()
        if changed or place != size or time.monotonic() - drawn_at >= POLL_SECONDS:
            size = place
            listing, trouble = _current(feed, make, listing)
            page.draw(_page(listing, trouble, place, chosen), place.rows)
            drawn_at = time.monotonic()
        changed = settled(feed, (page.keys,) if page.keys is not None else ())


def _page(listing: Listing, trouble: str, place: terminal.Terminal, chosen: Options) -> list[str]:
    """Return the list, with connection trouble above and its warnings below; without room, only their number."""
    old = _warnings([trouble] if trouble else [], place)
    table = printing.lines(listing.table(), place, chosen)
    problems = listing.problems()
    warnings = _warnings(problems, place)
    if not warnings or len(old) + len(table) + 1 + len(warnings) <= place.rows:
        return [*old, *table, *([""] if warnings else []), *warnings]
    return [*old, *_warnings([f"{len(problems)} more, seen without -w"], place), *table]


def _warnings(sentences: Sequence[str], place: terminal.Terminal) -> list[str]:
    return [
        terminal.paint(line, "warn", on=place.colours)
        for sentence in sentences
        for line in terminal.wrapped(f"warning: {sentence}", place)
    ]


def _reprint(feed: Feed, make: Make, chosen: Options) -> None:
    shown, last_trouble = None, ""
    while True:
        listing, trouble = _current(feed, make, shown)
        if trouble and trouble != last_trouble:
            printing.warn([trouble])
        elif not trouble:
            if shown is not None:
                print("---" if chosen.output == "yaml" else "", flush=True)
            printing.show(listing, chosen)
            shown = listing
        last_trouble = trouble
        until = time.monotonic() + POLL_SECONDS
        while not settled(feed, ()) and not (trouble and time.monotonic() >= until):
            pass


def _current(feed: Feed, make: Make, last: Listing | None) -> tuple[Listing, str]:
    """Return the list; while the cluster does not answer, the `last` one, with the reason."""
    if last is not None and feed.trouble:
        return last, feed.trouble
    try:
        return make(feed.nodes), feed.trouble
    except plugin_errors.PluginError as error:
        if last is None:
            raise
        return last, str(error)


def settled(feed: Feed, also: tuple[int, ...]) -> bool:
    """Wait at most _LOOK_SECONDS for a change, and for those that follow closely; return whether there was one."""
    changed = feed.wait(_LOOK_SECONDS, also=also)
    until = time.monotonic() + _LOOK_SECONDS
    while changed and time.monotonic() < until and feed.wait(SETTLE_SECONDS, also=also):
        pass
    return changed


_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # the alternate screen; no cursor; no line wrap
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_LINE = "\x1b[{};1H"  # to the beginning of a line, counted from 1
_CLEAR_LINE = "\x1b[K"  # before the line: after a full one it would erase the last character
_CLEAR_BELOW = "\x1b[J"


class Screen:
    """The alternate screen while it is open. Only changed lines are written."""

    def __init__(self, stream: TextIO, keys: int | None) -> None:
        self._stream = stream
        self._shown: Sequence[str] | None = None  # None: not known
        self.keys = keys  # file descriptor on which key strokes arrive, if there is one

    def draw(self, lines: Sequence[str], rows: int) -> None:
        if len(lines) > rows:
            lines = [*lines[: rows - 1], f"… {len(lines) - rows + 1} more lines below the window"]
        shown = self._shown or ()
        text = [
            f"{_LINE.format(number + 1)}{_CLEAR_LINE}{line}"
            for number, line in enumerate(lines)
            if number >= len(shown) or shown[number] != line
        ]
        if (self._shown is None or len(lines) < len(shown)) and len(lines) < rows:
            text.append(_LINE.format(len(lines) + 1) + _CLEAR_BELOW)
        self._shown = lines
        self._stream.write("".join(text))
        self._stream.flush()

    def forget(self) -> None:
        self._shown = None

    def quit_pressed(self) -> bool:
        if self.keys is None or not select.select([self.keys], [], [], 0)[0]:
            return False
        typed = os.read(self.keys, 64)
        if not typed:
            self.keys = None  # closed: a closed descriptor always counts as ready
        return b"q" in typed.lower()


@contextlib.contextmanager
def opened(stream: TextIO) -> Iterator[Screen]:
    with _keys() as keys:
        stream.write(_ENTER)
        try:
            yield Screen(stream, keys)
        finally:
            stream.write(_LEAVE)
            stream.flush()


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


RETRY_SECONDS = (0.5, 2.0, 5.0, 10.0)
_READ_BYTES = 1 << 16


class Feed:
    """The GPUNodes of a cluster, kept up to date by a watch."""

    def __init__(self, source: live_cluster.LiveCluster, *, label_selector: str = "") -> None:
        self._source = source
        self._selector = label_selector
        self._nodes: dict[str, GpuNode] = {}
        self._chosen: frozenset[str] | None = None  # names; None: all
        self._watch: kubectl.Running | None = None
        self._line = b""
        self._failures = 0
        self._retry_at = 0.0
        self.trouble = ""  # why the list may be out of date; empty if it is current
        self._list()

    @property
    def nodes(self) -> list[GpuNode]:
        return list(self._nodes.values())

    def wait(self, seconds: float, *, also: tuple[int, ...] = ()) -> bool:
        """Wait at most `seconds` for a change, or for input on a descriptor of `also`; return whether there was one."""
        if self._watch is None:
            return self._reconnect(seconds, also)
        output = self._watch.stdout.fileno()
        ready, _, _ = select.select([output, *also], [], [], seconds)
        if output not in ready:
            return False
        data = os.read(output, _READ_BYTES)
        if not data:
            self._ended()
            return bool(self.trouble)
        *complete, self._line = (self._line + data).split(b"\n")
        changes = [self._apply(_event(line)) for line in complete if line.strip()]
        return any(changes)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def _list(self) -> None:
        self._chosen = self._source.labelled(self._selector) if self._selector else None
        nodes, version = self._source.listing()
        self._nodes = {node.name: node for node in nodes if self._is_chosen(node)}
        self._watch = self._source.watching(version)
        self._line = b""

    def _reconnect(self, seconds: float, also: tuple[int, ...]) -> bool:
        pause = min(seconds, self._retry_at - time.monotonic())
        if pause > 0:
            select.select(list(also), [], [], pause)
            return False
        before, trouble = self._nodes, self.trouble
        try:
            self._list()
        except plugin_errors.PluginError as error:
            self._failed(str(error))
            return True
        self.trouble = ""
        return bool(trouble) or _unversioned(before) != _unversioned(self._nodes)

    def _ended(self) -> None:
        """List again: soon after a watch that timed out as planned, with growing pauses after errors."""
        if self._watch is None:
            return
        watch, self._watch = self._watch, None
        self._retry_at = time.monotonic() + RETRY_SECONDS[0]
        try:
            watch.finish()
        except plugin_errors.PluginError as error:
            self._failed(str(error))

    def _is_chosen(self, node: GpuNode) -> bool:
        return self._chosen is None or node.name in self._chosen

    def _list_again(self) -> None:
        self.close()
        self._retry_at = time.monotonic() + RETRY_SECONDS[0]

    def _failed(self, reason: str) -> None:
        self.trouble = reason
        self._retry_at = time.monotonic() + RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
        self._failures += 1

    def _apply(self, event: dict[str, object]) -> bool:
        item = event.get("object")
        kind = event.get("type")
        if kind == "ERROR" or not isinstance(item, dict):
            self._list_again()  # mostly 410 Gone: the resourceVersion is too old
            return False
        self._failures = 0
        if item.get("kind") != contract.GPUNODE_KIND or kind == "BOOKMARK":
            return False
        try:
            node = codec.read(item)
        except errors.CodecError:
            return False  # an object without a name, which no API server sends
        if not self._is_chosen(node):
            if kind == "ADDED":  # its labels are not known yet
                self._list_again()
            return False
        before = self._nodes.pop(node.name, None)
        if kind == "DELETED":
            return before is not None
        self._nodes[node.name] = node
        return before is None or dataclasses.replace(before, version=node.version) != node


def _unversioned(nodes: Mapping[str, GpuNode]) -> dict[str, GpuNode]:
    return {name: dataclasses.replace(node, version="") for name, node in nodes.items()}


def _event(line: bytes) -> dict[str, object]:
    """Return the event in a line of a watch; empty, like an error, for anything else, such as a proxy's error page."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
