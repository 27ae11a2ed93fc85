"""Installs the files that share containers mount, and removes libraries of earlier agents.

A library must never change while a process has it mapped. So each version has its own file, named by a hash of its
content. The kubelet uses the same path when it restarts a container, maybe days later. So a library stays while a pod
lives that was on the node when a newer library replaced it, and while a process has it mapped. Those pods are recorded
on disk; pods that arrived while no agent ran count too. If pods or processes are unknown, no library is removed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.host import records
from gpushare import contract, pod
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

RECORD_NAME: Final = "libraries.json"
POLL_SECONDS: Final = 60.0
MAX_BYTES: Final = 64 << 20  # per process, because a container controls how long its list of mappings is
PREFIX_LENGTH: Final = 16
STEM: Final = "libgpushare-"
PATTERN: Final = f"{STEM}{'[0-9a-f]' * PREFIX_LENGTH}.so"  # matches every version
LIBRARY_MODE: Final = 0o755
_ELF: Final = b"\x7fELF"


class LibraryError(Exception):
    """The library cannot be installed; the message names the file and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Installed:
    """The host paths of the library and its preload file."""

    library: Path
    preload_file: Path


def install(source: Path, *, root: Path) -> Installed:
    """Install `source` below `root`. Idempotent. Raises LibraryError."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise LibraryError(f"{source} cannot be read ({error.strerror}): --library must name libgpushare.so") from error
    if not content.startswith(_ELF):
        raise LibraryError(f"{source} is not a shared library: --library must name libgpushare.so")
    name = f"{STEM}{hashlib.sha256(content).hexdigest()[:PREFIX_LENGTH]}.so"
    installed = Installed(root / "lib" / name, root / "ld.so.preload")
    try:
        # The loader ignores a preload file that it cannot read, so both files must survive a crash of the node.
        records.write_if_changed(installed.library, content, mode=LIBRARY_MODE, lasting=True)
        records.write_if_changed(installed.preload_file, f"{contract.CONTAINER_LIBRARY}\n", lasting=True)
        flags = os.statvfs(root).f_flag
    except OSError as error:
        raise LibraryError(
            f"{error.filename or root} cannot be written ({error.strerror}): --root must name a directory of the host"
        ) from error
    if flags & os.ST_NOEXEC:
        # The loader would only warn on the program's stderr, and run it without the library.
        raise LibraryError(
            f"{root} is mounted noexec, so no program can load a library from it: --root must name a directory of the "
            "host that is not, such as /home/kubernetes/bin/gpushare on Container-Optimized OS"
        )
    return installed


@dataclasses.dataclass(frozen=True, slots=True)
class LibraryRecord:
    """The pods of the last check, and for each old library the pods that may use it, all by UID."""

    seen: frozenset[str] = frozenset()
    holders: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class OldLibraries:
    """The libraries next to `installed`.

    pods: the node's pods; None while unknown. directory: where the next agent finds the record.
    """

    installed: Path
    directory: Path
    _: dataclasses.KW_ONLY
    pods: Callable[[], Iterable[PodJson] | None]
    proc: Path = Path("/proc")

    def __post_init__(self) -> None:
        self._path = self.directory / RECORD_NAME
        self._record = read_record(self._path)
        self._has_run = False

    async def run(self) -> None:
        while True:
            there = self.pods()
            if there is not None:
                may_restart = frozenset(
                    pod.uid(manifest)
                    for manifest in there
                    if contract.ALLOCATION in pod.annotations_of(manifest) and not pod.is_terminal(manifest)
                )
                # Reading /proc/PID/maps of an exiting process can block.
                await asyncio.to_thread(self.remove_unused, may_restart)
            await asyncio.sleep(POLL_SECONDS)

    def remove_unused(self, pods: frozenset[str]) -> None:
        """Remove libraries that neither these pods (UIDs) nor any process can need. Blocking."""
        old = {path.name: path for path in self.installed.parent.glob(PATTERN) if path != self.installed}
        before = self._record
        unseen = frozenset() if self._has_run else pods - before.seen
        holders = {name: before.holders.get(name, pods) & pods | unseen for name in sorted(old)}
        for name in holders.keys() - before.holders.keys():
            extra = {"library": name, "pods": len(holders[name])}
            logger.info("Keeping a library that pods may still use", extra=extra)
        self._record = LibraryRecord(pods, holders)
        self._has_run = True
        if self._record != before:
            document = {"seen": sorted(pods), "holders": {name: sorted(held) for name, held in holders.items()}}
            try:
                records.write_file(self._path, json.dumps(document))
            except OSError as error:
                logger.warning("Could not write which pods use which library", extra={"err": str(error)})
        unheld = [old[name] for name, held in holders.items() if not held]
        mapped = _mapped(self.proc) if unheld else frozenset()
        if mapped is None:
            return
        for path in unheld:
            try:
                if path.stat().st_ino in mapped:
                    continue
                path.unlink()
            except OSError as error:
                logger.warning("Could not remove a library", extra={"library": path.name, "err": str(error)})
            else:
                logger.info("Removed an unused library", extra={"library": path.name})


def read_record(path: Path) -> LibraryRecord:
    """Read the record; empty if the file is missing or invalid. An invalid file is set aside."""
    try:
        document = records.load(path)
        holders = {str(name): frozenset(map(str, held)) for name, held in document["holders"].items()}
        return LibraryRecord(frozenset(map(str, document["seen"])), holders)
    except FileNotFoundError:
        return LibraryRecord()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        extra = {"set_aside": str(records.set_aside(path)), "err": str(error)}
        logger.warning("Starting without the record of pods and libraries: all current pods count", extra=extra)
        return LibraryRecord()


def _mapped(proc: Path) -> frozenset[int] | None:
    """Return the inodes of all files that processes have mapped; None if a process cannot be read."""
    inodes: set[int] = set()
    for directory in proc.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            inodes.update(_mapped_by(directory))
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has exited
        except (OSError, ValueError, IndexError) as error:
            if not _in_a_pod(directory):
                continue
            extra = {"pid": directory.name, "err": str(error)}
            logger.warning("Could not read a process's mappings: keeping old libraries", extra=extra)
            return None
    return frozenset(inodes)


def _mapped_by(directory: Path) -> Iterator[int]:
    """Yield the inodes that a process has mapped, without devices: some file systems report inconsistent numbers."""
    left_bytes = MAX_BYTES
    with (directory / "maps").open("rb") as lines:
        for line in lines:
            yield int(line.split(maxsplit=5)[4])
            left_bytes -= len(line)
            records.check(left_bytes >= 0, f"the list of its mappings is longer than {MAX_BYTES} bytes")


def _in_a_pod(directory: Path) -> bool:
    """Whether a process may be in a container. Other processes never use our libraries and may be hidden."""
    try:
        return "pod" in (directory / "cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError):
        return True
