"""The program of `top -i`: it reads the cluster once, so that errors are sentences, then shows and follows it.

Every way out restores the terminal and ends the watching kubectl: q, Ctrl-C, SIGTERM and a closed terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from kubectl_gpushare import cli, following, options
from kubectl_gpushare.interactive.dialogs import Failed
from kubectl_gpushare.interactive.tree_actions import TreeActions
from kubectl_gpushare.interactive.tree_reader import Outage, ReadSnapshot, TreeReader
from kubectl_gpushare.interactive.tree_screen import TreeScreen, TreeShown
from kubectl_gpushare.output import terminal
from kubectl_gpushare.output.terminal import Terminal
from kubectl_gpushare.source import chosen_source, live_cluster
from kubectl_gpushare.views.gpu_tree import ClusterTree

_INTERRUPTED = 130
_LAST_SECONDS = 1.0
_CSS = """
Screen { background: ansi_default; color: ansi_default; layout: vertical; }
Static { height: auto; background: ansi_default; color: ansi_default; }
#caption, #message { max-height: 2; }
TreeTable { height: 1fr; background: ansi_default; scrollbar-size-vertical: 0; overflow-x: hidden; }
VerticalScroll { height: 1fr; background: ansi_default; margin: 1 0; scrollbar-size-vertical: 1; }
Input, Input:focus { height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default; }
#filter { display: none; }
"""


class TreeApp(App[int]):
    """The app; it keeps the terminal's own colours."""

    CSS = _CSS
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", f"leave({_INTERRUPTED})", priority=True)]

    def __init__(self, tree: ClusterTree, actions: TreeActions, place: Terminal) -> None:
        super().__init__()
        self.theme = "ansi-dark"  # the terminal's colours
        self.tree_screen = TreeScreen(tree, actions, place)
        self.error: Exception | None = None

    def on_mount(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit, _INTERRUPTED)
        self.push_screen(self.tree_screen)

    def on_failed(self, message: Failed) -> None:
        self.error = message.error
        self.exit(1)

    def action_leave(self, code: int) -> None:
        self.exit(code)

    def show(self, tree: ClusterTree, outage: Outage | None) -> None:
        """Show a tree; may be called from any thread."""
        self.tree_screen.post_message(TreeShown(tree, outage))


def run(origin: chosen_source.Source, read: ReadSnapshot, chosen: options.Options) -> int:
    """Show the tree until a key or a signal ends it; return the exit code. Raises `PluginError`."""
    place = terminal.detect(sys.stdout, color=chosen.color)
    reader = TreeReader(origin, read, chosen.namespace)
    actions = TreeActions(origin, chosen)
    if not isinstance(origin, live_cluster.LiveCluster):
        tree = reader.tree(origin.gpu_nodes(label_selector=chosen.selector))
        _end_with_the_terminal()
        return _shown(TreeApp(tree, actions, place))
    cli.interrupt_on_any_signal()
    feed = following.Feed(origin, label_selector=chosen.selector)
    _end_with_the_terminal(feed)
    try:
        tree = reader.tree(feed.nodes)
        app = TreeApp(tree, actions, place)
        with _followed(reader, feed, tree, app):
            return _shown(app)
    finally:
        feed.close()


def _end_with_the_terminal(feed: following.Feed | None = None) -> None:
    """End at once when the terminal is gone, with or without SIGHUP.

    textual would read the end of its input in a loop, and its event loop would wait for a writer that has failed.
    """

    def end(*_: object) -> None:
        try:
            if feed is not None:
                feed.close()
        finally:
            os._exit(_INTERRUPTED)

    def wait() -> None:
        gone = select.poll()
        gone.register(sys.stdin.fileno(), select.POLLHUP)
        if gone.poll()[0][1] & select.POLLHUP:  # not POLLNVAL: macOS cannot poll every terminal
            end()

    threading.Thread(target=wait, daemon=True).start()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, end)


def _shown(app: TreeApp) -> int:
    gc.freeze()  # a large tree stays: do not examine it again and again
    gc.enable()  # `__main__` has turned it off
    code = app.run()
    if app.error is not None:
        raise app.error
    return code or app.return_code or 0


@contextlib.contextmanager
def _followed(reader: TreeReader, feed: following.Feed, tree: ClusterTree, app: TreeApp) -> Iterator[None]:
    """Let a thread follow the cluster meanwhile. A byte in a pipe ends its wait."""
    stop = threading.Event()
    ended, end = os.pipe()

    def follow() -> None:
        try:
            reader.follow(feed, tree, app.show, stop, ended)
        except Exception as error:
            app.post_message(Failed(error))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        os.write(end, b"q")
        thread.join(_LAST_SECONDS)  # not for a kubectl that waits for the API server
