"""Allocation of GPUs, MIG devices and replicas, under NVIDIA's resource names or the administrator's."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence

from deviceplugin.allocation import answer, preference
from deviceplugin.injection import cdi_specs
from deviceplugin.injection.decision import NodeInjection
from deviceplugin.kubelet import plugin_service
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.mps import steps
from gpushare.config.node_settings import NodeSettings
from gpushare.gpunode import Mode
from gpushare.modes.assignment import Offered


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceAnswers:
    """The `plugin_service.ContainerAllocator` for resources whose ids are devices.

    nodes: the device nodes of the host. mps: the files of a GPU's MPS daemon, by the GPU's UUID. memory_bytes: a GPU's
    memory. scores: how closely each pair of GPUs is connected. described: writes the CDI files; raises SpecError.
    allocated: called with the resource and the ids of each container.
    """

    has_preference = True
    needs_start = False  # allocation does not depend on the pod

    in_force: NodeInjection
    _: dataclasses.KW_ONLY
    nodes: Callable[[], answer.DevicePaths]
    mps: Callable[[str], steps.DaemonFiles]
    memory_bytes: Callable[[str], int]
    scores: Callable[[], Mapping[tuple[str, str], int]]
    described: Callable[[NodeSettings], None]
    allocated: Callable[[str, Iterable[str]], None]

    def stale_devices(self, _: str) -> int | None:
        """Return None: another device cannot stand in for a GPU that the kubelet still counts for a deleted pod."""
        return None

    def allocate(self, resource: str, device_ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        """Return the devices in the configured form. Raises AllocateRefusedError."""
        devices, shared = self._check_devices(resource, device_ids)
        response = answer.container_response(
            resource,
            devices,
            self.in_force.settings(),
            answer_id=secrets.token_hex(8),
            nodes=self.nodes(),
            mps=None if shared is None else answer.MpsPaths(str(shared.clients), str(shared.shm)),
        )
        try:
            self.described(self.in_force.settings())
        except cdi_specs.SpecError as error:
            raise plugin_service.AllocateRefusedError(str(error)) from error
        if shared is not None:
            first = devices[0]
            response.envs.update(
                steps.container_environment(self.memory_bytes(first.gpu), replicas=first.replicas, held=len(devices))
            )
        self.allocated(resource, device_ids)
        return response

    def preferred(
        self, resource: str, *, available: Sequence[str], required: Sequence[str], size: int
    ) -> Sequence[str]:
        """Choose the best devices under the configured policy; `allocate` accepts them. Raises AllocateRefusedError."""
        known, closed = self._devices(resource), self.in_force.closed
        usable = [identity for identity in available if identity in known and known[identity].gpu not in closed]
        try:
            chosen = preference.prefer(
                known,
                available=usable if len({*usable, *required}) >= size else available,
                required=required,
                size=size,
                policy=self.in_force.settings().allocation_policy,
                scores=self.scores(),
            )
        except preference.AllocationError as error:
            raise plugin_service.AllocateRefusedError(str(error)) from error
        self._check_devices(resource, chosen)
        return chosen

    async def start(self, resource: str, device_ids: Sequence[str]) -> None:
        """Do nothing: these containers need no preparation."""

    def _devices(self, resource: str) -> dict[str, Offered]:
        return {device.id: device for device in self.in_force.offered.get(resource, ())}

    def _check_devices(
        self, resource: str, device_ids: Sequence[str]
    ) -> tuple[Sequence[Offered], steps.DaemonFiles | None]:
        """Return the devices and the files of their MPS daemon. Raises AllocateRefusedError."""
        if self.in_force.refusal:
            raise plugin_service.AllocateRefusedError(self.in_force.refusal)
        known = self._devices(resource)
        try:
            preference.check_request(resource, device_ids, known)
        except preference.AllocationError as error:
            raise plugin_service.AllocateRefusedError(str(error)) from error
        devices = [known[identity] for identity in device_ids]
        closed = sorted({device.gpu for device in devices} & self.in_force.closed)
        if closed:
            raise plugin_service.AllocateRefusedError(
                f"{', '.join(closed)} accepts no new pods while its mode changes: recreate the pod"
            )
        gpus = sorted({device.gpu for device in devices if device.mode is Mode.MPS})
        if not gpus:
            return devices, None
        if len(gpus) > 1 or any(device.mode is not Mode.MPS for device in devices):
            raise plugin_service.AllocateRefusedError(
                f"a container can use the MPS daemon of one GPU, and these devices of {resource} are on "
                f"{', '.join(sorted({device.gpu for device in devices}))}: ask for 1"
            )
        return devices, self.mps(gpus[0])
