"""Finds MPS servers whose clients may hang, because one of them was killed.

Up to CUDA 13.5, the kill of a client whose kernels run can stop all kernels of its server for ever, without an error.
No interface reports that. The daemon listed a process of the container as a client, and the kubelet reports that the
container was killed. Whether kernels ran is unknown, so the report says that clients may hang.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from deviceplugin.audit.node_audit import SeenShare
from gpushare import pod
from gpushare.allocation import Isolation
from gpushare.pod import PodJson

LAST_CUDA: Final = (13, 5)  # from later ones on, the other clients continue
_KILLED: Final = 128 + 9  # a container's exit code after SIGKILL
_Server = tuple[str, int]  # of this GPU, by UUID, with this PID

# The clients of each server by its PID, by the GPU's UUID; None for a daemon that does not list them.
Clients = Mapping[str, Mapping[int, frozenset[int]] | None]


class KilledClients:
    """The servers with a killed client, until all their clients have ended."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}  # by the ID of the container that has clients
        self._killed: dict[_Server, str] = {}

    def pod_changed(self, manifest: PodJson) -> None:
        """Notice killed containers. The last status of a deleted pod comes right before the pod is gone."""
        for entry, ended in _ended(manifest):
            server = self._servers.pop(str(ended.get("containerID")), None)
            if server is not None and ended.get("exitCode") == _KILLED:
                of = "/".join((*pod.namespaced_name(manifest), str(entry.get("name"))))
                self._killed[server] = (
                    f"MPS clients on {server[0]} may hang without an error: the container {of}, which was a client "
                    "too, was killed (SIGKILL). If they hang, delete all pods with a share by MPS on this GPU"
                )

    def update(self, clients: Clients, shares: Iterable[SeenShare], pods: Iterable[PodJson]) -> dict[str, str]:
        """Return a sentence for each GPU whose clients may hang, by its UUID."""
        self._servers |= dict(_running(clients, shares, {pod.uid(manifest): manifest for manifest in pods}))
        self._servers = {name: server for name, server in self._servers.items() if _has_clients(clients, server)}
        self._killed = {server: why for server, why in self._killed.items() if _has_clients(clients, server)}
        return {uuid: why for (uuid, _), why in self._killed.items()}


def _running(
    clients: Clients, shares: Iterable[SeenShare], pods: Mapping[str, PodJson]
) -> Iterator[tuple[str, _Server]]:
    """Yield the IDs of the running containers of shares that have clients, with the server."""
    for share in shares:
        tenant = share.tenant
        if tenant.isolation is not Isolation.MPS or not tenant.grants:
            continue
        uuid, pids = tenant.grants[0].uuid, {member.identity[0] for member in share.members}
        servers = [server for server, listed in (clients.get(uuid) or {}).items() if pids & listed]
        for entry in _statuses(pods.get(tenant.pod_uid, {})):
            if servers and entry.get("name") in tenant.containers and "running" in (entry.get("state") or {}):
                yield str(entry.get("containerID")), (uuid, servers[0])


def _ended(manifest: PodJson) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield a pod's ended containers: the status, and how the container ended."""
    for entry in _statuses(manifest):
        for state in (entry.get("lastState"), entry.get("state")):
            if (ended := (state or {}).get("terminated")) is not None:
                yield entry, ended


def _statuses(manifest: PodJson) -> Iterator[Mapping[str, Any]]:
    status: Mapping[str, Any] = manifest.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(kind) or ()


def _has_clients(clients: Clients, server: _Server) -> bool:
    uuid, pid = server
    servers = clients.get(uuid, {})
    return servers is None or bool(servers.get(pid))
