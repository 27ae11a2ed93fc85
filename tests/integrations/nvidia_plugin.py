"""NVIDIA's device plugin in the lab: its own DaemonSet, on simulated GPUs, with an image that the lab builds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from lab import access, containerd, image, integration, lab_layout

IMAGE: Final = "nvidia-device-plugin:lab"
VALUES: Final = Path("config/samples/nvidia/device-plugin-values.yaml")
NAME: Final = "nvidia-device-plugin-daemonset"
SCOPE: Final = "--namespace=kube-system"
_PROGRAM: Final = "nvidia-device-plugin"


@contextlib.contextmanager
def running(lab: access.Access, layout: lab_layout.Layout) -> Iterator[None]:
    """Run the plugin on every node with a GPU; remove it afterwards."""
    archive = layout.directory / "nvidia-device-plugin.tar"
    image.write_program(archive, IMAGE, integration.ensure(_PROGRAM), f"/usr/bin/{_PROGRAM}", dynamic=True)
    for node in layout.nodes:
        containerd.import_images(layout, node, archive)
    apply(lab)
    try:
        lab.kubectl("rollout", "status", f"daemonset/{NAME}", SCOPE, "--timeout=90s", seconds=100)
        yield
    finally:
        lab.kubectl("delete", "daemonset", NAME, SCOPE, "--timeout=60s")


def apply(lab: access.Access, affinity: Mapping[str, Any] | None = None) -> None:
    """Apply the DaemonSet of NVIDIA's release, with this affinity."""
    path = integration.source(_PROGRAM) / "deployments" / "static" / "nvidia-device-plugin.yml"
    document = yaml.safe_load(path.read_text())
    template = document["spec"]["template"]["spec"]
    (container,) = template["containers"]
    template["affinity"] = affinity
    every_gpu = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}  # as NVIDIA's image sets it
    container |= {"image": IMAGE, "imagePullPolicy": "Never", "env": [every_gpu]}
    lab.kubectl("apply", "--server-side", "--filename=-", input=json.dumps(document))


def nodes(lab: access.Access) -> set[str]:
    """Return the nodes on which the plugin runs."""
    pods = lab.read("/api/v1/namespaces/kube-system/pods?labelSelector=name%3Dnvidia-device-plugin-ds")["items"]
    return {pod["spec"]["nodeName"] for pod in pods if pod["status"]["phase"] == "Running"}
