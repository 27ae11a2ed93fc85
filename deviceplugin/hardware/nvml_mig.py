"""MIG and the compute mode, through the driver.

NVML's handles of GPUs, GPU instances and compute instances are valid only for a while. They do not leave this file:
callers use UUIDs and instance ids, and each call looks up its own handles.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pynvml

from deviceplugin.hardware import nvml
from deviceplugin.hardware.nvml import NvmlProcess
from deviceplugin.hardware.nvml_call import NEED_NO_ANSWER, NvmlError, ask
from deviceplugin.state import node_state as instance
from gpushare.mig import catalogue
from gpushare.mig.instance_layout import Geometry, ProfileGeometry
from gpushare.mig.profile import ALL_MEDIA, GRAPHICS, MEDIA, Profile, memory_gb_of_mib
from gpushare.modes.hardware_gpu import ComputeMode

# MIG errors that callers handle differently.
IN_USE: Final = int(pynvml.NVML_ERROR_IN_USE)
INSUFFICIENT_RESOURCES: Final = int(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
NO_PERMISSION: Final = int(pynvml.NVML_ERROR_NO_PERMISSION)
FUNCTION_NOT_FOUND: Final = int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_NO_KIND: Final = (*NEED_NO_ANSWER, pynvml.NVML_ERROR_INVALID_ARGUMENT)
_NO_PLACES: Final = (*_NO_KIND, pynvml.NVML_ERROR_NO_PERMISSION)
_NO_DEVICE: Final = (*NEED_NO_ANSWER, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)
_NO_LIST: Final = object()
_MISCOUNTED: Final = re.compile(r"\bA30\b")  # NVML reports wrong counts for it, according to NVIDIA's mig-parted
_PLACES: Final = 8  # no GPU has more GPU instances, compute instances or places
_Place: Final = pynvml.c_nvmlGpuInstancePlacement_t
_ENGINES: Final = {"copy": "CopyEngine", "decoder": "Decoder", "encoder": "Encoder", "jpeg": "Jpeg", "ofa": "Ofa"}
# Attributes that a profile has and lacks, by its NVML_GPU_INSTANCE_PROFILE_* in nvml.h of release 610. pynvml 12.535
# names two of these numbers, and its PROFILE_COUNT is lower. A driver rejects numbers that it does not know.
ATTRIBUTES: Final[Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    0x7: ((MEDIA,), ()),  # 1_SLICE_REV1
    0x8: ((MEDIA,), ()),  # 2_SLICE_REV1
    0xA: ((GRAPHICS,), ()),  # 1_SLICE_GFX
    0xB: ((GRAPHICS,), ()),  # 2_SLICE_GFX
    0xC: ((GRAPHICS,), ()),  # 4_SLICE_GFX
    0xD: ((), (MEDIA,)),  # 1_SLICE_NO_ME
    0xE: ((), (MEDIA,)),  # 2_SLICE_NO_ME
    0xF: ((ALL_MEDIA,), ()),  # 1_SLICE_ALL_ME
    0x10: ((ALL_MEDIA,), ()),  # 2_SLICE_ALL_ME
    0x11: ((GRAPHICS,), ()),  # 3_SLICE_GFX
}
PROFILE_COUNT: Final = max(0x12, int(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT))


class MigDriver:
    """MIG functions of an initialised NVML. `uuid` is a GPU's. Every call may raise NvmlError."""

    def __init__(self, driver: nvml.Nvml) -> None:
        self._driver = driver

    def processes(self, uuid: str) -> tuple[NvmlProcess, ...]:
        return self._driver.processes(uuid)

    def model(self, uuid: str) -> tuple[str, int]:
        """Return name and memory in bytes of a GPU or MIG device; 0 bytes if the driver does not report it."""
        handle = _handle(uuid)
        sizes = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, about=uuid, allowed=NEED_NO_ANSWER)
        return str(ask(pynvml.nvmlDeviceGetName, handle, about=uuid)), 0 if sizes is None else int(sizes.total)

    def mig_mode(self, uuid: str) -> instance.MigMode | None:
        """Return the MIG mode; None if the GPU does not support MIG."""
        mode = ask(pynvml.nvmlDeviceGetMigMode, _handle(uuid), about=uuid, allowed=NEED_NO_ANSWER)
        return None if mode is None else instance.MigMode(current=bool(mode[0]), pending=bool(mode[1]))

    def set_mig_mode(self, uuid: str, *, enabled: bool) -> str:
        """Turn MIG on or off. Return "" if the change is in force, else why it waits for a reset of the GPU."""
        activation = int(ask(pynvml.nvmlDeviceSetMigMode, _handle(uuid), int(enabled), about=uuid))
        return "" if activation == pynvml.NVML_SUCCESS else str(pynvml.NVMLError(activation))  # type: ignore[no-untyped-call]

    def mig_geometry(self, uuid: str) -> Geometry | None:
        """Return how a MIG-capable GPU can be partitioned, in either mode; None if unknown to driver and catalogue."""
        handle = _handle(uuid)
        model, total_bytes = self.model(uuid)
        published = catalogue.of_gpu(model, total_bytes)
        counted = published if _MISCOUNTED.search(model) else None
        kinds: dict[Profile, ProfileGeometry] = {}
        for number in range(PROFILE_COUNT):
            arguments = (handle, number, 1)
            info = ask(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, *arguments, about=uuid, allowed=_NO_KIND)
            if info is None:
                continue
            asked = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
            places = _listed(asked, (handle, info.id), _Place, about=uuid, allowed=_NO_PLACES)
            with_, without = ATTRIBUTES.get(number, ((), ()))
            name = Profile(
                gpu_slices=int(info.sliceCount),
                memory_gb=memory_gb_of_mib(instance_mib=int(info.memorySizeMB), total_bytes=total_bytes),
                compute_slices=int(info.sliceCount),
                with_=with_,
                without=without,
            )
            usual = published.kind(name) if published is not None else None
            if name in kinds or not (places or usual):
                continue
            # Outside of MIG mode, some drivers report profiles without places.
            starts = tuple(sorted(int(place.start) for place in places)) or (usual.starts if usual is not None else ())
            size = int(places[0].size) if places else usual.memory_slices if usual is not None else 0
            known = counted.kind(name) if counted is not None else None
            most = int(info.instanceCount) if known is None else known.most
            memory_bytes = int(info.memorySizeMB) << 20
            kinds[name] = ProfileGeometry(name, int(info.id), size, starts, most, memory_bytes)
        if not kinds:
            return published
        made = tuple(kinds.values())
        return Geometry(model, max(kind.gpu_slices for kind in made), max(kind.memory_slices for kind in made), made)

    def mig_instances(self, uuid: str) -> tuple[instance.GpuInstance, ...]:
        """Return the GPU instances of a GPU in MIG mode, by place, with their compute instances."""
        handle = _handle(uuid)
        uuids = {_ids(device): str(ask(pynvml.nvmlDeviceGetUUID, device)) for _, device in _mig_handles(uuid)}
        running = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle, about=uuid)
        clients = pynvml.nvmlDeviceGetMPSComputeRunningProcesses
        running += ask(clients, handle, about=uuid, default=[], allowed=NEED_NO_ANSWER)
        busy = {(int(process.gpuInstanceId), int(process.computeInstanceId)) for process in running}
        instances = []
        geometry = self.mig_geometry(uuid)
        for kind in geometry.kinds if geometry is not None else ():
            asked, arguments = pynvml.nvmlDeviceGetGpuInstances, (handle, kind.device_profile_id)
            for gpu_instance in _listed(asked, arguments, pynvml.c_nvmlGpuInstance_t, about=uuid):
                info = ask(pynvml.nvmlGpuInstanceGetInfo, gpu_instance, about=uuid)
                parts = tuple(
                    instance.ComputeInstance(part_id, slices, uuids.get(ids, ""), ids in busy)
                    for part_id, slices in _parts(gpu_instance, uuid)
                    for ids in [(int(info.id), part_id)]
                )
                instances.append(instance.GpuInstance(int(info.id), kind, int(info.placement.start), parts))
        return tuple(sorted(instances, key=lambda made: made.start))

    def mig_devices(self, uuid: str) -> tuple[instance.MigDevice, ...]:
        """Return the MIG devices of a GPU, by NVML's index; empty if it is not in MIG mode."""
        total_bytes, mode = self.model(uuid)[1], self.mig_mode(uuid)
        instances = self.mig_instances(uuid) if mode is not None and mode.current else ()
        kinds = {gpu_instance.id: gpu_instance.kind for gpu_instance in instances}
        starts = {gpu_instance.id: gpu_instance.start for gpu_instance in instances}
        mig_devices = []
        for index, handle in _mig_handles(uuid) if kinds else ():
            about = f"{uuid}, MIG device {index}"
            sizes = ask(pynvml.nvmlDeviceGetAttributes, handle, about=about)
            instance_id, part_id = _ids(handle, about)
            profile = kinds[instance_id].profile
            mig_devices.append(
                instance.MigDevice(
                    uuid=ask(pynvml.nvmlDeviceGetUUID, handle, about=about),
                    parent=uuid,
                    index=index,
                    gpu_instance=instance_id,
                    compute_instance=part_id,
                    profile=dataclasses.replace(profile, compute_slices=int(sizes.computeInstanceSliceCount)),
                    memory_bytes=min(filter(None, (total_bytes, int(sizes.memorySizeMB) << 20)), default=0),
                    multiprocessors=int(sizes.multiprocessorCount),
                    engines={word: int(getattr(sizes, f"shared{name}Count")) for word, name in _ENGINES.items()},
                    start=starts[instance_id],
                )
            )
        return tuple(mig_devices)

    def create_gpu_instance(self, uuid: str, kind: ProfileGeometry, start: int | None) -> int:
        """Create a GPU instance at `start` (None: the driver chooses); return its id."""
        if start is None:
            made = ask(pynvml.nvmlDeviceCreateGpuInstance, _handle(uuid), kind.device_profile_id, about=uuid)
        else:
            place = ctypes.byref(_Place(start, kind.memory_slices))
            arguments = (_handle(uuid), kind.device_profile_id, place)
            made = ask(pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, *arguments, about=f"{uuid}, {kind.profile}")
        return int(ask(pynvml.nvmlGpuInstanceGetInfo, made, about=uuid).id)

    def create_compute_instance(self, uuid: str, instance_id: int, slices: int) -> None:
        owner = ask(pynvml.nvmlDeviceGetGpuInstanceById, _handle(uuid), instance_id, about=uuid)
        number = next((kind for kind, count in _part_kinds(owner, uuid) if count == slices), None)
        if number is None:
            raise NvmlError(f"{uuid}: GPU instance {instance_id} has no compute instances of {slices} slices", 0)
        ask(pynvml.nvmlGpuInstanceCreateComputeInstance, owner, number, about=uuid)

    def destroy_compute_instance(self, uuid: str, instance_id: int, part_id: int) -> None:
        """Destroy a compute instance. Raises NvmlError IN_USE while a process computes on it."""
        owner = ask(pynvml.nvmlDeviceGetGpuInstanceById, _handle(uuid), instance_id, about=uuid)
        ask(pynvml.nvmlComputeInstanceDestroy, ask(pynvml.nvmlGpuInstanceGetComputeInstanceById, owner, part_id))

    def destroy_gpu_instance(self, uuid: str, instance_id: int) -> None:
        """Destroy a GPU instance. Raises NvmlError IN_USE while it has compute instances."""
        ask(pynvml.nvmlGpuInstanceDestroy, ask(pynvml.nvmlDeviceGetGpuInstanceById, _handle(uuid), instance_id))

    def set_exclusive_process(self, uuid: str, *, exclusive: bool) -> None:
        """Restrict the GPU to one process at a time (such as MPS), or allow any number."""
        mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else pynvml.NVML_COMPUTEMODE_DEFAULT
        ask(pynvml.nvmlDeviceSetComputeMode, _handle(uuid), mode, about=uuid)

    def compute_mode(self, uuid: str) -> ComputeMode:
        mode = ask(pynvml.nvmlDeviceGetComputeMode, _handle(uuid), about=uuid, default=0, allowed=NEED_NO_ANSWER)
        return tuple(ComputeMode)[int(mode)]


def _handle(uuid: str) -> Any:
    return ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)


def _mig_handles(uuid: str) -> Iterator[tuple[int, Any]]:
    """Yield NVML's index and the handle of each MIG device of a GPU."""
    handle = _handle(uuid)
    for index in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle, about=uuid)):
        device = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index, allowed=_NO_DEVICE)
        if device is not None:
            yield index, device


def _ids(device: Any, about: str = "") -> tuple[int, int]:
    """Return the ids of a MIG device's GPU instance and compute instance."""
    instance_id = ask(pynvml.nvmlDeviceGetGpuInstanceId, device, about=about)
    return int(instance_id), int(ask(pynvml.nvmlDeviceGetComputeInstanceId, device, about=about))


def _part_kinds(owner: Any, uuid: str) -> Iterator[tuple[int, int]]:
    """Yield the driver's number and the slices of each kind of compute instance that fits a GPU instance."""
    asked = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    engines = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = ask(asked, owner, number, engines, 1, about=uuid, allowed=_NO_KIND)
        if info is not None:
            yield int(info.id), int(info.sliceCount)


def _parts(owner: Any, uuid: str) -> Iterator[tuple[int, int]]:
    """Yield id and slices of each compute instance in a GPU instance."""
    for number, slices in _part_kinds(owner, uuid):
        asked = pynvml.nvmlGpuInstanceGetComputeInstances
        for part in _listed(asked, (owner, number), pynvml.c_nvmlComputeInstance_t, about=uuid):
            yield int(ask(pynvml.nvmlComputeInstanceGetInfo, part, about=uuid).id), slices


def _listed(
    function: Callable[..., Any], arguments: tuple[Any, ...], kind: Any, *, about: str, allowed: tuple[int, ...] = ()
) -> list[Any]:
    """Return the array that a call of NVML fills with `kind`; empty if it fails with an `allowed` error."""
    count, array = ctypes.c_uint(_PLACES), (kind * _PLACES)()
    written = ask(function, *arguments, array, ctypes.byref(count), about=about, default=_NO_LIST, allowed=allowed)
    return [] if written is _NO_LIST else list(array[: count.value])
