"""HardwareGpu: a GPU and its MIG devices, with the properties that a configuration can refer to."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

from gpushare.allocation import Isolation
from gpushare.mig.instance_layout import Geometry
from gpushare.mig.parted import DeviceId

MAX_MPS_CLIENTS: Final = 48  # on any GPU; 16 before Volta


@dataclasses.dataclass(frozen=True, slots=True)
class HardwareMigDevice:
    """One MIG device; `index` among those of its GPU, `profile` its name, such as `3g.40gb`."""

    uuid: str
    index: int
    profile: str


class ComputeMode(enum.StrEnum):
    """How many processes may use a GPU, by NVML's names."""

    DEFAULT = "DEFAULT"  # any number
    EXCLUSIVE_THREAD = "EXCLUSIVE_THREAD"  # older drivers
    PROHIBITED = "PROHIBITED"
    EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"


@dataclasses.dataclass(frozen=True, slots=True)
class HardwareGpu:
    """A GPU as its driver reports it."""

    uuid: str
    index: int
    model: str = ""
    mig_capable: bool = False
    mig_enabled: bool = False  # in MIG mode, with or without devices
    mig_devices: tuple[HardwareMigDevice, ...] = ()
    cut_for_shares: tuple[HardwareMigDevice, ...] = ()  # of a GPU that is in MIG mode for shares, and counts as whole
    hardware: DeviceId | None = None
    geometry: Geometry | None = None  # which MIG devices fit on it; None: unknown, so not checked
    most_mps_clients: int | None = None  # how many can share it by MPS; None: unknown, so not checked
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    memory_is_known: bool = True
    ours: bool = False  # whether gpushare made its current MIG state
    isolations: tuple[Isolation, ...] = (Isolation.ARBITER, Isolation.NONE)  # that it and its node can do
    can_partition: bool = False  # whether the driver makes static SM partitions of it
    sm_partitions: int = 0  # those that shares with the isolation mps get


@dataclasses.dataclass(frozen=True, slots=True)
class WholeDevice:
    """A device that a container can get whole: a GPU or a MIG device. `index` is `0` or `0:1`."""

    uuid: str
    index: str
    gpu: str  # UUID of the GPU that it is, or is part of

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG device."""
        return self.uuid != self.gpu

    @property
    def order(self) -> tuple[int, ...]:
        """The sort key: index of the GPU, then of the MIG device."""
        return tuple(int(part) if part.isascii() and part.isdigit() else 0 for part in self.index.split(":"))


def whole(gpu: HardwareGpu) -> WholeDevice:
    """Return the GPU as one device."""
    return WholeDevice(gpu.uuid, str(gpu.index), gpu.uuid)


def parts(gpu: HardwareGpu) -> tuple[tuple[str, WholeDevice], ...]:
    """Return its MIG devices, each after its profile."""
    return tuple((mig.profile, WholeDevice(mig.uuid, f"{gpu.index}:{mig.index}", gpu.uuid)) for mig in gpu.mig_devices)


def has_sm_partitions(compute_capability: tuple[int, int], cuda_version: tuple[int, int]) -> bool:
    """Whether MPS daemons can cut such a GPU into static SM partitions. https://docs.nvidia.com/deploy/mps/"""
    return compute_capability >= (8, 0) and cuda_version >= (13, 1)


def has_new_mps(compute_capability: tuple[int, int], *, as_nvidia: bool = False) -> bool:
    """Whether MPS clients have separate address spaces (Volta), so that many more fit; as_nvidia: from Turing on."""
    return compute_capability >= ((7, 5) if as_nvidia else (7, 0))


def max_mps_clients(compute_capability: tuple[int, int], *, as_nvidia: bool = False) -> int:
    """Return how many processes can share such a GPU by MPS. https://docs.nvidia.com/deploy/mps/"""
    return MAX_MPS_CLIENTS if has_new_mps(compute_capability, as_nvidia=as_nvidia) else 16
