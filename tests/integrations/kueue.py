"""Kueue in the lab: its own manifests, unchanged except for the image, which the lab builds and imports."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from lab import access, containerd, image, integration, lab_layout
from tests.e2e.observation import eventually

IMAGE: Final = "kueue:lab"
API: Final = "/apis/kueue.x-k8s.io/v1beta2"
KIND: Final = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue"}
GATE: Final = "kueue.x-k8s.io/admission"
SAMPLES: Final = Path("config/samples/kueue")
_NAMESPACE: Final = "kueue-system"
_REGISTRATIONS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


@contextlib.contextmanager
def installed(lab: lab_layout.Layout, administrator: access.Access, directory: Path) -> Iterator[None]:
    """Install Kueue; remove what would act on other tests' pods afterwards."""
    archive = directory / "kueue.tar"
    image.write_program(archive, IMAGE, integration.ensure("kueue"), "/manager")
    for node in lab.nodes:
        containerd.import_images(lab, node, archive)
    text = administrator.kubectl("kustomize", str(integration.source("kueue") / "config" / "default"))
    documents = [_adapted(document) for document in yaml.safe_load_all(text)]
    manifests = directory / "kueue.json"
    manifests.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    administrator.kubectl("apply", "--server-side", f"--filename={manifests}", seconds=120)
    try:
        scope = f"--namespace={_NAMESPACE}"
        deployment = "deployment/kueue-controller-manager"
        administrator.kubectl("rollout", "status", deployment, scope, "--timeout=180s")
        queues = SAMPLES / "queues.yaml"

        def serves() -> bool:
            with contextlib.suppress(Exception):
                administrator.kubectl("apply", "--dry-run=server", f"--filename={queues}")
                return True
            return False

        eventually(serves, seconds=60, what="Kueue's webhooks answer")
        administrator.kubectl("apply", f"--filename={queues}")
        yield
    finally:
        for kind in _REGISTRATIONS:
            for registration in _named(administrator, kind):
                administrator.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/{registration}")
        administrator.delete(f"/apis/apps/v1/namespaces/{_NAMESPACE}/deployments/kueue-controller-manager")


def hold(administrator: access.Access, policy: str) -> None:
    """Set the ClusterQueue's stopPolicy: `Hold` admits nothing, `None` goes on."""
    administrator.patch(f"{API}/clusterqueues/shares", {"spec": {"stopPolicy": policy}})


def _named(administrator: access.Access, kind: str) -> list[str]:
    items = administrator.read(f"/apis/admissionregistration.k8s.io/v1/{kind}")["items"]
    names = [str(item["metadata"]["name"]) for item in items]
    return [name for name in names if name.startswith("kueue-")]


def _adapted(document: dict[str, Any]) -> dict[str, Any]:
    if document["kind"] == "Deployment":
        (container,) = document["spec"]["template"]["spec"]["containers"]
        container |= {"image": IMAGE, "imagePullPolicy": "Never"}
        document["spec"]["template"]["spec"]["securityContext"]["runAsUser"] = 65532  # as its own image says
        container["resources"] = {"requests": {"cpu": "50m", "memory": "64Mi"}}  # the lab's node is small
    return document
