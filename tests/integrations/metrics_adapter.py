"""Runs the lab's metrics adapter, with the rules of config/samples, as the cluster's custom metrics API."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from lab import access, addresses, integration, network
from tests.e2e.observation import eventually

RULES: Final = Path("config/samples/scaling/prometheus-adapter.yaml")
API: Final = "/apis/custom.metrics.k8s.io/v1beta2"
NAME: Final = "metrics-adapter"
_SERVICES: Final = "/api/v1/namespaces/default/services"
_SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
_API_SERVICES: Final = "/apis/apiregistration.k8s.io/v1/apiservices"


@contextlib.contextmanager
def running(administrator: access.Access, directory: Path, prometheus_url: str) -> Iterator[None]:
    """Run the adapter on the bridge of the pods' network, and register it; wait until the API answers."""
    assert administrator.lab is not None
    directory.mkdir(parents=True, exist_ok=True)
    rules = directory / "rules.yaml"
    rules.write_text(yaml.safe_dump({"rules": yaml.safe_load(RULES.read_text())["rules"]["custom"]}))
    address = f"{administrator.lab.pod_network}.{network.BRIDGE_ADDRESS}"
    (port,) = addresses.free_ports(address, (6443,))
    credentials = administrator.kubeconfig
    command = [
        str(integration.ensure(NAME)),
        *(f"--config={rules}", f"--prometheus-url={prometheus_url}"),
        *(f"--bind-address={address}", f"--secure-port={port}", f"--cert-dir={directory / 'certificates'}"),
        *(f"--{use}-kubeconfig={credentials}" for use in ("lister", "authentication", "authorization")),
    ]
    log = directory / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=directory, stdout=stream, stderr=stream)
    try:
        _register(administrator, address, port)

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(Exception):
                return bool(administrator.read(API)["resources"])
            return False

        eventually(answers, seconds=60, what=f"the custom metrics API served: {log}")
        yield
    finally:
        for path in (f"{_API_SERVICES}/v1beta2.custom.metrics.k8s.io", f"{_SLICES}/{NAME}", f"{_SERVICES}/{NAME}"):
            administrator.delete(path)
        process.terminate()
        process.wait(20)


def values(administrator: access.Access, namespace: str, metric: str, selector: str) -> dict[str, str]:
    """Return a metric's quantity by pod, as an autoscaler reads it."""
    query = urllib.parse.urlencode({"labelSelector": selector})
    path = f"{API}/namespaces/{namespace}/pods/*/{metric}?{query}"
    items: list[dict[str, Any]] = administrator.read(path)["items"] or []  # null until there are figures
    return {item["describedObject"]["name"]: item["value"] for item in items}


def _register(administrator: access.Access, address: str, port: int) -> None:
    served = {"name": "https", "port": port}
    administrator.create(_SERVICES, {"metadata": {"name": NAME}, "spec": {"ports": [{**served, "port": 443}]}})
    labels = {"kubernetes.io/service-name": NAME}
    endpoints = [{"addresses": [address], "conditions": {"ready": True}}]
    made = {"metadata": {"name": NAME, "labels": labels}, "addressType": "IPv4", "ports": [served]}
    administrator.create(_SLICES, {**made, "endpoints": endpoints})
    spec = {
        "group": "custom.metrics.k8s.io",
        "version": "v1beta2",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"name": NAME, "namespace": "default"},
        "insecureSkipTLSVerify": True,
    }
    administrator.create(_API_SERVICES, {"metadata": {"name": "v1beta2.custom.metrics.k8s.io"}, "spec": spec})
