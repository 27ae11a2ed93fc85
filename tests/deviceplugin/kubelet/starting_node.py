"""The agent's part of a node on which share containers start, over real sockets with real files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deviceplugin.allocation import answer
from deviceplugin.arbiter.tenant import StartingContainer
from deviceplugin.denial import pod_denial
from deviceplugin.injection import cdi_specs, decision
from deviceplugin.injection.decision import InjectionFacts
from deviceplugin.kubelet import share_answers
from deviceplugin.mps import sm_partitions
from deviceplugin.mps.shares import ClientFiles
from deviceplugin.mps.steps import DaemonFiles
from deviceplugin.state import pod_resources
from gpushare import contract
from gpushare.allocation import MigInstance
from gpushare.config.node_settings import NodeSettings
from gpushare.modes.hardware_gpu import HardwareGpu
from gpushare.refusal import Refusal
from tests.deviceplugin import simulated_kubelet as kubelets
from tests.deviceplugin.injection.test_cdi_specs import check

PERCENT = contract.RESOURCE_PERCENT
MOUNTS = share_answers.Mounts(Path("/host/lib.so"), Path("/host/ld.so.preload"), Path("/host/arbiter"))
FIRST, SECOND = "GPU-1111", "GPU-2222"
NODES = answer.DevicePaths(
    {
        FIRST: ("/dev/nvidia0",),
        SECOND: ("/dev/nvidia1",),
        f"MIG-{SECOND}-1g.10gb": ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30"),
    },
    ("/dev/nvidiactl",),
)
BY_CDI = decision.decide(
    InjectionFacts(in_pod=True, runtime="containerd://2.1.4", runtime_class="", driver_requested=True), ()
)
BY_CLASS = decision.decide(
    InjectionFacts(True, "containerd://1.6.20", "nvidia", driver_requested=True, driver_mounted=True, cdi_problem="no"),
    (),
)
BY_NOTHING = decision.decide(InjectionFacts(True, "containerd://1.6.20", "", driver_requested=True), ())
BY_DEFAULT = decision.decide(
    InjectionFacts(True, "containerd://1.6.20", "", driver_requested=True, driver_mounted=True, cdi_problem="no"), ()
)


class MemoryLimits:
    """The driver's memory limits. problem: why they cannot be set; None if the driver keeps none."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.covered: list[str] = []

    def is_needed(self) -> bool:
        return self.problem is not None

    async def cover(self, pod_uid: str) -> str:
        self.covered.append(pod_uid)
        return self.problem or ""


class Node:
    """The agent's part of a node, and its ledger."""

    def __init__(self, directory: Path, injection: decision.Injection) -> None:
        self.injection = injection
        self.given: dict[str, StartingContainer | Refusal] = {}
        self.checkpoint = directory / pod_resources.CHECKPOINT_NAME
        self.known_pods: list[dict[str, Any]] = []
        self.memory_limits = MemoryLimits()
        self.mps_problem = self.mig_problem = ""
        self.by_cdi = False
        self.cdi = directory / "cdi"
        self.kubelet = kubelets.Kubelet(directory / "kubelet")
        self.specs = cdi_specs.Specs(
            self.cdi,
            gpus=lambda: [HardwareGpu(FIRST, 0), HardwareGpu(SECOND, 1)],
            nodes=lambda: NODES,
            in_use=lambda: False,
            root=directory / "host",
        )

    async def known(self, namespace: str, name: str, container: str) -> StartingContainer | Refusal:
        assert namespace == "ml"
        key = name if container == "main" else f"{name}/{container}"
        return self.given.get(key, Refusal("the API server did not answer in time"))

    async def mps(self, uuid: str, share: str) -> ClientFiles | Refusal:
        files = DaemonFiles(Path("/run/mps"), uuid)
        is_cut = share == sm_partitions.key("of-client/0")
        given = ClientFiles(files, files.shares / share if is_cut else None)
        return Refusal(self.mps_problem) if self.mps_problem else given

    async def device(self, uuid: str, device: MigInstance) -> str | Refusal:
        return Refusal(self.mig_problem) if self.mig_problem else f"MIG-{uuid}-{device.profile}"

    async def whole(self, uuids: Sequence[str]) -> Refusal | None:  # noqa: ARG002 - of `MigDevices`
        return Refusal(self.mig_problem) if self.mig_problem else None

    def keeps(self, pod: str, **device_ids: list[str]) -> None:
        """Write the kubelet's checkpoint for a pod's containers, as at admission."""
        entries = [
            {"PodUID": f"uid-{pod}", "ContainerName": name, "ResourceName": PERCENT, "DeviceIDs": {"-1": ids}}
            for name, ids in device_ids.items()
        ]
        self.checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}}))
        self.known_pods.append({"metadata": {"namespace": "ml", "name": pod, "uid": f"uid-{pod}"}})

    def gives(self, pod: str, *uuids: str, runtime_class: str = "") -> None:
        self.given[pod] = StartingContainer("ml", pod, uuids, runtime_class, f"uid-{pod}")

    def settings(self) -> NodeSettings:
        return NodeSettings(device_list_strategies=self.injection.strategies)

    def answers(self) -> share_answers.ShareAnswers:
        start = share_answers.ShareStart(
            injection=lambda: self.injection,
            settings=self.settings,
            held=lambda: pod_resources.held_by_all(self.kubelet.holdings, self.checkpoint, lambda: self.known_pods),
            find=self.known,
            descriptions=self.specs,
            denied=pod_denial.PodDenial(None, ""),
            memory_limits=self.memory_limits,
            mps=self.mps,
            mig=self,
            by_cdi=lambda: self.by_cdi,
        )
        return share_answers.ShareAnswers(MOUNTS, settings=self.settings, start=start)

    def described(self, name: str) -> list[str]:
        """Return the device nodes that a CDI name describes."""
        kind, _, name = name.partition("=")
        document: dict[str, Any] = json.loads((self.cdi / f"{kind.replace('/', '-')}-{name}.json").read_text())
        check(document)
        assert document["kind"] == kind
        assert document["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
        (device,) = document["devices"]
        assert device["name"] == name
        return [node["path"] for node in device["containerEdits"]["deviceNodes"]]
