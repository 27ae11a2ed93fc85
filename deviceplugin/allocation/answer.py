"""The answer to Allocate: how a container gets its devices, by each device list strategy.

`envvar`          the devices in NVIDIA_VISIBLE_DEVICES; any pod can set it, so it does not protect the devices
`volume-mounts`   a mount of /dev/null per device, which only the kubelet can add
`cdi-annotations`, `cdi-cri`   CDI device names, in an annotation or in their own field
                  (https://github.com/cncf-tags/container-device-interface)
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from gpushare import contract
from gpushare.config.node_settings import NodeSettings
from gpushare.modes.assignment import Offered

CDI_VENDOR: Final = "k8s.device-plugin.nvidia.com"
CDI_ANNOTATIONS: Final = "cdi-annotations"
CDI_CRI: Final = "cdi-cri"


@dataclasses.dataclass(frozen=True, slots=True)
class CdiAnswer:
    """The CDI part of an answer to Allocate."""

    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    devices: tuple[str, ...] = ()


def uses_cdi(word: str) -> bool:
    return word in (CDI_ANNOTATIONS, CDI_CRI)


def cdi_device_name(vendor: str, kind: str, identity: str) -> str:
    return f"{vendor}/{kind}={identity}"


def cdi_share_name(device_ids: Iterable[str]) -> str:
    """Return a share container's device name, derived from its device ids, which no other container has meanwhile."""
    return hashlib.sha256("\n".join(sorted(device_ids)).encode()).hexdigest()[:32]


def cdi_answer(names: Sequence[str], strategies: Sequence[str], *, prefix: str, answer_id: str) -> CdiAnswer:
    """Return the names in the form that these strategies use; empty if there are no names."""
    if not names:
        return CdiAnswer()
    return CdiAnswer(
        annotations={f"{prefix}nvidia-device-plugin_{answer_id}": ",".join(names)}
        if CDI_ANNOTATIONS in strategies
        else {},
        devices=tuple(names) if CDI_CRI in strategies else (),
    )


ENVVAR: Final = "envvar"
VOLUME_MOUNTS: Final = "volume-mounts"
INDEX: Final = "index"
VOLUME_MOUNTS_ROOT: Final = "/var/run/nvidia-container-devices"
CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
ENV_IMEX: Final = "NVIDIA_IMEX_CHANNELS"
ENV_MPS_PIPE: Final = "CUDA_MPS_PIPE_DIRECTORY"
ENV_MPS_PERCENT: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
SHM: Final = "/dev/shm"  # noqa: S108 - where CUDA looks for it


@dataclasses.dataclass(frozen=True, slots=True)
class MpsPaths:
    """The host paths of an MPS daemon's pipe and of its clients' shared memory. percent: of the multiprocessors.

    partition: the host path of the directory with the name of the client's SM partition, or "".
    """

    pipe: str
    shm: str
    percent: int = 100
    partition: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DevicePaths:
    """The host's device nodes. of_device: by device UUID; control: the nodes of CONTROL_NODES that exist."""

    of_device: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    control: tuple[str, ...] = ()


_NO_PATHS: Final = DevicePaths()


def container_response(
    resource: str,
    devices: Sequence[Offered],
    settings: NodeSettings,
    *,
    answer_id: str,
    nodes: DevicePaths = _NO_PATHS,
    mps: MpsPaths | None = None,
    cdi_vendor: str = CDI_VENDOR,
) -> messages.ContainerAllocateResponse:
    """Return what a container gets with these devices of `resource`. A device with several shares is listed once.

    answer_id: unique, the suffix of the CDI annotation's name. mps: None unless the devices are shared by MPS.
    """
    unique = {device.device: device for device in devices}
    by_index = settings.device_id_strategy == INDEX
    ids = [device.index if by_index else device.device for device in unique.values()]
    channels = [str(channel) for channel in settings.imex_channels]
    strategies = settings.device_list_strategies
    by_cdi = cdi_answer(
        [cdi_device_name(cdi_vendor, "gpu", identity) for identity in ids]
        + [cdi_device_name(cdi_vendor, "imex-channel", channel) for channel in channels]
        + [cdi_device_name(cdi_vendor, kind, "all") for kind, wanted in _extras(settings).items() if wanted],
        strategies,
        prefix=settings.cdi_annotation_prefix,
        answer_id=answer_id,
    )
    envs = {f"NVIDIA_{kind.upper()}": "enabled" for kind, wanted in _extras(settings).items() if wanted}
    mounts: list[tuple[str, str]] = []  # the container's path and the host's
    if mps is not None:
        pipe = f"/mps/{resource}/pipe"
        envs[ENV_MPS_PIPE] = pipe
        mounts += [(pipe, mps.pipe), (SHM, mps.shm)]
    if ENVVAR in strategies:
        envs[contract.ENV_VISIBLE_DEVICES] = ",".join(ids)
        if channels:
            envs[ENV_IMEX] = ",".join(channels)
    if VOLUME_MOUNTS in strategies:
        envs[contract.ENV_VISIBLE_DEVICES] = VOLUME_MOUNTS_ROOT
        names = [*ids, *(f"imex/{channel}" for channel in channels)]
        mounts += [(f"{VOLUME_MOUNTS_ROOT}/{name}", "/dev/null") for name in names]
    paths: list[str] = []
    if settings.pass_device_specs and not all(map(uses_cdi, strategies)):
        paths = [path for path in CONTROL_NODES if path in nodes.control]
        paths += [path for uuid in unique for path in nodes.of_device.get(uuid, ())]
    root = settings.dev_root.rstrip("/")
    return messages.ContainerAllocateResponse(
        envs=envs,
        mounts=[messages.Mount(container_path=inside, host_path=outside) for inside, outside in mounts],
        devices=[
            messages.DeviceSpec(container_path=path, host_path=f"{root}{path}", permissions="rw")
            for path in dict.fromkeys(paths)
        ],
        annotations=by_cdi.annotations,
        cdi_devices=[messages.CDIDevice(name=name) for name in by_cdi.devices],
    )


def _extras(settings: NodeSettings) -> dict[str, bool]:
    return {"gdrcopy": settings.gdrcopy, "gds": settings.gds, "mofed": settings.mofed}
