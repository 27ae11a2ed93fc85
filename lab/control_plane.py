"""The control plane of a lab as values: etcd, API server, scheduler and controller manager.

Pure except for `write_files`: turns a layout into command lines.
"""

from __future__ import annotations

from pathlib import Path

from lab import api_server_files, certificates, component, daemon_process, kubeconfig, lab_layout

ISSUER = "https://kubernetes.default.svc"
ADMINISTRATORS = "system:masters"
AGGREGATOR = "front-proxy-client"  # the API server, as a client of the servers that APIServices name
# The API server's clients: certificate and kubeconfig name, user name, groups.
CLIENTS = {
    "admin": ("kubernetes-admin", (ADMINISTRATORS,)),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
}
# By default the scheduler sends at most 50 requests a second, and so binds at most 50 pods a second.
UNTHROTTLED = ("--kube-api-qps=1000", "--kube-api-burst=1000")


def identities(lab: lab_layout.Layout) -> list[certificates.Identity]:
    """Return every certificate of the lab."""
    service_names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    servers = {
        "kube-apiserver": ("localhost", lab.address, lab.service_address, *service_names),
        "kube-scheduler-serving": ("localhost", lab.address),
        "kube-controller-manager-serving": ("localhost", lab.address),
    }
    clients = CLIENTS | {"kube-apiserver-kubelet-client": ("kube-apiserver-kubelet-client", (ADMINISTRATORS,))}
    for own in (api_server_files.WEBHOOK_CLIENT, AGGREGATOR):
        clients[own] = (own, ())
    for node in lab.nodes:
        clients[node.name] = (f"system:node:{node.name}", ("system:nodes",))
        servers[f"{node.name}-serving"] = (node.name, lab.node_address(node.number))
    return [
        *(certificates.Identity(name, user, groups) for name, (user, groups) in clients.items()),
        *(certificates.Identity(name, name, hosts=hosts) for name, hosts in servers.items()),
    ]


def write_files(lab: lab_layout.Layout) -> None:
    """Write keys, certificates, kubeconfigs and configuration, once per lab: restarted components use the same ones."""
    done = lab.certificates / "complete"
    if done.exists():
        return
    certificates.create(lab.certificates, identities(lab))
    for name in [*CLIENTS, *(node.name for node in lab.nodes)]:
        text = kubeconfig.with_certificate(
            lab.server,
            lab.certificates / "ca.crt",
            lab.certificates / f"{name}.crt",
            lab.certificates / f"{name}.key",
        )
        kubeconfig.write(lab.kubeconfigs / name, text)
    api_server_files.write(lab.certificates)
    done.touch()


def etcd(lab: lab_layout.Layout, programs: Path) -> component.Component:
    """Return etcd. It listens only on Unix sockets, in a directory that only the owner can enter."""
    client = lab.etcd / "client.sock"
    # etcd requires HOST:PORT for a peer, and uses it as the name of a socket in its working directory.
    peer = "unix://peer.sock:0"
    argv = (
        str(programs / "etcd"),
        "--name=lab",
        f"--data-dir={lab.etcd / 'data'}",
        f"--listen-client-urls=unix://{client}",
        "--advertise-client-urls=unix://client.sock:0",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=lab={peer}",
        "--unsafe-no-fsync",  # data written by a killed process is safe; only a crash of the machine would lose it
        "--log-level=warn",
    )
    return component.Component(
        daemon_process.Process("etcd", argv, directory=lab.etcd), component.UnixHTTP(client, "/health")
    )


def api_server(lab: lab_layout.Layout, programs: Path) -> component.Component:
    """Return the API server, with RBAC, node authorization and the usual admission plugins."""
    keys = lab.certificates
    argv = (
        str(programs / "kube-apiserver"),
        f"--etcd-servers=unix://{lab.etcd / 'client.sock'}",
        f"--bind-address={lab.address}",
        f"--advertise-address={lab.address}",
        f"--secure-port={lab.api_port}",
        f"--service-cluster-ip-range={lab.service_range}",
        "--endpoint-reconciler-type=none",  # the API server refuses a loopback address as its endpoint
        "--enable-aggregator-routing",  # without kube-proxy, the API server has to reach a webhook's endpoints directly
        f"--tls-cert-file={keys / 'kube-apiserver.crt'}",
        f"--tls-private-key-file={keys / 'kube-apiserver.key'}",
        f"--client-ca-file={keys / 'ca.crt'}",
        *api_server_files.flags(keys, has_nodes=bool(lab.nodes)),
        f"--audit-log-path={lab.audit_log}",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={keys / 'sa.pub'}",
        f"--service-account-signing-key-file={keys / 'sa.key'}",
        f"--kubelet-certificate-authority={keys / 'ca.crt'}",
        f"--kubelet-client-certificate={keys / 'kube-apiserver-kubelet-client.crt'}",
        f"--kubelet-client-key={keys / 'kube-apiserver-kubelet-client.key'}",
        f"--proxy-client-cert-file={keys / f'{AGGREGATOR}.crt'}",
        f"--proxy-client-key-file={keys / f'{AGGREGATOR}.key'}",
        f"--requestheader-client-ca-file={keys / 'ca.crt'}",
        f"--requestheader-allowed-names={AGGREGATOR}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--kubelet-preferred-address-types=InternalIP",
        "--shutdown-delay-duration=0s",
        "--profiling=false",
    )
    probe = component.URL(f"{lab.server}/readyz", keys / "ca.crt")
    return component.Component(daemon_process.Process("kube-apiserver", argv), probe)


def scheduler(lab: lab_layout.Layout, programs: Path, *, flags: tuple[str, ...] = ()) -> component.Component:
    """Return the scheduler."""
    return _controller(lab, programs, "kube-scheduler", lab.scheduler_port, flags)


def controller_manager(lab: lab_layout.Layout, programs: Path) -> component.Component:
    """Return the controller manager: ServiceAccounts, Deployments, garbage collection and the rest."""
    flags = (
        f"--service-account-private-key-file={lab.certificates / 'sa.key'}",
        f"--root-ca-file={lab.certificates / 'ca.crt'}",
        "--use-service-account-credentials",
    )
    return _controller(lab, programs, "kube-controller-manager", lab.controller_port, flags)


def _controller(
    lab: lab_layout.Layout, programs: Path, name: str, port: int, flags: tuple[str, ...]
) -> component.Component:
    credentials = lab.kubeconfigs / name
    argv = (
        str(programs / name),
        f"--kubeconfig={credentials}",
        f"--authentication-kubeconfig={credentials}",
        f"--authorization-kubeconfig={credentials}",
        f"--bind-address={lab.address}",
        f"--secure-port={port}",
        f"--tls-cert-file={lab.certificates / f'{name}-serving.crt'}",
        f"--tls-private-key-file={lab.certificates / f'{name}-serving.key'}",
        "--leader-elect=false",
        "--profiling=false",
        *flags,
    )
    probe = component.URL(f"https://{lab.address}:{port}/healthz", lab.certificates / "ca.crt")
    return component.Component(daemon_process.Process(name, argv), probe)
