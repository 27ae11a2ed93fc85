"""Snapshot: what a verb looks at, taken once from a source; views are functions of it."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from gpushare import pod
from gpushare.gpunode import GpuNode
from kubectl_gpushare import cluster, errors, files, options


class Source(Protocol):
    """Where GPUNodes and pods come from."""

    @property
    def default_namespace(self) -> str:
        """The namespace to look in when none is given."""

    def gpu_nodes(self, *, label_selector: str = "", name: str = "") -> list[GpuNode]:
        """The GPUNodes with these labels, or the one of that name."""

    def pods(self, *, node: str = "", namespace: str = "", label_selector: str = "") -> list[pod.PodJson] | None:
        """The pods that share GPUs: on a node or on none yet; of a namespace; with these labels. None: not known."""

    def pod(self, namespace: str, name: str) -> pod.PodJson:
        """One pod, ours or not; raises `NotFound`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """GPUNodes and pods at one moment.

    `pods` is None when they were not looked at or may not be read; `notes` says, in sentences, what is missing and why.
    """

    nodes: tuple[GpuNode, ...]
    pods: tuple[pod.PodJson, ...] | None = None
    notes: tuple[str, ...] = ()


def source(chosen: options.Options) -> Source:
    """The files of `--from`, or else the cluster."""
    return files.Files(chosen.files) if chosen.files else cluster.Cluster(chosen.kubectl())


def with_pods(origin: Source, nodes: list[GpuNode], *, node: str = "") -> Snapshot:
    """These nodes with the pods on them; without the right to read pods, a note says what is left out."""
    try:
        pods = origin.pods(node=node)
    except errors.Forbidden as error:
        return Snapshot(tuple(nodes), None, (f"pods' states and times: {error}",))
    if pods is None:
        return Snapshot(tuple(nodes), None, ("pods' states and times: no pods were saved with the GPUNodes",))
    return Snapshot(tuple(nodes), tuple(pods))
