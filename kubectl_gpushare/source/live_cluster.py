"""Reads a live cluster: GPUNodes, and only those other objects that a verb needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from gpushare import contract, node, pod
from kubectl_gpushare import kubectl, plugin_errors

if TYPE_CHECKING:
    from gpushare.gpunode import GpuNode
    from gpushare.object_parsers import Json

_Key = TypeVar("_Key")
_SHARE = f"{contract.SHARE_LABEL}={contract.SHARE_LABEL_VALUE}"

_NODES = "/api/v1/nodes"
_PLACEMENT = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/configmaps/{contract.PLACEMENT_CONFIG_MAP}"
_AGENT = f"/apis/apps/v1/namespaces/{contract.SYSTEM_NAMESPACE}/daemonsets/gpushare-agent"
# Group and version -> kinds with a pod template.
_WITH_PODS = {
    "/apis/apps/v1": ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"),
    "/apis/batch/v1": ("CronJob", "Job"),
    "/api/v1": ("ReplicationController", "Pod"),
    "/apis/kubeshare.nthu/v1": ("SharePod",),
}
_KUEUE = "/apis/kueue.x-k8s.io"
_EVERYBODY = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"


class LiveCluster:
    """The cluster that kubectl's flags choose."""

    def __init__(self, transport: kubectl.Kubectl) -> None:
        self.kubectl = transport
        self._begun: dict[str, kubectl.Running] = {}  # by path

    def begin(self, *, node_objects: bool = False, pods: bool = False) -> None:
        """Start to read GPUNodes, Nodes with the placer's profile, and pods, so that they arrive during imports."""
        for path in (node_path(), *([_NODES, _PLACEMENT] if node_objects else []), *([_EVERYBODY] if pods else [])):
            self._begun[path] = self.kubectl.raw(path)

    def end(self) -> None:
        for running in self._begun.values():
            running.stop()
        self._begun.clear()

    def _run(self, path: str) -> kubectl.Running:
        return self._begun.pop(path, None) or self.kubectl.raw(path)

    @property
    def default_namespace(self) -> str:
        return self.kubectl.namespace()

    def gpu_nodes(self, *, label_selector: str = "", name: str = "") -> list[GpuNode]:
        if not label_selector:
            return self.listing(name=name)[0]
        path = _path(_NODES, {"labelSelector": label_selector})
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
            return frozenset(map(node.name, self._list(_path(_NODES, {"labelSelector": label_selector}))))
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
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": "600"}
        return self.kubectl.raw(_path(contract.GPUNODE_PATH, query))

    def pods(self, *, node: str = "", namespace: str = "", label_selector: str = "") -> list[pod.PodJson]:
        """Return the pods that share GPUs: on `node` or on none yet; in a namespace; with these labels."""
        labels = ",".join(filter(None, (_SHARE, label_selector)))
        fields = [f"spec.nodeName={node}", "spec.nodeName="] if node else [""]
        paths = [_pods_path(namespace, labelSelector=labels, fieldSelector=field) for field in fields]
        return [item for items in self._lists(dict(enumerate(paths))).values() for item in items]

    def unbound_pods(self) -> list[pod.PodJson]:
        return self._list(_pods_path(labelSelector=_SHARE, fieldSelector="spec.nodeName="))

    def node_objects(self) -> list[node.NodeJson]:
        return self._list(_NODES)

    def node_object(self, name: str) -> node.NodeJson | None:
        try:
            return self.document(f"{_NODES}/{_quoted(name)}")
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
            agent = self.document(_AGENT)
        except (plugin_errors.KubectlNotFound, plugin_errors.KubectlForbidden):
            return
        for container in agent["spec"]["template"]["spec"]["containers"]:
            for argument in container.get("args") or ():
                namespace, _, name = argument.removeprefix("--config-map=").partition("/")
                if argument.startswith("--config-map=") and (namespace, name) != usual:
                    yield namespace, name

    def placement(self) -> dict[str, str]:
        try:
            return dict(self.document(_PLACEMENT).get("data") or {})
        except plugin_errors.KubectlNotFound:
            return {}

    def everybody(self) -> list[pod.PodJson]:
        manifests: list[pod.PodJson] = []
        for item in _objects(self._run(_EVERYBODY).reader()):
            item["metadata"].pop("managedFields", None)  # half of a pod's size, and not needed
            manifests.append(item)
        return manifests

    def everybody_of(self, *, namespace: str) -> list[pod.PodJson]:
        return self._list(_pods_path(namespace))

    def budgets(self) -> list[Json]:
        return self._list("/apis/policy/v1/poddisruptionbudgets")

    def queue_workloads(self, namespace: str) -> list[Json]:
        """Return Kueue's Workloads of a namespace, in the version that the cluster prefers; empty without Kueue."""
        try:
            version = self.document(_KUEUE)["preferredVersion"]["version"]
            return self._list(f"{_KUEUE}/{version}/namespaces/{_quoted(namespace)}/workloads")
        except (plugin_errors.KubectlNotFound, plugin_errors.NotInstalled):
            return []

    def quotas(self, namespace: str) -> list[Json]:
        return self._list(f"/api/v1/namespaces/{_quoted(namespace)}/resourcequotas")

    def namespace(self, name: str) -> Json | None:
        try:
            return self.document(f"/api/v1/namespaces/{_quoted(name)}")
        except plugin_errors.KubectlNotFound:
            return None

    def events(self, kind: str, namespace: str, name: str) -> list[Json]:
        # The Events of cluster-wide objects are in `default`.
        return self._events(namespace or "default", f"involvedObject.kind={kind},involvedObject.name={name}")

    def _events(self, namespace: str, fields: str) -> list[Json]:
        return self._list(_path(f"/api/v1/namespaces/{_quoted(namespace)}/events", {"fieldSelector": fields}))

    def recent_events(self, reasons: Iterable[str]) -> list[Json]:
        """Return the Events of all namespaces with these reasons, and those of GPUNodes."""
        paths = {reason: _path("/api/v1/events", {"fieldSelector": f"reason={reason}"}) for reason in reasons}
        nodes = f"involvedObject.kind={contract.GPUNODE_KIND}"
        paths[""] = _path("/api/v1/namespaces/default/events", {"fieldSelector": nodes})
        return [event for events in self._lists(paths).values() for event in events]

    def failures(self, namespace: str) -> list[Json]:
        try:
            return self._events(namespace, "reason=FailedCreate")
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

    def with_pod_templates(self, namespace: str) -> Iterator[Json]:
        """Yield the namespace's workloads, pods, and KubeShare's SharePods where the cluster has them."""
        within = f"namespaces/{_quoted(namespace)}"
        running = {
            (group, kind): self.kubectl.raw(f"{group}/{within}/{kind.lower()}s")
            for group, kinds in _WITH_PODS.items()
            for kind in kinds
        }
        try:
            for (group, kind), process in running.items():
                version = group.removeprefix("/apis/").removeprefix("/api/")
                try:
                    for item in _objects(process.reader()):
                        yield {"apiVersion": version, "kind": kind, **item}
                except plugin_errors.NotInstalled:  # the kind is missing
                    if kind != "SharePod":
                        raise
        finally:
            for process in running.values():
                process.stop()

    def storage(self) -> dict[str, list[Json]]:
        from gpushare.nodefilters import volumes

        return self._lists(volumes.PATHS)

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
            return self.document(f"{_pods_path(namespace)}/{_quoted(name)}")
        except plugin_errors.KubectlNotFound as error:
            raise plugin_errors.KubectlNotFound(f'pod "{name}" not found in namespace "{namespace}"') from error

    def document(self, path: str) -> Json:
        """Return the single object at a path, such as the API server's version or its API groups."""
        item = next(_objects(self._run(path).reader()), None)
        if item is None:
            raise plugin_errors.KubectlError("kubectl's answer is empty where one object was asked for")
        return item

    def _list(self, path: str) -> list[Any]:
        return list(_objects(self._run(path).reader()))

    def _lists(self, paths: Mapping[_Key, str]) -> dict[_Key, list[Any]]:
        running = {key: self.kubectl.raw(path) for key, path in paths.items()}
        try:
            return {key: list(_objects(process.reader())) for key, process in running.items()}
        finally:
            for process in running.values():
                process.stop()

    def namespaces(self) -> list[str]:
        return [str(item["metadata"]["name"]) for item in self._list("/api/v1/namespaces")]


def _objects(reader: kubectl.Reader) -> Iterator[Json]:
    from gpushare.object_parsers import NotJson

    try:
        for _, item in reader:
            yield item
    except NotJson as error:
        if "Please enter Username" in str(error):  # kubectl's prompt on standard output
            raise plugin_errors.KubectlError(
                "kubectl has no credentials for this cluster, and asks for a name and a password: log in first, or "
                "choose another user or cluster with --user or --context"
            ) from error
        raise plugin_errors.KubectlError(f"kubectl's answer is not JSON, or not all of it: {error}") from error


def node_path(*, name: str = "") -> str:
    # A single one is listed too: if it is missing, the list is empty, and no error.
    return _path(contract.GPUNODE_PATH, {"fieldSelector": f"metadata.name={name}" if name else ""})


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
