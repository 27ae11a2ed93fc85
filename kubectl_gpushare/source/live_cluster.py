"""Reads a live cluster: GPUNodes, and only those other objects that a verb needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpushare import contract, node, pod
from kubectl_gpushare import kubectl, plugin_errors

if TYPE_CHECKING:
    from gpushare.gpunode import GpuNode
    from gpushare.json_objects import Json

_SHARE = f"{contract.SHARE_LABEL}={contract.SHARE_LABEL_VALUE}"

_ASKS = "Please enter Username"  # kubectl's prompt on standard output when it has no credentials
_NODES = "/api/v1/nodes"
_PLACEMENT = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/configmaps/{contract.PLACEMENT_CONFIG_MAP}"
_AGENT = f"/apis/apps/v1/namespaces/{contract.SYSTEM_NAMESPACE}/daemonsets/gpushare-agent"
_EVERYBODY = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"


class LiveCluster:
    """The cluster that kubectl's flags choose."""

    def __init__(self, transport: kubectl.Kubectl) -> None:
        self.kubectl = transport
        self._begun: dict[str, kubectl.Running] = {}  # by path

    def begin(self, *, node_objects: bool = False, pods: bool = False) -> None:
        """Start to read GPUNodes, so that they arrive while Python imports what shows them; `gpu_nodes` returns them.

        node_objects: also Nodes, and the placer's profile; pods: also all pods.
        """
        for path in (node_path(), *([_NODES, _PLACEMENT] if node_objects else []), *([_EVERYBODY] if pods else [])):
            self._begun[path] = self.kubectl.raw(path)

    @property
    def default_namespace(self) -> str:
        return self.kubectl.namespace()

    def gpu_nodes(self, *, label_selector: str = "", name: str = "") -> list[GpuNode]:
        if not label_selector:
            return self.listing(name=name)[0]
        path = _labelled_path(label_selector)
        self._begun[path] = self.kubectl.raw(path)  # arrives while the GPUNodes are read
        try:
            nodes, _ = self.listing(name=name)
            names = self.labelled(label_selector)
        finally:
            self.end()
        return [gpu_node for gpu_node in nodes if gpu_node.name in names]

    def labelled(self, label_selector: str) -> frozenset[str]:
        # `--raw` returns whole Nodes. Asking kubectl for a table of names alone takes longer.
        try:
            return frozenset(map(node.name, _objects(self._run(_labelled_path(label_selector)).reader())))
        except plugin_errors.KubectlForbidden as error:
            raise plugin_errors.KubectlForbidden(f"-l goes by the labels of Nodes, and {error}") from error

    def listing(self, *, name: str = "") -> tuple[list[GpuNode], str]:
        """Return all GPUNodes, or the one of that name, and the resourceVersion to watch from."""
        running = self._run(node_path(name=name))
        from gpushare import codec  # while kubectl waits for the API server

        reader = running.reader()
        try:
            return [codec.read(item) for item in _objects(reader)], reader.version
        except plugin_errors.NotInstalled as error:
            raise self._not_installed(error) from error

    def _not_installed(self, error: plugin_errors.NotInstalled) -> plugin_errors.NotInstalled:
        import json

        try:
            group = json.loads(self.kubectl.raw(f"/apis/{contract.GROUP_NAME}").text())
            served = [str(version["version"]) for version in group["versions"]]
        except (plugin_errors.KubectlError, ValueError, KeyError, TypeError):
            return error
        return plugin_errors.NotInstalled(
            f"this plugin reads {contract.GROUP_NAME}/{contract.VERSION}, and the cluster's gpushare serves "
            f"{', '.join(served)}: install the plugin and gpushare in the same version"
        )

    def watching(self, version: str) -> kubectl.Running:
        """Start a watch of the GPUNodes; its output is one event a line."""
        return self.kubectl.raw(
            node_path(
                more={
                    "watch": "true",
                    "allowWatchBookmarks": "true",
                    "resourceVersion": version,
                    "timeoutSeconds": "600",
                },
            )
        )

    def pods(self, *, node: str = "", namespace: str = "", label_selector: str = "") -> list[pod.PodJson]:
        labels = ",".join(filter(None, (_SHARE, label_selector)))
        fields = [f"spec.nodeName={node}", "spec.nodeName="] if node else [""]
        running = [
            self.kubectl.raw(_pods_path(namespace, labelSelector=labels, fieldSelector=field)) for field in fields
        ]
        try:
            return [item for process in running for item in _objects(process.reader())]
        finally:
            for process in running:
                process.stop()

    def node_objects(self) -> list[node.NodeJson]:
        return list(_objects(self._run(_NODES).reader()))

    def node_object(self, name: str) -> node.NodeJson | None:
        try:
            return _object(self.kubectl.raw(f"{_NODES}/{_quoted(name)}").reader())
        except plugin_errors.KubectlNotFound:
            return None

    def configurations(self) -> dict[str, str]:
        return dict((self.config_map()[1] or {}).get("data") or {})

    def config_map(self) -> tuple[tuple[str, str], Json | None]:
        """Return namespace and name of the ConfigMap with the nodes' configurations, and the ConfigMap if it exists."""
        location = ("", "")
        for location in self._config_maps():
            within = f"/api/v1/namespaces/{_quoted(location[0])}/configmaps/{_quoted(location[1])}"
            try:
                return location, self.document(within)
            except plugin_errors.KubectlNotFound:
                continue
        return location, None  # the last is from the agents' arguments

    def _config_maps(self) -> Iterator[tuple[str, str]]:
        """Return the ConfigMap's possible names: the usual one, and the one in the agents' arguments."""
        usual = (contract.SYSTEM_NAMESPACE, contract.CONFIG_MAP)
        yield usual
        try:
            agent = _object(self.kubectl.raw(_AGENT).reader())
        except (plugin_errors.KubectlNotFound, plugin_errors.KubectlForbidden):
            return
        for container in agent["spec"]["template"]["spec"]["containers"]:
            for argument in container.get("args") or ():
                namespace, _, name = argument.removeprefix("--config-map=").partition("/")
                if argument.startswith("--config-map=") and (namespace, name) != usual:
                    yield namespace, name

    def placement(self) -> dict[str, str]:
        try:
            return dict(_object(self._run(_PLACEMENT).reader()).get("data") or {})
        except plugin_errors.KubectlNotFound:
            return {}

    def everybody(self) -> list[pod.PodJson]:
        manifests: list[pod.PodJson] = []
        for item in _objects(self._run(_EVERYBODY).reader()):
            item["metadata"].pop("managedFields", None)  # half of a pod's size, and not needed
            manifests.append(item)
        return manifests

    def everybody_of(self, *, namespace: str) -> list[pod.PodJson]:
        return list(_objects(self.kubectl.raw(_pods_path(namespace)).reader()))

    def budgets(self) -> list[Json]:
        return list(_objects(self._run("/apis/policy/v1/poddisruptionbudgets").reader()))

    def quotas(self, namespace: str) -> list[Json]:
        return list(_objects(self.kubectl.raw(f"/api/v1/namespaces/{_quoted(namespace)}/resourcequotas").reader()))

    def events(self, kind: str, namespace: str, name: str) -> list[Json]:
        """Return the Events about one object; those of cluster-wide objects are in `default`."""
        fields = f"involvedObject.kind={kind},involvedObject.name={name}"
        within = f"/api/v1/namespaces/{_quoted(namespace or 'default')}/events"
        return list(_objects(self.kubectl.raw(_path(within, {"fieldSelector": fields})).reader()))

    def failures(self, namespace: str) -> list[Json]:
        within = f"/api/v1/namespaces/{_quoted(namespace)}/events"
        try:
            return list(_objects(self.kubectl.raw(_path(within, {"fieldSelector": "reason=FailedCreate"})).reader()))
        except plugin_errors.KubectlForbidden:
            return []

    def workload(self, kind: str, namespace: str, name: str) -> Json | None:
        group = "batch" if kind.endswith("Job") else "apps"
        try:
            return self.document(f"/apis/{group}/v1/namespaces/{_quoted(namespace)}/{kind.lower()}s/{_quoted(name)}")
        except plugin_errors.KubectlForbidden:
            return None
        except plugin_errors.KubectlNotFound as error:
            raise plugin_errors.KubectlNotFound(f'{kind} "{name}" not found in namespace "{namespace}"') from error

    def storage(self) -> dict[str, list[Json]]:
        from gpushare.nodefilters import volumes

        running = {kind: self.kubectl.raw(path) for kind, path in volumes.PATHS.items()}
        try:
            return {kind: list(_objects(process.reader())) for kind, process in running.items()}
        finally:
            for process in running.values():
                process.stop()

    def end(self) -> None:
        for running in self._begun.values():
            running.stop()
        self._begun.clear()

    def _run(self, path: str) -> kubectl.Running:
        return self._begun.pop(path, None) or self.kubectl.raw(path)

    def replicas(self, manifest: pod.PodJson) -> int:
        """Return the replicas that a pod's ReplicaSet, StatefulSet or ReplicationController wants."""
        namespace = pod.namespaced_name(manifest)[0]
        owners = manifest["metadata"].get("ownerReferences") or ()
        controller = next(owner for owner in owners if owner.get("controller"))
        group = "/api/v1" if controller["kind"] == "ReplicationController" else "/apis/apps/v1"
        workload = self.document(
            f"{group}/namespaces/{_quoted(namespace)}/{controller['kind'].lower()}s/{_quoted(controller['name'])}"
        )
        wanted = (workload.get("spec") or {}).get("replicas")
        return 1 if wanted is None else int(wanted)

    def pod(self, namespace: str, name: str) -> pod.PodJson:
        try:
            return _object(self.kubectl.raw(f"{_pods_path(namespace)}/{_quoted(name)}").reader())
        except plugin_errors.KubectlNotFound as error:
            raise plugin_errors.KubectlNotFound(f'pod "{name}" not found in namespace "{namespace}"') from error

    def document(self, path: str) -> Json:
        return _object(self.kubectl.raw(path).reader())

    def namespaces(self) -> list[str]:
        return [str(item["metadata"]["name"]) for item in _objects(self.kubectl.raw("/api/v1/namespaces").reader())]


def _objects(reader: kubectl.Reader) -> Iterator[Json]:
    from gpushare.json_objects import NotJson

    try:
        for _, item in reader:
            yield item
    except NotJson as error:
        if _ASKS in str(error):
            raise plugin_errors.KubectlError(
                "kubectl has no credentials for this cluster, and asks for a name and a password: log in first, or "
                "choose another user or cluster with --user or --context"
            ) from error
        raise plugin_errors.KubectlError(f"kubectl's answer is not JSON, or not all of it: {error}") from error


def _object(reader: kubectl.Reader) -> Json:
    item = next(_objects(reader), None)
    if item is None:
        raise plugin_errors.KubectlError("kubectl's answer is empty where one object was asked for")
    return item


def node_path(*, name: str = "", more: Mapping[str, str] | None = None) -> str:
    """Return the API path of some GPUNodes. A single one is listed too: if it is missing, the list is empty, and no
    error.
    """
    fields = f"metadata.name={name}" if name else ""
    return _path(contract.GPUNODE_PATH, {"fieldSelector": fields, **(more or {})})


def _labelled_path(label_selector: str) -> str:
    return _path(_NODES, {"labelSelector": label_selector})


def _pods_path(namespace: str = "", **query: str) -> str:
    within = f"/namespaces/{_quoted(namespace)}" if namespace else ""
    return _path(f"/api/v1{within}/pods", query)


def _path(path: str, query: dict[str, str]) -> str:
    asked = {key: value for key, value in query.items() if value}
    if not asked:
        return path
    import urllib.parse  # here, as below: a plain `top` does not need it

    return f"{path}?{urllib.parse.urlencode(asked)}"


def _quoted(name: str) -> str:
    import urllib.parse

    return urllib.parse.quote(name, safe="")
