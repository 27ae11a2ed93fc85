"""Keeps a snapshot of a cluster current: GPUNodes by a watch; pods, Nodes and usage by reading them again and again.

A large cluster's pods are expensive to list, so the pause between two reads is ten times as long as a read takes. If
the cluster cannot be reached, the last state stays, with the reason, and the follower tries again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract
from gpushare.gpunode import GpuNode
from kubectl_gpushare import following, options, plugin_errors
from kubectl_gpushare.source import agents, chosen_source, live_cluster
from kubectl_gpushare.source.files import Files
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.ui.page_model import Scene

_LOOK_SECONDS: Final = 0.5
_LEAST_PAUSE_SECONDS: Final = 5.0
_PAUSE_PER_READ: Final = 10  # so that reading takes at most a tenth of the time
_ROUNDED_SECONDS: Final = 10  # the pause that the page shows, which rarely changes


class ClusterFollower:
    """A live cluster. `usage`: whether to ask agents; None: only if there are few."""

    def __init__(self, origin: live_cluster.LiveCluster, chosen: options.Options, usage: bool | None) -> None:
        self._origin = origin
        self._usage = usage
        flags = chosen.connection
        name = next((flag.partition("=")[2] for flag in flags if flag.startswith("--context=")), "")
        self._feed = following.Feed(origin)
        self._due = 0.0  # monotonic
        self._trouble = ""
        self._pods_trouble = ""  # of the last read of the pods
        self._namespace = chosen.namespace
        self.scene = Scene(
            Snapshot(()), time.time(), name or _context(origin), is_live=True, flags=flags, namespace=chosen.namespace
        )
        self._read()

    def run(self, publish: Callable[[Scene], None], stopped: threading.Event) -> None:
        """Publish each new state until `stopped`."""
        try:
            while not stopped.is_set():
                changed = self._feed.wait(_LOOK_SECONDS)
                until = time.monotonic() + _LOOK_SECONDS
                while changed and time.monotonic() < until and self._feed.wait(following.SETTLE_SECONDS):
                    pass
                is_due = time.monotonic() >= self._due
                if changed or is_due or self._feed.trouble != self._trouble:
                    self._read(with_pods=is_due or changed)
                    publish(self.scene)
        finally:
            self._feed.close()

    def _read(self, *, with_pods: bool = True) -> None:
        self._trouble = trouble = self._feed.trouble
        pause = self.scene.pause_seconds
        nodes = tuple(self._feed.nodes)
        snapshot = dataclasses.replace(self.scene.snapshot, nodes=nodes)
        scene = dataclasses.replace(self.scene, at=time.time(), snapshot=snapshot)
        if with_pods and not trouble and time.monotonic() >= self._due - _LEAST_PAUSE_SECONDS + 1:
            began = time.monotonic()
            try:
                scene = self._around(nodes, scene)
                self._pods_trouble = ""
            except plugin_errors.PluginError as error:
                self._pods_trouble = str(error)
            took = time.monotonic() - began
            between = max(_LEAST_PAUSE_SECONDS, took * (_PAUSE_PER_READ + 1))
            pause = math.ceil(between / _ROUNDED_SECONDS) * _ROUNDED_SECONDS
            self._due = time.monotonic() + max(_LEAST_PAUSE_SECONDS, took * _PAUSE_PER_READ)
        self.scene = dataclasses.replace(scene, trouble=trouble or self._pods_trouble, pause_seconds=pause)

    def _around(self, nodes: tuple[GpuNode, ...], scene: Scene) -> Scene:
        snapshot = chosen_source.around(self._origin, nodes, namespace=self._namespace)
        wanted = [node.name for node in nodes if node.gpus]
        if self._usage is False:
            why = "--no-usage was given"
        elif self._usage is None and len(wanted) > agents.ASKED_UNASKED:
            why = f"agents of more than {agents.ASKED_UNASKED} nodes are asked only with --usage"
        else:
            used, said = agents.ask(self._origin.kubectl, wanted)
            notes = (*snapshot.notes, *said)
            snapshot = dataclasses.replace(snapshot, usage=used if used.nodes else None, notes=notes)
            why = "; ".join(said) or "no agent answers"
        same_profile = snapshot.profile == scene.snapshot.profile
        snapshot = dataclasses.replace(snapshot, profile=scene.snapshot.profile if same_profile else snapshot.profile)
        return dataclasses.replace(scene, snapshot=snapshot, usage_at=time.time(), why_no_usage=why)

    def events(self) -> Sequence[Mapping[str, Any]] | None:
        """Return the Events that the history begins with; None without the right to read them, or if that failed."""
        with contextlib.suppress(plugin_errors.KubectlError):
            return self._origin.recent_events((contract.EVENT_GATED, contract.EVENT_PLACED))
        return None


def saved_scene(origin: Files, chosen: options.Options, now: float) -> Scene:
    """Return the scene of saved files."""
    snapshot = chosen_source.everything(origin)
    flags = tuple(f"--from={name}" for name in chosen.files)
    return Scene(snapshot, now, ", ".join(chosen.files), flags=flags, why_no_usage="saved files do not have it")


def _context(origin: live_cluster.LiveCluster) -> str:
    try:
        return origin.kubectl.current_context()
    except plugin_errors.KubectlError:
        return ""
