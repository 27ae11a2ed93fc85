"""Writes the Events about this node's GPUs: on its GPUNode, and on the pods that are concerned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from deviceplugin import announcing
from deviceplugin.live import cluster_view
from deviceplugin.live.gpu_users import GpuUsers
from deviceplugin.offer import Offer
from gpushare import pod
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson


class Announcer:
    """Follows the offer.

    node: the GPUNode as last seen; pods: those of the node; gpu_of: by the UUID of a GPU or MIG device, that of the GPU
        that it is on.
    """

    def __init__(
        self,
        cluster: cluster_view.ClusterView,
        witness: GpuUsers,
        *,
        offer: Offer,
        node: Callable[[], GpuNode | None],
        pods: Callable[[], Iterable[PodJson]],
        gpu_of: Callable[[], Mapping[str, str]],
    ) -> None:
        self._cluster = cluster
        self._witness = witness
        self._offer = offer
        self._node = node
        self._pods = pods
        self._gpu_of = gpu_of

    async def run(self) -> None:
        """Tell of GPUs that stop or begin to be usable, until cancelled."""
        before: tuple[Gpu, ...] = ()
        async for gpus in self._offer.follow():
            told = announcing.notes(before, gpus)
            before = gpus
            if told:
                await self._witness.ask_kubelet()
                announcing.announce(told, self._cluster, pods=self._concerned, reference=self._reference)

    def warn(self, reason: str, note: str, of: tuple[str, str] | None) -> None:
        """An Event of something amiss, about the GPUNode and, by namespace and name, a pod."""
        self._cluster.tell(reason, note, warning=True)
        if of is not None:
            self._cluster.tell_of(self._reference(*of), reason, note, warning=True)

    def _concerned(self, gpu: str) -> tuple[tuple[str, str], ...]:
        return announcing.concerned(gpu, self._node(), self._witness.held, self._gpu_of())

    def _reference(self, namespace: str, name: str) -> dict[str, str]:
        found = next((one for one in self._pods() if pod.namespaced_name(one) == (namespace, name)), None)
        return cluster_view.pod_reference(namespace, name, pod.uid(found) if found is not None else "")
