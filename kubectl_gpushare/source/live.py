"""Keeps GPUNodes up to date for `-w` with a watch: the API server sends each change, and nothing is polled.

`Feed.wait` is one step of the loop; the caller loops and draws.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import time
from collections.abc import Mapping

from gpushare import codec, contract, errors
from gpushare.gpunode import GpuNode
from kubectl_gpushare import kubectl, plugin_errors
from kubectl_gpushare.source import live_cluster

RETRY_SECONDS = (0.5, 2.0, 5.0, 10.0)
_READ_BYTES = 1 << 16


class Feed:
    """The GPUNodes of a cluster, kept up to date by a watch."""

    def __init__(self, source: live_cluster.LiveCluster, *, label_selector: str = "") -> None:
        """List once. Raises `PluginError` if that fails."""
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
        """The GPUNodes as they are now."""
        return list(self._nodes.values())

    def wait(self, seconds: float, *, also: tuple[int, ...] = ()) -> bool:
        """Wait at most `seconds` for a change, or for input on a descriptor of `also`; return whether anything
        changed.
        """
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
        changed = False
        for line in complete:
            changed |= bool(line.strip()) and self._apply(_event(line))
        return changed

    def close(self) -> None:
        """End the watch."""
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
