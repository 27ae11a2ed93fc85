"""The GPUs, as the driver describes them.

A GPU that has fallen off the bus answers nothing, not even its UUID, so what cannot be read is told by its index, next
to what can.

NVML looks for GPUs once, when it is initialised. A GPU that was lost is therefore looked for again by beginning again.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pynvml

from deviceplugin.hardware import nvml_call, nvml_events, xid
from deviceplugin.hardware.nvml_call import NEED_NO_ANSWER, NvmlError, ask, function_named
from deviceplugin.state.offer import Unreadable
from gpushare.gpu import Gpu
from gpushare.mig import device_id

NO_LIBRARY: Final = int(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
NOT_LOADED: Final = int(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_REMEDY: Final = {
    NO_LIBRARY: (
        "libnvidia-ml.so.1 is not on the library path: install NVIDIA's driver on the node, and run this container with "
        "the NVIDIA runtime (runtimeClassName, NVIDIA_VISIBLE_DEVICES=all, NVIDIA_DRIVER_CAPABILITIES=utility), or "
        "mount the host's driver (component driver-root)"
    ),
    NOT_LOADED: "the node's kernel has no NVIDIA driver loaded: load it, or unlabel the node",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated under this process: restart the pod or the node",
    pynvml.NVML_ERROR_NO_PERMISSION: "the GPUs' device files may not be opened: run the agent privileged",
}
# nvml.h of release 570; nvidia-ml-py has names for them from 12.570 on.
RECOVERY_ACTION_FIELD: Final = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
RECOVERY_ACTIONS: Final = {  # by NVML_GPU_RECOVERY_ACTION_*
    0: "",  # NONE
    1: "it has to be reset",  # GPU_RESET
    2: "the node has to be rebooted",  # NODE_REBOOT
    3: "its traffic with other GPUs has to be drained",  # DRAIN_P2P
    4: "it has to be drained and reset",  # DRAIN_AND_RESET
}
# The names without a number raise what is no NVMLError when the driver is older than pynvml.
_COMPUTING: Final = (
    function_named("nvmlDeviceGetComputeRunningProcesses_v3"),
    function_named("nvmlDeviceGetComputeRunningProcesses_v2"),
)
# Clients of MPS may be listed apart, as nvidia-smi tells its types C and M+C apart; an old driver has no such list.
_MPS_CLIENTS: Final = (
    function_named("nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    function_named("nvmlDeviceGetMPSComputeRunningProcesses_v2"),
)
_DRAWING: Final = (
    function_named("nvmlDeviceGetGraphicsRunningProcesses_v3"),
    function_named("nvmlDeviceGetGraphicsRunningProcesses_v2"),
)
_SYS: Final = Path("/sys")
_WHOLE: Final = 100  # percent


@dataclasses.dataclass(frozen=True, slots=True)
class NvmlSnapshot:
    """The GPUs as the driver describes them now; `healthy` false where it says itself that one must be reset."""

    gpus: tuple[Gpu, ...]
    unreadable: tuple[Unreadable, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class NvmlProcess:
    """A process on a GPU, by its pid on the host; `memory_bytes` is None where the driver does not tell."""

    pid: int
    memory_bytes: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Utilization:
    """For what part of the time each process had kernels run, by pid; who is not in it, for none.

    until_us: up to when, by the driver's clock.
    """

    parts: Mapping[int, float]
    until_us: int


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """What the driver says of itself: its version, and the newest CUDA that it runs."""

    driver_version: str
    cuda_version: tuple[int, int]


class Nvml:
    """An initialised NVML. Not for several threads at once. `close` it.

    sys_root: where sysfs is.
    """

    def __init__(self, *, sys_root: Path = _SYS) -> None:
        self._sys_root = sys_root
        self._events = nvml_events.Events()
        self._links: dict[tuple[str, ...], Mapping[str, int]] = {}  # by all UUIDs: they do not change
        self._initialize()

    def _initialize(self) -> None:
        try:
            ask(pynvml.nvmlInit)
        except NvmlError as error:
            remedy = _REMEDY.get(error.code, "see the driver's messages in the kernel log (dmesg)")
            raise NvmlError(f"{error}: {remedy}", error.code) from error

    def close(self) -> None:
        """Let go of the driver. No error if it has gone by itself."""
        self._events.close()
        ask(pynvml.nvmlShutdown, default=None, allowed=None)

    def reinitialize(self) -> None:
        """Close and initialise again, to find GPUs that have come back. Events in between are lost."""
        self.close()
        self._links.clear()
        self._initialize()

    @property
    def unwatched(self) -> Mapping[str, str]:
        """By UUID: why nobody would know if this GPU broke."""
        return self._events.unwatched

    def wait_for_xid(self, timeout_seconds: float) -> xid.XidEvent | None:
        """The next critical event, or None when there was none in that time. It always takes the time when None."""
        return self._events.wait(timeout_seconds)

    def snapshot(self) -> NvmlSnapshot:
        """Read every GPU. Raises NvmlError only when the driver does not answer at all."""
        gpus, unreadable = [], []
        for index in range(ask(pynvml.nvmlDeviceGetCount)):
            try:
                gpus.append(self._gpu(index))
            except NvmlError as error:
                unreadable.append(Unreadable(index, str(error)))
        groups = self._link_groups(gpus)
        gpus = [dataclasses.replace(gpu, link_group=groups.get(gpu.uuid)) for gpu in gpus]
        return NvmlSnapshot(tuple(gpus), tuple(unreadable))

    def processes(self, uuid: str) -> tuple[NvmlProcess, ...]:
        """The processes that compute on a GPU, also as clients of MPS."""
        return self._listed(uuid, _MPS_CLIENTS)

    def users(self, uuid: str) -> tuple[NvmlProcess, ...]:
        """The processes that compute or draw on a GPU or MIG device."""
        return self._listed(uuid, _MPS_CLIENTS, _DRAWING)

    def _listed(self, uuid: str, *others: Sequence[Callable[[Any], list[Any]]]) -> tuple[NvmlProcess, ...]:
        """Those that compute and those of other lists, if the driver has these; one that is in several is one."""
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        lists = [_running(_COMPUTING, handle, uuid)]
        lists += [_running(functions, handle, uuid, allowed=NEED_NO_ANSWER) for functions in others]
        memory_bytes: dict[int, int | None] = {}
        for process in itertools.chain.from_iterable(lists):
            known = (memory_bytes.get(int(process.pid)), process.usedGpuMemory)
            memory_bytes[int(process.pid)] = max((bytes_ for bytes_ in known if bytes_ is not None), default=None)
        return tuple(NvmlProcess(pid, used_bytes) for pid, used_bytes in memory_bytes.items())

    def utilization(self, uuid: str, since_us: int) -> Utilization | None:
        """What processes have used of a GPU's time since then; of 0, lately. None where the driver does not tell."""
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        nothing = (pynvml.NVML_ERROR_NOT_FOUND,)
        try:
            samples = ask(pynvml.nvmlDeviceGetProcessUtilization, handle, since_us, default=[], allowed=nothing)
        except NvmlError:
            return None
        percents = collections.defaultdict[int, list[int]](list)
        for sample in samples:
            if sample.timeStamp > since_us and sample.smUtil <= _WHOLE:  # drivers are known to give others, too
                percents[int(sample.pid)].append(int(sample.smUtil))
        until_us = max((int(sample.timeStamp) for sample in samples), default=since_us)
        return Utilization({pid: sum(figures) / len(figures) / _WHOLE for pid, figures in percents.items()}, until_us)

    def used_bytes(self, uuid: str) -> int:
        """What a GPU or MIG device has in use altogether, also by nobody who is listed.

        A driver before 510 cannot tell it without what it has reserved for itself.
        """
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2, default=None, allowed=None)
        return int((memory or ask(pynvml.nvmlDeviceGetMemoryInfo, handle, about=uuid)).used)

    def system(self) -> System:
        """The driver's own versions."""
        cuda = int(ask(pynvml.nvmlSystemGetCudaDriverVersion_v2))
        return System(str(ask(pynvml.nvmlSystemGetDriverVersion)), (cuda // 1000, cuda % 1000 // 10))

    def version(self) -> str:
        """The driver's; empty where it does not say."""
        return str(ask(pynvml.nvmlSystemGetDriverVersion, default="", allowed=None))

    def device_id(self, uuid: str) -> device_id.DeviceId:
        """The model of a GPU, by the numbers of the PCI bus."""
        pci_info = ask(pynvml.nvmlDeviceGetPciInfo, ask(pynvml.nvmlDeviceGetHandleByUUID, uuid), about=uuid)
        return device_id.of_nvml(int(pci_info.pciDeviceId), int(pci_info.pciSubSystemId))

    def lists(self, bus_id: str) -> bool:
        """Whether the driver counts the GPU at this PCI address, lost or not."""
        found = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)
        try:
            return ask(pynvml.nvmlDeviceGetHandleByPciBusId, bus_id, default=None, allowed=found) is not None
        except NvmlError:
            return True

    def minor_number(self, uuid: str) -> int | None:
        """The number in the GPU's device node, `/dev/nvidia0`."""
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid, default=None, allowed=None)
        number = None if handle is None else ask(pynvml.nvmlDeviceGetMinorNumber, handle, default=None, allowed=None)
        return None if number is None else int(number)

    def is_virtual(self, uuid: str) -> bool:
        """Whether a GPU is a part that a hypervisor gives to this machine; one that does not say is none."""
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid, default=None, allowed=None)
        mode = handle and ask(pynvml.nvmlDeviceGetVirtualizationMode, handle, default=None, allowed=None)
        return bool(mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)

    def recovery_action(self, uuid: str) -> str | None:
        """What has to be done to a GPU, as a clause; "" for nothing, None where the driver does not say."""
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid, default=None, allowed=None)
        wanted = [RECOVERY_ACTION_FIELD]
        values = handle and ask(pynvml.nvmlDeviceGetFieldValues, handle, wanted, default=None, allowed=None)
        if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        action = int(values[0].value.uiVal)
        return RECOVERY_ACTIONS.get(action, f"it has to be recovered (action {action} of NVML)")

    def _gpu(self, index: int) -> Gpu:
        handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        about = f"GPU {index}"
        bus_id = str(ask(pynvml.nvmlDeviceGetPciInfo, handle, about=about).busId)
        capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle, about=about)
        problem = _health_problem(handle)
        return Gpu(
            uuid=ask(pynvml.nvmlDeviceGetUUID, handle, about=about),
            index=index,
            model=ask(pynvml.nvmlDeviceGetName, handle, about=about),
            memory_bytes=_memory_bytes(handle, about),
            compute_capability=(int(capability[0]), int(capability[1])),
            numa_node=self._numa_node(handle, bus_id),
            pci_bus_id=bus_id,
            healthy=not problem,
            health_reason=problem,
        )

    def _link_groups(self, gpus: Sequence[Gpu]) -> Mapping[str, int]:
        """By UUID the lowest index among those that NVLink joins a GPU with; nothing of one that it joins with none."""
        known = tuple(gpu.uuid for gpu in gpus)
        if known not in self._links:
            group = {gpu.uuid: gpu.index for gpu in gpus}
            handles = {uuid: ask(pynvml.nvmlDeviceGetHandleByUUID, uuid, default=None, allowed=None) for uuid in known}
            for gpu, other in itertools.combinations(known, 2):
                asked = (handles[gpu], handles[other], pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
                if ask(pynvml.nvmlDeviceGetP2PStatus, *asked, default=None, allowed=None) == pynvml.NVML_P2P_STATUS_OK:
                    joined, lowest = {group[gpu], group[other]}, min(group[gpu], group[other])
                    group = {uuid: lowest if number in joined else number for uuid, number in group.items()}
            sizes = collections.Counter(group.values())
            self._links = {known: {uuid: number for uuid, number in group.items() if sizes[number] > 1}}
        return self._links[known]

    def _numa_node(self, handle: Any, bus_id: str) -> int | None:
        # NVML's own answer is about GPUs whose memory is a NUMA node; which CPUs are near, the kernel knows.
        short = nvml_call.kernel_address(bus_id)
        try:
            numa_node = int((self._sys_root / "bus/pci/devices" / short / "numa_node").read_text())
        except (OSError, ValueError):
            numa_node = ask(function_named("nvmlDeviceGetNumaNodeId"), handle, default=-1, allowed=None)
        return numa_node if numa_node >= 0 else None


def _running(
    functions: Sequence[Callable[[Any], list[Any]]], handle: Any, about: str, *, allowed: tuple[int, ...] = ()
) -> list[Any]:
    """The processes on a GPU, by the first of the functions that the driver has; none where the error is `allowed`."""
    for function in functions[:-1]:
        processes = ask(function, handle, about=about, default=None, allowed=(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,))
        if processes is not None:
            return list(processes)
    return list(ask(functions[-1], handle, about=about, default=[], allowed=allowed))


def _memory_bytes(handle: Any, about: str) -> int:
    """What programs can have, without the driver's own part; 0 for a GPU without memory of its own (GB10, Thor)."""
    sizes = ask(
        pynvml.nvmlDeviceGetMemoryInfo,
        handle,
        pynvml.nvmlMemory_v2,
        about=about,
        default=None,
        allowed=NEED_NO_ANSWER,
    )
    if sizes is not None:
        return int(sizes.total) - int(sizes.reserved)
    whole = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, about=about, default=None, allowed=NEED_NO_ANSWER)
    return 0 if whole is None else int(whole.total)


def _health_problem(handle: Any) -> str:
    rows = ask(pynvml.nvmlDeviceGetRemappedRows, handle, default=None, allowed=None)
    if rows is not None and rows[3]:
        return "memory rows could not be remapped: the GPU has to be replaced"
    if rows is not None and rows[2]:
        return "memory rows wait to be remapped: the GPU has to be reset"
    return ""
