"""Events about this node's GPUNode and about the node's pods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from deviceplugin.state.gpunode_copy import GpuNodeCopy
from gpushare import pod
from gpushare.cluster import events
from gpushare.pod import PodJson


@dataclasses.dataclass(frozen=True, slots=True)
class NodeEvents:
    """Records Events. pods: returns the pods of the node, to look up UIDs."""

    recorder: events.Recorder
    gpunode: GpuNodeCopy
    _: dataclasses.KW_ONLY
    pods: Callable[[], Iterable[PodJson]]

    def record(self, reason: str, note: str, *, warning: bool = False) -> None:
        """Record an Event about the GPUNode."""
        self._record(self.gpunode.reference, reason, note, warning=warning)

    def record_for_pod(self, namespace: str, name: str, reason: str, note: str, *, warning: bool = False) -> None:
        """Record an Event about a pod."""
        reference = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name}
        uids = (pod.uid(manifest) for manifest in self.pods() if pod.namespaced_name(manifest) == (namespace, name))
        uid = next(uids, "")
        self._record(reference | ({"uid": uid} if uid else {}), reason, note, warning=warning)

    def warn(self, reason: str, note: str, of: tuple[str, str] | None) -> None:
        """Record a warning about the GPUNode and, if `of` gives a namespace and name, about that pod."""
        self.record(reason, note, warning=True)
        if of is not None:
            self.record_for_pod(*of, reason, note, warning=True)

    def _record(self, regarding: Mapping[str, str], reason: str, note: str, *, warning: bool) -> None:
        self.recorder.record(regarding, reason, note, type="Warning" if warning else "Normal", action="Configure")
