"""A node's kubelet: configuration, command line, and the Node object that it finds at its start."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import yaml

from lab import component, containerd, daemon_process, lab_layout, node_cgroup, node_mounts, prerequisites

GPU_LABEL = "nvidia.com/gpu.present"  # the label that NVIDIA's tools put on a node with a GPU
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def configuration(lab: lab_layout.Layout, node: lab_layout.Node) -> dict[str, object]:
    """Return the KubeletConfiguration of a node."""
    keys = lab.certificates
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": lab.node_address(node.number),
        "port": node.kubelet_port,
        "healthzBindAddress": lab.node_address(node.number),
        "healthzPort": node.health_port,
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(keys / "ca.crt")}},
        "tlsCertFile": str(keys / f"{node.name}-serving.crt"),
        "tlsPrivateKeyFile": str(keys / f"{node.name}-serving.key"),
        "containerRuntimeEndpoint": f"unix://{containerd.socket(lab, node)}",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{lab.cgroup}/{node.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,  # lowering it needs a capability that a container may lack
        # A developer's disk is often nearly full. That must neither evict pods nor delete the only copy of an image.
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        # There is no cluster DNS. The pod's own loopback address refuses connections at once.
        "clusterDNS": [f"127.77.{lab.number}.10"],
        "clusterDomain": "cluster.local",
        "nodeStatusUpdateFrequency": "2s",  # tests wait for the node's status
        # Show in the log when the device manager learns a plugin's devices.
        "logging": {"vmodule": [{"filePattern": "manager", "verbosity": 2}]},
    }


def node_object(lab: lab_layout.Layout, node: lab_layout.Node) -> str:
    """Return the Node as JSON, with the addresses that a cloud provider would set.

    The kubelet does not choose a loopback address by itself, but accepts one that the Node has.
    """
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCHITECTURES.get(platform.machine(), platform.machine()),
        GPU_LABEL: "true",
    }
    addresses = [
        {"type": "InternalIP", "address": lab.node_address(node.number)},
        {"type": "Hostname", "address": node.name},
    ]
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node.name, "labels": labels},
            "status": {"addresses": addresses},
        }
    )


def write_files(lab: lab_layout.Layout, node: lab_layout.Node) -> None:
    """Write the node's `kubelet.yaml`, which the command of `build` refers to."""
    path = lab.node_directory(node) / "kubelet.yaml"
    path.write_text(yaml.safe_dump(configuration(lab, node), sort_keys=False))


def build(lab: lab_layout.Layout, node: lab_layout.Node, programs: Path) -> component.Component:
    """Return the kubelet as a component: in the node's mount namespace and cgroup, ready once its health port
    answers.
    """
    argv = (
        str(programs / "kubelet"),
        f"--config={lab.node_directory(node) / 'kubelet.yaml'}",
        f"--kubeconfig={lab.kubeconfigs / node.name}",
        f"--hostname-override={node.name}",
        "--cloud-provider=external",  # keeps the addresses of the Node object
    )
    daemon = daemon_process.Process(
        f"{node.name}.kubelet",
        node_mounts.inside(lab, node, argv),
        environment={"PATH": prerequisites.SEARCH_PATH},
        groups=node_cgroup.joined(node_mounts.cgroup(lab, node)),
    )
    url = f"http://{lab.node_address(node.number)}:{node.health_port}/healthz"
    return component.Component(daemon, component.URL(url, lab.certificates / "ca.crt"))
