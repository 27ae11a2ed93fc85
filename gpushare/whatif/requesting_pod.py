"""RequestingPod: a pod that requests a share, as the engine places it.

A pod that was placed before is planned as its owner would recreate it: without what placement wrote, so that every node
is open to it again, and with what the user wrote.
"""

from __future__ import annotations

import dataclasses

from gpushare import contract, errors, pod
from gpushare import request as requests
from gpushare.allocation import peak
from gpushare.request import Request


@dataclasses.dataclass(frozen=True, slots=True)
class RequestingPod:
    """A pod with its parsed request."""

    manifest: pod.PodJson
    request: Request

    @classmethod
    def from_manifest(cls, manifest: pod.PodJson) -> RequestingPod:
        """Parse the request. Raises `RequestError` if it is invalid."""
        return cls(manifest, requests.parse(manifest))

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return pod.namespaced_name(self.manifest)[0]

    @property
    def request_gpus(self) -> float:
        """The requested compute, in GPUs."""
        return peak(self.request.demands, lambda demand: demand.gpus * demand.share.request_percent) / 100

    def with_annotation(self, key: str, value: str | None) -> RequestingPod | None:
        """Return the pod with one annotation changed, or removed (None); None if the request is then invalid."""
        metadata = self.manifest.get("metadata") or {}
        annotations = {name: text for name, text in pod.annotations_of(self.manifest).items() if name != key}
        annotations |= {} if value is None else {key: value}
        changed = {**self.manifest, "metadata": {**metadata, "annotations": annotations}}
        try:
            return RequestingPod.from_manifest(changed) if pod.asks_for_share(changed) else None
        except errors.RequestError:
            return None


def without_placement(manifest: pod.PodJson) -> pod.PodJson:
    """Return the pod without the annotations, node and hostname selector that placement wrote.

    A hostname selector of the user's own stays. A pod that was not placed is returned unchanged.
    """
    annotations = pod.annotations_of(manifest)
    if contract.ALLOCATION not in annotations:
        return manifest
    spec = {key: value for key, value in (manifest.get("spec") or {}).items() if key != "nodeName"}
    selector = {**(spec.get("nodeSelector") or {})}
    selector.pop(contract.HOSTNAME_LABEL, None)
    if contract.OWN_HOSTNAME in annotations:
        selector[contract.HOSTNAME_LABEL] = annotations[contract.OWN_HOSTNAME]
    asked = {key: value for key, value in annotations.items() if not requests.is_result_key(key)}
    metadata = {**(manifest.get("metadata") or {}), "annotations": asked}
    return {**manifest, "metadata": metadata, "spec": {**spec, "nodeSelector": selector}}


def successor(manifest: pod.PodJson) -> pod.PodJson:
    """Return the pod that its owner would create to replace this one: unplaced, with another name."""
    fresh = without_placement(manifest)
    metadata = {key: value for key, value in (fresh.get("metadata") or {}).items() if key != "uid"}
    spec = {key: value for key, value in (fresh.get("spec") or {}).items() if key != "nodeName"}
    return {**fresh, "metadata": {**metadata, "name": f"{metadata.get('name')}-anew"}, "spec": spec, "status": {}}
