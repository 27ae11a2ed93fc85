"""The source that is a live cluster: GPUNodes always, pods only where a verb needs them and as few as will do."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpushare import contract, node, pod
from kubectl_gpushare import errors, kubectl

if TYPE_CHECKING:
    from gpushare.gpunode import GpuNode
    from kubectl_gpushare.source import objects

_SHARE = f"{contract.SHARE_LABEL}={contract.SHARE_LABEL_VALUE}"

_NODES = "/api/v1/nodes"
_EVERYBODY = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"


class Cluster:
    """The cluster that kubectl's flags choose."""

    def __init__(self, transport: kubectl.Kubectl) -> None:
        self.kubectl = transport
        self._begun: dict[str, kubectl.Running] = {}  # by path

    def begin(self, *, label_selector: str = "") -> None:
        """Asks for GPUNodes already, so that they come while other things are done; `gpu_nodes` gives them."""
        path = node_path(label_selector=label_selector)
        self._begun[path] = self.kubectl.raw(path)

    @property
    def default_namespace(self) -> str:
        """The namespace of the context in force."""
        return self.kubectl.namespace()

    def gpu_nodes(self, *, label_selector: str = "", name: str = "") -> list[GpuNode]:
        """The GPUNodes with these labels, or the one of that name; empty if there is none."""
        return self.listing(label_selector=label_selector, name=name)[0]

    def listing(self, *, label_selector: str = "", name: str = "") -> tuple[list[GpuNode], str]:
        """GPUNodes as `gpu_nodes` gives them, and the resourceVersion to watch from."""
        path = node_path(label_selector=label_selector, name=name)
        running = self._run(path)
        from gpushare import codec  # while kubectl waits for the API server

        reader = running.reader()
        try:
            return [codec.read(item) for item in _objects(reader)], reader.version
        except errors.NotInstalled as error:
            raise self._not_installed(error) from error

    def _not_installed(self, error: errors.NotInstalled) -> errors.NotInstalled:
        """The same, or that another version is installed, if it is that."""
        import json

        try:
            group = json.loads(self.kubectl.raw(f"/apis/{contract.GROUP_NAME}").text())
            served = [str(one["version"]) for one in group["versions"]]
        except (errors.ClusterError, ValueError, KeyError, TypeError):
            return error
        return errors.NotInstalled(
            f"this plugin reads {contract.GROUP_NAME}/{contract.VERSION}, and the cluster's gpushare serves "
            f"{', '.join(served)}: install the plugin and gpushare in the same version"
        )

    def watching(self, version: str, *, label_selector: str = "") -> kubectl.Running:
        """Starts a watch of the GPUNodes; its output is one event a line."""
        return self.kubectl.raw(
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
        running = [self.kubectl.raw(_pods_path(namespace, labelSelector=labels, fieldSelector=one)) for one in fields]
        try:
            return [item for one in running for item in _objects(one.reader())]
        finally:
            for one in running:
                one.stop()

    def machines(self) -> list[node.NodeJson]:
        """The Node objects."""
        return list(_objects(self._run(_NODES).reader()))

    def everybody(self) -> list[pod.PodJson]:
        """All pods that have not ended, of all namespaces, ours or not."""
        found: list[pod.PodJson] = []
        for item in _objects(self._run(_EVERYBODY).reader()):
            item["metadata"].pop("managedFields", None)  # half of a pod, and of no use here
            found.append(item)
        return found

    def budgets(self) -> list[objects.Json]:
        """The PodDisruptionBudgets of all namespaces."""
        return list(_objects(self._run("/apis/policy/v1/poddisruptionbudgets").reader()))

    def events(self, kind: str, namespace: str, name: str) -> list[objects.Json]:
        """The Events about one object; those of what has no namespace are in `default`."""
        fields = f"involvedObject.kind={kind},involvedObject.name={name}"
        within = f"/api/v1/namespaces/{urllib.parse.quote(namespace or 'default', safe='')}/events"
        return list(_objects(self.kubectl.raw(_path(within, {"fieldSelector": fields})).reader()))

    def begin_all(self) -> None:
        """Asks for everything at once, to be read one after the other."""
        for path in (node_path(), _NODES, _EVERYBODY):
            self._begun[path] = self.kubectl.raw(path)

    def end(self) -> None:
        """Ends what was begun and not read."""
        for running in self._begun.values():
            running.stop()
        self._begun.clear()

    def _run(self, path: str) -> kubectl.Running:
        return self._begun.pop(path, None) or self.kubectl.raw(path)

    def pod(self, namespace: str, name: str) -> pod.PodJson:
        """The pod of that name, ours or not."""
        try:
            running = self.kubectl.raw(f"{_pods_path(namespace)}/{urllib.parse.quote(name, safe='')}")
            return next(_objects(running.reader()))
        except errors.NotFound as error:
            raise errors.NotFound(f'pod "{name}" not found in namespace "{namespace}"') from error

    def namespaces(self) -> list[str]:
        """Names of all namespaces."""
        return [str(item["metadata"]["name"]) for item in _objects(self.kubectl.raw("/api/v1/namespaces").reader())]


def _objects(reader: objects.Reader) -> Iterator[objects.Json]:
    from kubectl_gpushare.source.objects import NotJson

    try:
        for _, item in reader:
            yield item
    except NotJson as error:
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
