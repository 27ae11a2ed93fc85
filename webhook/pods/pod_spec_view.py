"""PodSpecView: the parts of a pod's manifest that admission reads again and again, looked up once. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gpushare import contract, pod
from gpushare import request as requests
from gpushare.pod import PodJson
from gpushare.request import Request

Container = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class PodSpecView:
    """A view of a manifest: its containers are the manifest's own objects.

    all_containers: ordinary containers, then init containers. default_container: see `pod.default_container`.
    """

    manifest: PodJson
    spec: Mapping[str, Any]
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...]
    all_containers: tuple[Container, ...]
    default_container: str

    @classmethod
    def read(cls, manifest: PodJson) -> PodSpecView:
        """Read a manifest that keeps to all caps. Raises an error of any type if it is not a valid pod."""
        metadata, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
        containers, init_containers = tuple(pod.containers(manifest)), tuple(pod.init_containers(manifest))
        return cls(
            manifest,
            spec,
            metadata.get("annotations") or {},
            metadata.get("labels") or {},
            containers,
            init_containers,
            (*containers, *init_containers),
            pod.default_container(manifest),
        )

    def request(self) -> Request:
        """Parse what the pod requests. Raises RequestError."""
        names = tuple(str(container.get("name") or "") for container in self.all_containers)
        sidecars = tuple((str(each.get("name") or ""), pod.is_sidecar(each)) for each in self.init_containers)
        return requests.read(self.annotations, names, self.default_container, init_containers=sidecars)

    @property
    def has_share_label(self) -> bool:
        """Whether gpushare has rewritten this pod, or the one that it is a copy of."""
        return self.labels.get(contract.SHARE_LABEL) == contract.SHARE_LABEL_VALUE

    @property
    def pinned_host(self) -> str:
        """The host in the node selector of a pod that comes with a placement of ours; empty without one."""
        if contract.ALLOCATION not in self.annotations:
            return ""
        return str((self.spec.get("nodeSelector") or {}).get(contract.HOSTNAME_LABEL) or "")
