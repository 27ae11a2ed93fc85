"""The source that is a live cluster: GPUNodes always, pods only where a verb needs them and as few as will do."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping

from gpushare import codec, contract, pod
from gpushare.gpunode import GpuNode
from kubectl_gpushare import errors, kubectl, objects

_SHARE = f"{contract.SHARE_LABEL}={contract.SHARE_LABEL_VALUE}"


class Cluster:
    """The cluster that kubectl's flags choose."""

    def __init__(self, transport: kubectl.Kubectl) -> None:
        self._kubectl = transport

    @property
    def default_namespace(self) -> str:
        """The namespace of the context in force."""
        return self._kubectl.namespace()

    def gpu_nodes(self, *, label_selector: str = "", name: str = "") -> list[GpuNode]:
        """The GPUNodes with these labels, or the one of that name; empty if there is none."""
        return self.listing(label_selector=label_selector, name=name)[0]

    def listing(self, *, label_selector: str = "", name: str = "") -> tuple[list[GpuNode], str]:
        """GPUNodes as `gpu_nodes` gives them, and the resourceVersion to watch from."""
        reader = self._kubectl.raw(node_path(label_selector=label_selector, name=name)).reader()
        return [codec.read(item) for item in _objects(reader)], reader.version

    def watching(self, version: str, *, label_selector: str = "") -> kubectl.Running:
        """Starts a watch of the GPUNodes; its output is one event a line."""
        return self._kubectl.raw(
            node_path(
                label_selector=label_selector,
                more={
                    "watch": "true",
                    "allowWatchBookmarks": "true",
                    "resourceVersion": version,
                    "timeoutSeconds": "600",
                },
            )
        )

    def pods(self, *, node: str = "", namespace: str = "", label_selector: str = "") -> list[pod.PodJson]:
        """The pods that share GPUs: on a node or on none yet; of a namespace; with these labels."""
        labels = ",".join(filter(None, (_SHARE, label_selector)))
        fields = [f"spec.nodeName={node}", "spec.nodeName="] if node else [""]
        running = [self._kubectl.raw(_pods_path(namespace, labelSelector=labels, fieldSelector=one)) for one in fields]
        try:
            return [item for one in running for item in _objects(one.reader())]
        finally:
            for one in running:
                one.stop()

    def pod(self, namespace: str, name: str) -> pod.PodJson:
        """The pod of that name, ours or not."""
        try:
            running = self._kubectl.raw(f"{_pods_path(namespace)}/{urllib.parse.quote(name, safe='')}")
            return next(_objects(running.reader()))
        except errors.NotFound as error:
            raise errors.NotFound(f'pod "{name}" not found in namespace "{namespace}"') from error

    def namespaces(self) -> list[str]:
        """Names of all namespaces."""
        return [str(item["metadata"]["name"]) for item in _objects(self._kubectl.raw("/api/v1/namespaces").reader())]


def _objects(reader: objects.Reader) -> Iterator[objects.Json]:
    try:
        for _, item in reader:
            yield item
    except objects.NotJson as error:
        raise errors.ClusterError(f"kubectl's answer is not JSON, or not all of it: {error}") from error


def node_path(*, label_selector: str = "", name: str = "", more: Mapping[str, str] | None = None) -> str:
    """The API path of some GPUNodes. One by name is a list too, so that none is an empty list and no error."""
    fields = f"metadata.name={name}" if name else ""
    return _path(contract.GPUNODE_PATH, {"labelSelector": label_selector, "fieldSelector": fields, **(more or {})})


def _pods_path(namespace: str = "", **query: str) -> str:
    within = f"/namespaces/{urllib.parse.quote(namespace, safe='')}" if namespace else ""
    return _path(f"/api/v1{within}/pods", query)


def _path(path: str, query: dict[str, str]) -> str:
    text = urllib.parse.urlencode({key: value for key, value in query.items() if value})
    return f"{path}?{text}" if text else path
