"""Writes the GPU labels of the Node and its capacity of `gpushare.io/gpu-memory`, and removes its start-up taint.

An annotation of the Node lists the labels that we wrote. A label that is not listed belongs to another writer, such as
NVIDIA's own feature discovery or an administrator. It stays as it is, because two writers of one label would overwrite
each other forever. Our labels that no longer apply are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Final

from deviceplugin.hardware import nvml, nvml_call, nvml_mig, nvml_topology
from deviceplugin.hardware.inventory import DiscoveredGpu
from deviceplugin.hardware.nvml import Driver
from deviceplugin.hardware.observation import Observation
from deviceplugin.report import gpu_labels
from deviceplugin.report.gpu_labels import Labels
from deviceplugin.state.advertisement import Allocatable
from deviceplugin.state.node_state import ModesInForce, Observable
from gpushare import contract, errors, quantity
from gpushare.cluster import api_client, api_errors, retrying
from gpushare.gpunode import Gpu, Mode
from gpushare.modes.assignment import Assignment

logger = logging.getLogger(__name__)

_MIB = 1 << 20
_SHARED = {Mode.MPS: "mps", Mode.TIME_SLICING: "time-slicing"}


def read_facts(
    opened: nvml.Nvml,
    gpus: Iterable[Gpu],
    discovered: Mapping[str, DiscoveredGpu],
    *,
    machine_type_file: str,
    sys_root: Path = Path("/sys"),
) -> gpu_labels.NodeFacts:
    """Read the facts of this node. Raises NvmlError; a GPU that does not answer keeps what was last read."""
    driver_version, cuda_version = opened.versions()
    driver = nvml_mig.MigDriver(opened)
    known = [gpu for gpu in gpus if gpu.uuid in discovered]
    return gpu_labels.NodeFacts(
        driver_version=driver_version,
        cuda_version=cuda_version,
        machine=_text(Path(machine_type_file)),
        gpus=tuple(_gpu(driver, gpu, discovered[gpu.uuid]) for gpu in known),
        pci_classes=tuple(number for gpu in known if (number := _pci_class(sys_root, gpu.pci_bus_id)) is not None),
        mig_capable=tuple(discovered[gpu.uuid].gpu.mig_capable for gpu in known),
        cliques=tuple(nvml_topology.clique(gpu.uuid) for gpu in known),
        virtual=tuple(opened.is_virtual(gpu.uuid) for gpu in known),
    )


def sharing_in_force(in_force: Mapping[str, Assignment | None]) -> gpu_labels.LabelledSharing:
    """Return how resources are shared. A node has one way per resource; MPS takes precedence over time-slicing."""
    replications: dict[str, tuple[Mode, gpu_labels.Replication]] = {}
    for assignment in in_force.values():
        if assignment is None:
            continue
        entries = [
            (resource.mode, resource.resource, resource.replicas, resource.advertised) for resource in assignment.shared
        ]
        if assignment.mode in _SHARED:
            entries.append((assignment.mode, gpu_labels.GPU, assignment.replicas, assignment.resource))
        for mode, resource, replicas, advertised in entries:
            if replicas > 1 and (resource not in replications or mode is Mode.MPS):
                replications[resource] = (mode, gpu_labels.Replication(resource, replicas, advertised))
    modes = {mode for mode, _ in replications.values()}
    kind = next((word for mode, word in _SHARED.items() if mode in modes), "none")
    return gpu_labels.LabelledSharing(kind, tuple(replication for _, replication in replications.values()))


def _gpu(driver: nvml_mig.MigDriver, gpu: Gpu, discovered: DiscoveredGpu) -> gpu_labels.LabelledGpu:
    try:
        total_bytes = driver.model(gpu.uuid)[1]
    except nvml_call.NvmlError:
        total_bytes = gpu.memory_bytes
    devices = tuple(
        gpu_labels.LabelledMigDevice(
            profile=str(device.profile),
            memory_mib=device.memory_bytes // _MIB,
            gi_slices=device.profile.gpu_slices,
            ci_slices=device.profile.compute_slices,
            multiprocessors=device.multiprocessors,
            engines=device.engines,
        )
        for device in discovered.devices
    )
    return gpu_labels.LabelledGpu(
        gpu.model, total_bytes // _MIB, gpu.compute_capability, discovered.gpu.mig_enabled, devices
    )


def _pci_class(sys_root: Path, bus_id: str) -> int | None:
    try:
        return int(_text(sys_root / "bus/pci/devices" / nvml_call.kernel_address(bus_id) / "class"), 16)
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@dataclasses.dataclass(frozen=True, slots=True)
class WantedLabels:
    """The labels that the Node should have now; if configured, with the time at which this object was created."""

    driver: Driver
    observed: Observation
    in_force: Observable[ModesInForce]
    started: int = dataclasses.field(default_factory=lambda: int(time.time()))

    async def now(self) -> gpu_labels.Labels | None:
        modes = self.in_force.value
        if modes.borrows:
            return {}  # the other device plugin and its feature discovery describe the GPUs
        try:
            facts = await self.driver.ask(
                read_facts,
                self.driver.nvml,
                self.observed.seen.gpus,
                self.observed.gpus,
                machine_type_file=modes.settings.machine_type_file,
            )
            return gpu_labels.all_labels(
                facts,
                strategy=modes.settings.mig_strategy,
                sharing=sharing_in_force(modes.assignments),
                started=self.started if modes.settings.timestamp_label else None,
            )
        except (nvml_call.NvmlError, gpu_labels.StrategyError, gpu_labels.DriverVersionError):
            return None


def patch(metadata: Mapping[str, Any], wanted: Labels) -> dict[str, Any] | None:
    """Return the merge patch that gives a Node with this metadata our labels; None if it has them. Pure."""
    present = metadata.get("labels") or {}
    noted = str((metadata.get("annotations") or {}).get(contract.OWN_LABELS, ""))
    own = {key for key in noted.split(",") if key}
    ours = {key: value for key, value in wanted.items() if key in own or key not in present}
    changed: dict[str, str | None] = {key: value for key, value in ours.items() if present.get(key) != value}
    changed |= dict.fromkeys(sorted(own & present.keys() - ours.keys()))
    note = ",".join(sorted(ours))
    if not changed and note == noted:
        return None
    return {"metadata": {"labels": changed, "annotations": {contract.OWN_LABELS: note or None}}}


@dataclasses.dataclass(frozen=True, slots=True)
class LabelWriter:
    """Writes the `wanted` labels where they differ from the Node's `metadata`. Both return None while unknown."""

    api: api_client.ApiClient
    _: dataclasses.KW_ONLY
    node_name: str
    wake: asyncio.Event
    in_force: Observable[ModesInForce]
    metadata: Callable[[], Mapping[str, Any] | None]
    wanted: Callable[[], Awaitable[Labels | None]]

    async def run(self) -> None:
        self.in_force.wake(self.wake)
        await retrying.run_on_wakeup(self.wake, self.step, trouble="Could not label the node", logger=logger)

    async def step(self) -> None:
        wanted, metadata = await self.wanted(), self.metadata()
        if wanted is None or metadata is None:
            return
        body = patch(metadata, wanted)
        if body is None:
            return
        await self.api.patch(f"/api/v1/nodes/{self.node_name}", body)
        logger.info("Labelled the node", extra={"labels": body["metadata"]["labels"]})


@dataclasses.dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The writer. written: returns the Node's capacity, None if unknown. wake: set when that may have changed."""

    api: api_client.ApiClient
    _: dataclasses.KW_ONLY
    node_name: str
    allocatable: Observable[Allocatable]
    written: Callable[[], str | None]
    wake: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def run(self) -> None:
        self.allocatable.wake(self.wake)
        trouble = "Could not write the node's capacity"
        await retrying.run_on_wakeup(self.wake, self.step, trouble=trouble, logger=logger)

    async def step(self) -> None:
        present, wanted = self.written(), self.allocatable.value.get(contract.RESOURCE_MEMORY)
        if present is None or wanted is None:
            return
        with contextlib.suppress(errors.QuantityError):  # such as the empty text of a Node without capacity
            if quantity.parse_bytes(present) == wanted:
                return
        body = {"status": {"capacity": {contract.RESOURCE_MEMORY: str(wanted)}}}
        await self.api.patch(f"/api/v1/nodes/{self.node_name}/status", body)
        logger.info("Wrote the node's capacity", extra={"resource": contract.RESOURCE_MEMORY, "bytes": wanted})


TAINTED_SECONDS: Final = 2.0  # while a taint waits for the GPUNode, or the API server rejects its removal
Taints = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class StartupTaints:
    """Removes the start-up taint from the agent's own Node once its GPUs are offered and reported.

    An autoscaler starts a node with the taint. Without it, pods could come before the agent: the autoscaler would see a
    ready node without GPUs and start another one. Only the taints of the contract are removed, and only as they were
    read. taints: of the Node, None while unknown. is_ready: whether GPUNode and resources are there. wake: set when the
    Node has changed.
    """

    api: api_client.ApiClient
    _: dataclasses.KW_ONLY
    node_name: str
    taints: Callable[[], Taints | None]
    is_ready: Callable[[], bool]
    wake: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while True:
            self.wake.clear()
            pause_seconds = None
            body = taint_patch(self.taints() or ())
            if body is not None:
                pause_seconds = TAINTED_SECONDS
                if self.is_ready():
                    await self._write(body)
            await retrying.wait(self.wake, pause_seconds)

    async def _write(self, body: Sequence[Mapping[str, Any]]) -> None:
        try:
            await self.api.patch(f"/api/v1/nodes/{self.node_name}", body, api_client.JSON_PATCH)
        except api_errors.ClusterError as error:
            logger.warning("Could not remove the node's start-up taint", extra={"err": str(error)})
        else:
            logger.info("Removed the node's start-up taint", extra={"node": self.node_name})


def resources(advertised: Mapping[str, Sized], allocatable: Mapping[str, int]) -> frozenset[str]:
    """Return the resources that pods will find on the Node: those with devices, and those with an amount.

    The kubelet knows a plugin some seconds before it writes the Node's status. Until then an autoscaler sees a ready
    node without GPUs.
    """
    amounts = {name for name, amount in allocatable.items() if amount}
    return frozenset({name for name, devices in advertised.items() if len(devices)} | amounts)


def taint_patch(taints: Taints) -> list[dict[str, Any]] | None:
    """Return the JSON Patch that removes the start-up taints if the others are unchanged; None if there is none."""
    rest = [taint for taint in taints if taint.get("key") not in contract.STARTUP_TAINTS]
    if len(rest) == len(taints):
        return None
    return [
        {"op": "test", "path": "/spec/taints", "value": list(taints)},
        {"op": "replace", "path": "/spec/taints", "value": rest},
    ]
