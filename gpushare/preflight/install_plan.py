"""The installation, planned or existing: the pods of the agent and of the webhook, by their manifests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpushare import contract
from gpushare.preflight.workload import Workload

AGENT: Final = "gpushare-agent"  # name of the DaemonSet
WEBHOOK: Final = "gpushare-webhook"  # name of the Deployment
DEFRAG: Final = "gpushare-defrag"  # name of the CronJob, which is optional
GPU_PRESENT: Final = "nvidia.com/gpu.present"
KUBELET_DIRECTORY: Final = "/var/lib/kubelet/device-plugins"
KUBELET_VOLUME: Final = "device-plugins"

# The parts of config/base/deviceplugin that rules need if no manifests are given; a test compares them.
_AGENT_POD: Final[Mapping[str, Any]] = {
    "tolerations": [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
    ],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": contract.NODE_CONFIG_LABEL, "operator": "Exists"}]},
                    {"matchExpressions": [{"key": GPU_PRESENT, "operator": "In", "values": ["true"]}]},
                    {
                        "matchExpressions": [
                            {"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "In", "values": ["true"]}
                        ]
                    },
                ]
            }
        }
    },
    "volumes": [{"name": KUBELET_VOLUME, "hostPath": {"path": KUBELET_DIRECTORY}}],
}


@dataclasses.dataclass(frozen=True, slots=True)
class InstallPlan:
    """`configurations`: the entries of the ConfigMap that nodes choose from. `is_known`: read from manifests, not the
    default.
    """

    agent: Workload = dataclasses.field(default_factory=lambda: Workload(_AGENT_POD))
    webhook: Workload = dataclasses.field(default_factory=lambda: Workload({}))
    defrag: Workload = dataclasses.field(default_factory=lambda: Workload({}))
    configurations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_known: bool = False


def from_manifests(manifests: Iterable[Mapping[str, Any]]) -> InstallPlan:
    """Return what these manifests install; the default for an absent agent or webhook."""
    plan = InstallPlan()
    config_maps: dict[str, Mapping[str, str]] = {}
    for manifest in manifests:
        metadata = manifest.get("metadata") or {}
        match (manifest.get("kind"), metadata.get("name")):
            case ("DaemonSet", str() as name) if name == AGENT:
                plan = dataclasses.replace(plan, agent=Workload.from_manifest(manifest), is_known=True)
            case ("Deployment", str() as name) if name == WEBHOOK:
                plan = dataclasses.replace(plan, webhook=Workload.from_manifest(manifest), is_known=True)
            case ("CronJob", str() as name) if name == DEFRAG:
                plan = dataclasses.replace(
                    plan, defrag=Workload.from_manifest((manifest.get("spec") or {}).get("jobTemplate") or {})
                )
            case ("ConfigMap", str() as name):
                config_maps[name] = dict(manifest.get("data") or {})
    return dataclasses.replace(plan, configurations=config_maps.get(_config_map(plan.agent), {}))


def _config_map(agent: Workload) -> str:
    """Return the name of the ConfigMap with the configurations: the agent's argument, or the usual one."""
    name = contract.CONFIG_MAP
    for container in agent.containers():
        for argument in map(str, container.get("args") or ()):
            if argument.startswith("--config-map="):
                name = argument.rpartition("/")[2]
    return name
