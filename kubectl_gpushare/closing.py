"""Temporary cordons: `defrag --apply` cordons the GPUs that it makes room on, and always uncordons them at the end.

A label names the run that cordoned a GPU, so a later run can remove the cordons of a killed one. GPUs that an admin has
cordoned are never uncordoned.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpushare.defragmentation import cordons
from gpushare.defragmentation.cordons import Cordon, CordonChange
from gpushare.defragmentation.moves import Closed
from gpushare.gpunode import GpuNode
from kubectl_gpushare import cordoning, plugin_errors
from kubectl_gpushare.source import live_cluster

Say = Callable[[str], None]


def clean_up(origin: live_cluster.LiveCluster, nodes: Sequence[GpuNode], say: Say) -> None:
    """Uncordon GPUs that interrupted runs left behind. Raises `PluginError` if another run is under way."""
    now = time.time()
    kept = cordons.sentences(nodes, now=now, only_active=True)
    if kept:
        raise plugin_errors.PluginError(
            f"{'; '.join(kept)}: wait until it ends; if it was killed, run `kubectl gpushare uncordon` for them"
        )
    for node in nodes:
        if left := cordons.left_behind(node, now=now):
            # Only unchanged marks: a mark that was renewed in the meantime belongs to a run that is still alive.
            opened = _open(origin, node.name, functools.partial(_is_among, left))
            if opened:
                whose = "a defrag --apply that did not come to its end had left them so"
                say(f"uncordoned {_gpus(opened)} of {node.name}: {whose}")


def _is_among(left: Mapping[str, Cordon], uuid: str, mark: Cordon) -> bool:
    return left.get(uuid) == mark


class TemporaryCordon:
    """The GPUs that one run keeps cordoned."""

    def __init__(self, origin: live_cluster.LiveCluster, say: Say) -> None:
        self._origin = origin
        self._say = say
        self._by = secrets.token_hex(4)
        self._ours: dict[str, frozenset[str]] = {}  # by node

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Uncordon everything at the end; if that fails, print the command that does it by hand."""
        first: BaseException | None = None
        try:
            yield
        except BaseException as error:
            first = error
        for name in self._ours:
            try:
                self._release(name, self._ours[name])
            except BaseException as error:  # `_release` has reported it; go on with the other nodes
                first = first or error
        if first is not None:  # the first error is the cause
            raise first

    def close(self, wanted: Closed, *, seconds: float) -> None:
        """Cordon the `wanted` GPUs for at most `seconds`, and uncordon all others of this run."""
        nodes = dict.fromkeys([*self._ours, *(name for name, _ in wanted)])
        for name in nodes:
            uuids = frozenset(uuid for node, uuid in wanted if node == name)
            before = self._ours.get(name, frozenset())
            if before - uuids:
                self._release(name, before - uuids)
            if uuids:
                self._cordon(name, uuids, time.time() + seconds)

    def _cordon(self, name: str, uuids: frozenset[str], until: float) -> None:
        def change(now: GpuNode) -> CordonChange:
            kept = cordons.extend(now, uuids, Cordon(self._by, until))
            if kept is None:
                raise plugin_errors.PluginError(f"another `defrag --apply` is at work on {name}: make a new plan")
            return kept

        fresh = uuids - self._ours.get(name, frozenset())
        # Record it before the write, which may succeed although its answer is lost.
        self._ours[name] = self._ours.get(name, frozenset()) | uuids
        before = cordoning.swap(self._origin, name, change)
        if fresh - before.cordoned:
            self._say(f"cordoned {_gpus(fresh - before.cordoned)} of {name} for the time being")

    def _release(self, name: str, uuids: frozenset[str]) -> None:
        if not uuids:
            return
        try:
            opened = _open(self._origin, name, lambda uuid, mark: uuid in uuids and mark.by == self._by)
        except BaseException:
            self._say(
                f"warning: {_gpus(uuids)} of {name} may be left cordoned: a later `kubectl gpushare defrag --apply` "
                f"uncordons what is left, or do it now with `kubectl gpushare uncordon gpu {' '.join(sorted(uuids))}`"
            )
            raise
        self._ours[name] -= uuids
        if opened:
            self._say(f"uncordoned {_gpus(opened)} of {name} again")


def _open(origin: live_cluster.LiveCluster, name: str, may_open: Callable[[str, Cordon], bool]) -> frozenset[str]:
    """Uncordon the GPUs of a node whose marks satisfy `may_open`; return their UUIDs."""

    before = cordoning.swap(origin, name, lambda now: cordons.release(now, may_open))
    return frozenset(cordons.release(before, may_open).marks)


def _gpus(uuids: frozenset[str]) -> str:
    return "1 GPU" if len(uuids) == 1 else f"{len(uuids)} GPUs"
