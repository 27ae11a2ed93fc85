"""Specs: the CDI files of this node. They are written before a container is told a name that is in them, not after.

They are there while containers are told such names, and, when that was switched off, for as long as somebody has a
device: a container that is started anew is made of the same names again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deviceplugin import whole_file
from deviceplugin.allocation import answer, cdi
from deviceplugin.cdi import driver_files, spec
from gpushare.config.settings import Settings
from gpushare.modes.card import Card, parts, whole

logger = logging.getLogger(__name__)

# What else a container may be told by name, and the device nodes that it then gets, below the root of devices.
_EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "gdrcopy": ("dev/gdrdrv",),
    "gds": ("dev/nvidia-fs*",),
    "mofed": ("dev/infiniband/*",),
}
_ROOT: Final = Path("/")


class SpecError(Exception):
    """A specification cannot be written; the message says which and why."""


class Specs:
    """The files in `directory`. cards: of the node; nodes: their device nodes; in_use: whether anyone has a device.

    root: where the host's files are seen by this process, unless the configuration says so.
    """

    def __init__(
        self,
        directory: Path,
        *,
        cards: Callable[[], Sequence[Card]],
        nodes: Callable[[], answer.Nodes],
        in_use: Callable[[], bool],
        root: Path = _ROOT,
    ) -> None:
        self._directory = directory
        self._cards = cards
        self._nodes = nodes
        self._in_use = in_use
        self._root = root

    def renew(self, settings: Settings) -> None:
        """Make the files true, and take away those that are of no use any more. Raises SpecError."""
        told = any(map(cdi.is_strategy, settings.device_list_strategies))
        there = sorted(self._directory.glob(f"{cdi.VENDOR}-*.json"))
        if not told and not there:
            return
        wanted = self._documents(settings) if told or self._in_use() else {}
        try:
            for kind, document in wanted.items():
                # A runtime reads every file of the directory that ends in .json, at any time.
                if whole_file.keep(self._path(kind), f"{json.dumps(document, indent=1)}\n"):
                    logger.info("Wrote a CDI specification", extra={"path": str(self._path(kind))})
            for path in there:
                if path not in map(self._path, wanted):
                    path.unlink(missing_ok=True)
                    logger.info("Took away a CDI specification", extra={"path": str(path)})
        except OSError as error:
            raise SpecError(
                f"{error.filename or self._directory} cannot be written ({error.strerror}): --cdi-directory names a "
                "directory of the host that the container runtime reads"
            ) from error

    def _path(self, kind: str) -> Path:
        return self._directory / f"{cdi.VENDOR}-{kind}.json"

    def _documents(self, settings: Settings) -> dict[str, dict[str, Any]]:
        """The specification of each kind of which there is a device."""
        seen = Path(settings.container_driver_root)
        root = seen if seen.is_dir() else self._root
        dev = settings.dev_root.rstrip("/")
        kinds = {"gpu": self._gpus(dev), "imex-channel": _channels(settings.imex_channels, dev)}
        for kind, patterns in _EXTRAS.items():
            found = sorted(path for pattern in patterns for path in root.glob(pattern))
            pairs = tuple((inside, f"{dev}{inside}") for inside in (f"/{path.relative_to(root)}" for path in found))
            kinds[kind] = {spec.ALL: spec.Edits(device_nodes=pairs)} if pairs else {}
        commons = {"gpu": self._common(settings, root, dev)}
        return {
            kind: spec.document(f"{cdi.VENDOR}/{kind}", devices, common=commons.get(kind, spec.NOTHING))
            for kind, devices in kinds.items()
            if devices
        }

    def _gpus(self, dev: str) -> dict[str, spec.Edits]:
        nodes = self._nodes()
        found = {}
        for card in self._cards():
            for device in (whole(card), *(part for _, part in parts(card))):
                pairs = tuple((path, f"{dev}{path}") for path in nodes.of_device.get(device.uuid, ()))
                if pairs:
                    found[device.uuid] = found[device.index] = pairs
        control = tuple((path, f"{dev}{path}") for path in nodes.control)
        return spec.gpus(found, common=spec.Edits(device_nodes=control))

    def _common(self, settings: Settings, root: Path, dev: str) -> spec.Edits:
        driver = settings.driver_root.rstrip("/")
        hook = settings.cdi_hook if (root / settings.cdi_hook.lstrip("/")).is_file() else ""
        return spec.Edits(
            environment=(spec.VOID,),
            device_nodes=tuple((path, f"{dev}{path}") for path in self._nodes().control),
            mounts=tuple((path, f"{driver}{path}") for path in driver_files.files(root)),
            folders=driver_files.folders(root),
            hook=hook,
        )


def _channels(channels: Sequence[int], dev: str) -> dict[str, spec.Edits]:
    paths = {str(one): f"/dev/nvidia-caps-imex-channels/channel{one}" for one in channels}
    return {name: spec.Edits(device_nodes=((path, f"{dev}{path}"),)) for name, path in paths.items()}
