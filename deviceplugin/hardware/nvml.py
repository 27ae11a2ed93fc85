"""The GPUs as the driver describes them, and asynchronous calls of the driver.

A GPU that has fallen off the bus answers nothing, not even its UUID, so unreadable GPUs are reported by index next to
the readable ones. NVML looks for GPUs only when it is initialised, so a lost GPU is found again by reinitialising NVML.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import pynvml

from deviceplugin.hardware import nvml_call, nvml_events
from deviceplugin.hardware.nvml_call import NEED_NO_ANSWER, NvmlError, ask, function_named, try_ask
from deviceplugin.state.node_state import Unreadable
from gpushare.gpunode import Gpu
from gpushare.mig import parted

NO_LIBRARY: Final = int(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
NOT_LOADED: Final = int(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_REMEDY: Final = {
    NO_LIBRARY: (
        "libnvidia-ml.so.1 is not on the library path: install NVIDIA's driver on the node, and run this container "
        "with the NVIDIA runtime (runtimeClassName, NVIDIA_VISIBLE_DEVICES=all, NVIDIA_DRIVER_CAPABILITIES=utility), "
        "or mount the host's driver (component driver-root)"
    ),
    NOT_LOADED: "the node's kernel has no NVIDIA driver loaded: load it, or unlabel the node",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated under this process: restart the pod or the node",
    pynvml.NVML_ERROR_NO_PERMISSION: "the GPUs' device files may not be opened: run the agent privileged",
}
# from nvml.h of release 570; nvidia-ml-py has a name for it since 12.570
RECOVERY_ACTION_FIELD: Final = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
RECOVERY_ACTIONS: Final = {  # by NVML_GPU_RECOVERY_ACTION_*
    0: "",  # NONE
    1: "it has to be reset",  # GPU_RESET
    2: "the node has to be rebooted",  # NODE_REBOOT
    3: "its traffic with other GPUs has to be drained",  # DRAIN_P2P
    4: "it has to be drained and reset",  # DRAIN_AND_RESET
}


def _versions(name: str) -> tuple[Callable[..., Any], ...]:
    return tuple(function_named(f"{name}_{version}") for version in ("v3", "v2"))


# The driver may list MPS clients separately (nvidia-smi's types C and M+C). An old driver has no such list.
# The unversioned names raise an error that is not an NVMLError if the driver is older than pynvml.
_COMPUTING: Final = _versions("nvmlDeviceGetComputeRunningProcesses")
_MPS_CLIENTS: Final = _versions("nvmlDeviceGetMPSComputeRunningProcesses")
_DRAWING: Final = _versions("nvmlDeviceGetGraphicsRunningProcesses")
_WHOLE: Final = 100  # percent


@dataclasses.dataclass(frozen=True, slots=True)
class NvmlSnapshot:
    """The GPUs as the driver describes them now. healthy: False if the driver requires a reset or a replacement."""

    gpus: tuple[Gpu, ...]
    unreadable: tuple[Unreadable, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class NvmlProcess:
    """A process on a GPU, by its pid on the host. memory_bytes: None if the driver does not report it."""

    pid: int
    memory_bytes: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Utilization:
    """The fraction of time in which processes ran kernels, by pid, until `until_us` on the driver's clock."""

    parts: Mapping[int, float]
    until_us: int


class Nvml:
    """An initialised NVML. Not thread-safe. Call `close` at the end. sys_root: where sysfs is mounted."""

    def __init__(self, *, sys_root: Path = Path("/sys")) -> None:
        self._sys_root = sys_root
        self._events = nvml_events.Events()
        self._links: dict[tuple[str, ...], Mapping[str, int]] = {}  # by the UUIDs of all GPUs; the links are fixed
        self._initialize()

    def _initialize(self) -> None:
        try:
            ask(pynvml.nvmlInit)
        except NvmlError as error:
            remedy = _REMEDY.get(error.code, "see the driver's messages in the kernel log (dmesg)")
            raise NvmlError(f"{error}: {remedy}", error.code) from error

    def close(self) -> None:
        self._events.close()
        try_ask(pynvml.nvmlShutdown)

    def reinitialize(self) -> None:
        """Shut down and initialise again, to find GPUs that came back. Events in between are lost."""
        self.close()
        self._links.clear()
        self._initialize()

    @property
    def unwatched(self) -> Mapping[str, str]:
        """GPUs whose failures would go unnoticed, by UUID, with the reason."""
        return self._events.unwatched

    def wait_for_xid(self, timeout_seconds: float) -> nvml_events.XidEvent | None:
        return self._events.wait(timeout_seconds)

    def snapshot(self) -> NvmlSnapshot:
        """Read every GPU. Raises NvmlError only if the driver does not answer at all."""
        gpus, unreadable = [], []
        for index in range(ask(pynvml.nvmlDeviceGetCount)):
            try:
                gpus.append(self._gpu(index))
            except NvmlError as error:
                unreadable.append(Unreadable(index, str(error)))
        groups = self._link_groups(gpus)
        grouped = tuple(dataclasses.replace(gpu, link_group=groups.get(gpu.uuid)) for gpu in gpus)
        return NvmlSnapshot(grouped, tuple(unreadable))

    def processes(self, uuid: str) -> tuple[NvmlProcess, ...]:
        """Return the processes that compute on a GPU, including MPS clients."""
        return self._listed(uuid, _MPS_CLIENTS)

    def users(self, uuid: str) -> tuple[NvmlProcess, ...]:
        """Return the processes that compute or draw on a GPU or MIG device."""
        return self._listed(uuid, _MPS_CLIENTS, _DRAWING)

    def _listed(self, uuid: str, *others: Sequence[Callable[[Any], list[Any]]]) -> tuple[NvmlProcess, ...]:
        """Return the processes of several lists, as far as the driver has them; each process once."""
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        lists = [_running(_COMPUTING, handle, uuid)]
        lists += [_running(functions, handle, uuid, allowed=NEED_NO_ANSWER) for functions in others]
        memory_bytes: dict[int, int | None] = {}
        for process in itertools.chain.from_iterable(lists):
            known = (memory_bytes.get(int(process.pid)), process.usedGpuMemory)
            memory_bytes[int(process.pid)] = max((bytes_ for bytes_ in known if bytes_ is not None), default=None)
        return tuple(NvmlProcess(pid, used_bytes) for pid, used_bytes in memory_bytes.items())

    def utilization(self, uuid: str, since_us: int) -> Utilization | None:
        """Return how much of a GPU's time processes used since `since_us` (0: recently); None if unknown."""
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        nothing = (pynvml.NVML_ERROR_NOT_FOUND,)
        try:
            samples = ask(pynvml.nvmlDeviceGetProcessUtilization, handle, since_us, default=[], allowed=nothing)
        except NvmlError:
            return None
        percents = collections.defaultdict[int, list[int]](list)
        for sample in samples:
            if sample.timeStamp > since_us and sample.smUtil <= _WHOLE:  # some drivers return invalid samples
                percents[int(sample.pid)].append(int(sample.smUtil))
        until_us = max((int(sample.timeStamp) for sample in samples), default=since_us)
        return Utilization({pid: sum(figures) / len(figures) / _WHOLE for pid, figures in percents.items()}, until_us)

    def used_bytes(self, uuid: str) -> int:
        """Return the memory in use on a device, also by unlisted processes and, before release 510, the driver."""
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        memory = try_ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        return int((memory or ask(pynvml.nvmlDeviceGetMemoryInfo, handle, about=uuid)).used)

    def versions(self) -> tuple[str, tuple[int, int]]:
        """Return the driver's version, and the newest CUDA version that it supports. Raises NvmlError."""
        cuda = int(ask(pynvml.nvmlSystemGetCudaDriverVersion_v2))
        return str(ask(pynvml.nvmlSystemGetDriverVersion)), (cuda // 1000, cuda % 1000 // 10)

    def cuda_version(self) -> tuple[int, int]:
        """Return the newest CUDA version that the driver supports; (0, 0) if it does not report one."""
        cuda = int(try_ask(pynvml.nvmlSystemGetCudaDriverVersion_v2, default=0))
        return cuda // 1000, cuda % 1000 // 10

    def version(self) -> str:
        """Return the driver's version; empty if it does not report one."""
        return str(try_ask(pynvml.nvmlSystemGetDriverVersion, default=""))

    def device_id(self, uuid: str) -> parted.DeviceId:
        pci_info = ask(pynvml.nvmlDeviceGetPciInfo, ask(pynvml.nvmlDeviceGetHandleByUUID, uuid), about=uuid)
        return parted.device_id_of_nvml(int(pci_info.pciDeviceId), int(pci_info.pciSubSystemId))

    def lists(self, bus_id: str) -> bool:
        """Whether the driver counts the GPU at this PCI address, even if it is lost."""
        found = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)
        try:
            return ask(pynvml.nvmlDeviceGetHandleByPciBusId, bus_id, allowed=found) is not None
        except NvmlError:
            return True

    def minor_number(self, uuid: str) -> int | None:
        """Return the minor number of the GPU's device node, as in `/dev/nvidia0`; None if unknown."""
        number = _try_ask_gpu(uuid, pynvml.nvmlDeviceGetMinorNumber)
        return None if number is None else int(number)

    def is_virtual(self, uuid: str) -> bool:
        """Whether a GPU is a vGPU; False if the driver does not say."""
        mode = _try_ask_gpu(uuid, pynvml.nvmlDeviceGetVirtualizationMode)
        return bool(mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)

    def recovery_action(self, uuid: str) -> str | None:
        """Return the action that a GPU needs, as a clause; "" for none, None if the driver does not report it."""
        values = _try_ask_gpu(uuid, pynvml.nvmlDeviceGetFieldValues, [RECOVERY_ACTION_FIELD])
        if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        action = int(values[0].value.uiVal)
        return RECOVERY_ACTIONS.get(action, f"it has to be recovered (action {action} of NVML)")

    def _gpu(self, index: int) -> Gpu:
        handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        about = f"GPU {index}"
        bus_id = str(ask(pynvml.nvmlDeviceGetPciInfo, handle, about=about).busId)
        capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle, about=about)
        _, _, waits, failed = try_ask(pynvml.nvmlDeviceGetRemappedRows, handle, default=(0, 0, 0, 0))
        problem = ""
        if failed:
            problem = "memory rows could not be remapped: the GPU has to be replaced"
        elif waits:
            problem = "memory rows wait to be remapped: the GPU has to be reset"
        # NVML reports the NUMA node only of GPUs whose memory is one. The kernel knows the nearest CPUs.
        try:
            address = nvml_call.kernel_address(bus_id)
            numa_node = int((self._sys_root / "bus/pci/devices" / address / "numa_node").read_text())
        except (OSError, ValueError):
            numa_node = try_ask(function_named("nvmlDeviceGetNumaNodeId"), handle, default=-1)
        return Gpu(
            uuid=ask(pynvml.nvmlDeviceGetUUID, handle, about=about),
            index=index,
            model=ask(pynvml.nvmlDeviceGetName, handle, about=about),
            memory_bytes=_memory_bytes(handle, about),
            compute_capability=(int(capability[0]), int(capability[1])),
            numa_node=numa_node if numa_node >= 0 else None,
            pci_bus_id=bus_id,
            healthy=not problem,
            health_reason=problem,
        )

    def _link_groups(self, gpus: Sequence[Gpu]) -> Mapping[str, int]:
        """Return the group of each GPU that NVLink connects to others, by UUID: the lowest index in the group."""
        known = tuple(gpu.uuid for gpu in gpus)
        if known not in self._links:
            group = {gpu.uuid: gpu.index for gpu in gpus}
            handles = {uuid: try_ask(pynvml.nvmlDeviceGetHandleByUUID, uuid) for uuid in known}
            for gpu, other in itertools.combinations(known, 2):
                asked = (handles[gpu], handles[other], pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
                if try_ask(pynvml.nvmlDeviceGetP2PStatus, *asked) == pynvml.NVML_P2P_STATUS_OK:
                    joined, lowest = {group[gpu], group[other]}, min(group[gpu], group[other])
                    group = {uuid: lowest if number in joined else number for uuid, number in group.items()}
            sizes = collections.Counter(group.values())
            self._links = {known: {uuid: number for uuid, number in group.items() if sizes[number] > 1}}
        return self._links[known]


def _try_ask_gpu(uuid: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML with a GPU's handle; return None for any error."""
    handle = try_ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    return None if handle is None else try_ask(function, handle, *arguments)


def _running(
    functions: Sequence[Callable[[Any], list[Any]]], handle: Any, about: str, *, allowed: tuple[int, ...] = ()
) -> list[Any]:
    """Return a GPU's processes by the first function that the driver has; empty if the error is `allowed`."""
    for function in functions[:-1]:
        processes = ask(function, handle, about=about, allowed=(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,))
        if processes is not None:
            return list(processes)
    return list(ask(functions[-1], handle, about=about, default=[], allowed=allowed))


def _memory_bytes(handle: Any, about: str) -> int:
    """Return the memory available to programs; 0 for a GPU without its own memory (GB10, Thor)."""
    get = pynvml.nvmlDeviceGetMemoryInfo
    sizes = ask(get, handle, pynvml.nvmlMemory_v2, about=about, allowed=NEED_NO_ANSWER)
    if sizes is not None:
        return int(sizes.total) - int(sizes.reserved)
    whole = ask(get, handle, about=about, allowed=NEED_NO_ANSWER)
    return 0 if whole is None else int(whole.total)


Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class Driver:
    """An initialised NVML, shared by everything in this process."""

    def __init__(self, opened: Nvml) -> None:
        self.nvml = opened
        self._lock = asyncio.Lock()
        self._asked_at: float | None = None

    @property
    def silent_seconds(self) -> float:
        """How many seconds the running call has taken so far; 0 if none is running."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    async def ask(
        self, question: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Call `question`, which uses `nvml`, in the order of requests."""
        await self._lock.acquire()
        # Cancelling a call does not stop its thread. The next call waits until the thread has returned. The callback
        # marks an error as retrieved, because the caller may have been cancelled.
        call = asyncio.create_task(self._call(functools.partial(question, *arguments, **named)))
        call.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return await asyncio.shield(call)

    async def _call(self, question: Callable[[], Answer]) -> Answer:
        self._asked_at = time.monotonic()
        try:
            return await asyncio.to_thread(question)
        finally:
            self._asked_at = None
            self._lock.release()
