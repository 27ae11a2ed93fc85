"""The CDI specification files of this node. They exist before a container gets a device name that they define.

They stay while containers get CDI names and, after CDI was switched off, while any device is in use: a restarted
container uses the same names. The format is version 0.5.0 of https://github.com/cncf-tags/container-device-interface.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deviceplugin.allocation import answer
from deviceplugin.host import records
from deviceplugin.injection import driver_root
from deviceplugin.state.node_state import Observable
from gpushare import contract
from gpushare.config.node_settings import NodeSettings
from gpushare.modes.hardware_gpu import HardwareGpu, parts, whole

logger = logging.getLogger(__name__)

_VERSION: Final = "0.5.0"  # the first that allows names starting with a digit; containerd 1.7 and CRI-O support it
ALL: Final = "all"
# Keeps other readers of the variable, such as NVIDIA's runtime, from adding devices.
_VOID: Final = "NVIDIA_VISIBLE_DEVICES=void"
MIG_PREFIX: Final = "MIG-"
ENV_CUDA_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
_MOUNT_OPTIONS: Final = ["nosuid", "nodev", "rbind", "rprivate"]
# Other kinds of devices, and their device nodes below the host's root.
_EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "gdrcopy": ("dev/gdrdrv",),
    "gds": ("dev/nvidia-fs*",),
    "mofed": ("dev/infiniband/*",),
}
POLL_SECONDS: Final = 1.0
_ROOT: Final = Path("/")
_SHARE_PREFIX: Final = f"{contract.CDI_SHARE_KIND.replace('/', '-')}-"
# Usual paths of NVIDIA's hook in addition to the configured one; the last is the GPU Operator's.
_HOOKS: Final = ("/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook")


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerEdits:
    """The changes to a container that gets a device.

    environment: `NAME=value`. device_nodes, mounts: pairs of container path and host path. writable: mounts that the
    container may write to. folders: library directories that `hook`, a program on the host, adds to the loader's cache.
    """

    environment: tuple[str, ...] = ()
    device_nodes: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    writable: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    hook: str = ""


NO_EDITS: Final = ContainerEdits()


def _document(kind: str, devices: Mapping[str, ContainerEdits], *, common: ContainerEdits = NO_EDITS) -> dict[str, Any]:
    """Return the specification of a kind as JSON. common: changes for every container with one of its devices."""
    edits = _edits_json(common)
    return {
        "cdiVersion": _VERSION,
        "kind": kind,
        "devices": [{"name": name, "containerEdits": _edits_json(edits)} for name, edits in sorted(devices.items())],
        **({"containerEdits": edits} if edits else {}),
    }


def _edits_json(edits: ContainerEdits) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if edits.environment:
        fields["env"] = list(edits.environment)
    if edits.device_nodes:
        fields["deviceNodes"] = [
            {"path": inside} if inside == outside else {"path": inside, "hostPath": outside}
            for inside, outside in edits.device_nodes
        ]
    if edits.mounts or edits.writable:
        fields["mounts"] = [
            {"containerPath": inside, "hostPath": outside, "options": [access, *_MOUNT_OPTIONS]}
            for access, mounts in (("ro", edits.mounts), ("rw", edits.writable))
            for inside, outside in mounts
        ]
    if edits.hook and edits.folders:
        folders = [word for folder in edits.folders for word in ("--folder", folder)]
        # `nvidia-ctk` has its hooks below a subcommand; `nvidia-cdi-hook` has only hooks.
        subcommand = ["hook"] if edits.hook.endswith("nvidia-ctk") else []
        arguments = [edits.hook.rpartition("/")[2], *subcommand, "update-ldcache", *folders]
        fields["hooks"] = [{"hookName": "createContainer", "path": edits.hook, "args": arguments}]
    return fields


class SpecError(Exception):
    """A specification file cannot be written; the message says which one and why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Specs:
    """The specification files in `directory`.

    gpus: the node's GPUs. nodes: their device nodes. in_use: whether any container has a device. root: the host's file
    system as this process sees it, unless the configuration names another path.
    """

    directory: Path
    _: dataclasses.KW_ONLY
    gpus: Callable[[], Sequence[HardwareGpu]]
    nodes: Callable[[], answer.DevicePaths]
    in_use: Callable[[], bool]
    root: Path = _ROOT
    _files: set[Path] = dataclasses.field(default_factory=set, init=False)

    def renew(self, settings: NodeSettings) -> None:
        """Write the files that are needed and remove the others. Raises SpecError."""
        is_configured = any(map(answer.uses_cdi, settings.device_list_strategies))
        there = sorted(self.directory.glob(f"{answer.CDI_VENDOR}-*.json"))
        if not is_configured and not there:
            return
        wanted = self._documents(settings) if is_configured or self.in_use() else {}
        self._files.clear()
        self._files.update(map(self._kind_path, wanted))
        for kind, document in wanted.items():
            self._write(self._kind_path(kind), document)
        try:
            for path in there:
                if path not in map(self._kind_path, wanted):
                    path.unlink(missing_ok=True)
                    logger.info("Removed a CDI specification", extra={"path": str(path)})
        except OSError as error:
            raise self._unwritable(error) from error

    async def run(self, advertised: Observable[Any], settings: Callable[[], NodeSettings]) -> None:
        """Keep the files up to date until cancelled, even without allocations: restarted containers need them."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll(settings))
            async for _ in advertised.follow():
                self._try_renew(settings())

    async def _poll(self, settings: Callable[[], NodeSettings]) -> None:
        """Restore files that another component removed: containers restart without a new allocation."""
        failure = ""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if not all(path.exists() for path in self._files):
                failure = self._try_renew(settings(), logged=failure)

    def _try_renew(self, settings: NodeSettings, *, logged: str = "") -> str:
        """Renew the files. On failure, return the reason, and log it unless it equals `logged`."""
        try:
            self.renew(settings)
        except SpecError as error:
            if str(error) != logged:
                logger.warning("Could not write the CDI specifications", extra={"err": str(error)})
            return str(error)
        return ""

    def has_share(self, name: str) -> bool:
        return self._share_path(name).exists()

    def write_share(
        self, name: str, uuids: Sequence[str], settings: NodeSettings, mps: answer.MpsPaths | None = None
    ) -> None:
        """Describe a share container's device as these GPUs, or its MIG device. mps: for a client of MPS.

        Raises SpecError.
        """
        of_device, dev = self.nodes().of_device, settings.dev_root.rstrip("/")
        missing = [uuid for uuid in uuids if uuid not in of_device]
        if missing or not uuids:
            raise SpecError(f"no device node of {', '.join(missing) or 'no GPU'} is known on this node")
        nodes = dict.fromkeys(path for uuid in uuids for path in of_device[uuid])
        # Of a GPU in MIG mode, CUDA uses the first device that it finds if the files of several are there.
        devices = [uuid for uuid in uuids if uuid.startswith(MIG_PREFIX)]
        edits = ContainerEdits(
            environment=tuple(f"{ENV_CUDA_DEVICES}={uuid}" for uuid in devices),
            device_nodes=tuple((path, f"{dev}{path}") for path in nodes),
        )
        if mps is not None:
            edits = dataclasses.replace(
                edits,
                # The library sets these too, but while other threads of the program may read the environment.
                environment=(
                    f"{answer.ENV_MPS_PIPE}={contract.CONTAINER_MPS_PIPE}",
                    f"{answer.ENV_MPS_PERCENT}={mps.percent}",
                ),
                mounts=((contract.CONTAINER_MPS_PARTITION, mps.partition),) if mps.partition else (),
                writable=((contract.CONTAINER_MPS_PIPE, mps.pipe), (answer.SHM, mps.shm)),
            )
        document = _document(contract.CDI_SHARE_KIND, {name: edits}, common=self._common(settings))
        self._write(self._share_path(name), document)

    def remove_share(self, name: str) -> None:
        self._share_path(name).unlink(missing_ok=True)

    def keep_only_shares(self, kept: Collection[str]) -> None:
        for path in self.directory.glob(f"{_SHARE_PREFIX}*.json"):
            if path.stem.removeprefix(_SHARE_PREFIX) not in kept:
                path.unlink(missing_ok=True)

    def _share_path(self, name: str) -> Path:
        return self.directory / f"{_SHARE_PREFIX}{name}.json"

    def _write(self, path: Path, document: dict[str, Any]) -> None:
        try:
            # Runtimes may read the directory's .json files at any time, so the write must be atomic.
            if records.write_if_changed(path, f"{json.dumps(document, indent=1)}\n"):
                logger.info("Wrote a CDI specification", extra={"path": str(path)})
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> SpecError:
        return SpecError(
            f"{error.filename or self.directory} cannot be written ({error.strerror}): --cdi-directory must name a "
            "directory of the host that the container runtime reads"
        )

    def _kind_path(self, kind: str) -> Path:
        return self.directory / f"{answer.CDI_VENDOR}-{kind}.json"

    def _documents(self, settings: NodeSettings) -> dict[str, dict[str, Any]]:
        root = self._host_root(settings)
        dev = settings.dev_root.rstrip("/")
        kinds = {"gpu": self._gpus(dev), "imex-channel": dict[str, ContainerEdits]()}
        for channel in settings.imex_channels:
            path = f"/dev/nvidia-caps-imex-channels/channel{channel}"
            kinds["imex-channel"][str(channel)] = ContainerEdits(device_nodes=((path, f"{dev}{path}"),))
        for kind, patterns in _EXTRAS.items():
            paths = sorted(path for pattern in patterns for path in root.glob(pattern))
            pairs = tuple((inside, f"{dev}{inside}") for inside in (f"/{path.relative_to(root)}" for path in paths))
            kinds[kind] = {ALL: ContainerEdits(device_nodes=pairs)} if pairs else {}
        common = self._common(settings)
        return {
            kind: _document(f"{answer.CDI_VENDOR}/{kind}", devices, common=common if kind == "gpu" else NO_EDITS)
            for kind, devices in kinds.items()
            if devices
        }

    def _gpus(self, dev: str) -> dict[str, ContainerEdits]:
        """Return the GPU devices by UUID and index, plus one device for all of them; control nodes are common."""
        nodes = self.nodes()
        devices: dict[str, ContainerEdits] = {}
        every: list[tuple[str, str]] = []
        for gpu in self.gpus():
            for device in (whole(gpu), *(part for _, part in parts(gpu))):
                paths = nodes.of_device.get(device.uuid, ())
                own = tuple((path, f"{dev}{path}") for path in paths if path not in nodes.control)
                if paths:
                    devices[device.uuid] = devices[device.index] = ContainerEdits(device_nodes=own)
                    every += own
        return {**devices, ALL: ContainerEdits(device_nodes=tuple(dict.fromkeys(every)))} if devices else {}

    def _host_root(self, settings: NodeSettings) -> Path:
        mounted = Path(settings.container_driver_root)
        return mounted if mounted.is_dir() else self.root

    def _common(self, settings: NodeSettings) -> ContainerEdits:
        host = self._host_root(settings)
        root = driver_root.find(host, settings.driver_root) or driver_root.DriverRoot(host, settings.driver_root)
        driver, dev = root.host.rstrip("/"), settings.dev_root.rstrip("/")
        is_host = root.host == driver_root.HOST or root.path != host  # and not only a driver root
        names = (settings.cdi_hook, *_HOOKS) if is_host else ()
        hooks = [hook for hook in names if (host / hook.lstrip("/")).is_file()]
        # A hook that is configured explicitly may be outside of this process's view, as with a separate driver root.
        hook = settings.cdi_hook if settings.cdi_hook != NodeSettings().cdi_hook else next(iter(hooks), "")
        return ContainerEdits(
            environment=(_VOID,),
            device_nodes=tuple((path, f"{dev}{path}") for path in self.nodes().control),
            mounts=tuple((path, f"{driver}{path}") for path in driver_root.files(root.path)),
            folders=driver_root.folders(root.path),
            hook=hook,
        )
