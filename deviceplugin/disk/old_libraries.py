"""Takes away the libraries that agents before this one gave to containers, once nobody can need them any more.

The kubelet remembers what a container was given, and mounts the same path again when it restarts it, maybe days later.
So a library stays as long as a pod lives that was on the node when another one took its place, and as long as a process
has it mapped. Those pods are written down, or each restart of the agent would add all that came since. Pods that came
while no agent looked count too: an older one may have run meanwhile. Whatever is unknown keeps all.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.disk import library, records, whole_file
from gpushare import contract, pod
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

NAME: Final = "libraries.json"
POLL_SECONDS: Final = 60.0
MAX_BYTES: Final = 64 << 20  # of what one process has mapped: a container can make that text as long as it likes


@dataclasses.dataclass(frozen=True, slots=True)
class LibraryRecord:
    """By their UIDs the pods seen last, and by the name of an old library those that may have been given it."""

    seen: frozenset[str] = frozenset()
    holders: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)


class OldLibraries:
    """Those beside `installed`.

    pods: those on the node, None while they are not known; directory: one that the next agent finds again.
    """

    def __init__(
        self,
        installed: Path,
        directory: Path,
        *,
        pods: Callable[[], Iterable[PodJson] | None],
        proc: Path = Path("/proc"),
    ) -> None:
        self._installed = installed
        self._path = directory / NAME
        self._pods = pods
        self._proc = proc
        self._record = read_record(self._path)
        self._has_run = False

    async def run(self) -> None:
        """Look for libraries to remove until cancelled."""
        while True:
            there = self._pods()
            if there is not None:
                # Also a process that is ending can take its time to say what it has mapped.
                await asyncio.to_thread(self.remove_unused, frozenset(_may_restart(there)))
            await asyncio.sleep(POLL_SECONDS)

    def remove_unused(self, pods: frozenset[str]) -> None:
        """Take away what none of these pods, by UID, and no process can need. Blocking."""
        old = {path.name: path for path in self._installed.parent.glob(library.PATTERN) if path != self._installed}
        before = self._record
        unseen = frozenset() if self._has_run else pods - before.seen
        holders = {name: before.holders.get(name, pods) & pods | unseen for name in sorted(old)}
        for name in holders.keys() - before.holders.keys():
            extra = {"library": name, "pods": len(holders[name])}
            logger.info("Keeping a library for the pods that may have it", extra=extra)
        self._record, self._has_run = LibraryRecord(pods, holders), True
        if self._record != before:
            self._write_record()
        unheld = [old[name] for name, held in holders.items() if not held]
        mapped = _mapped(self._proc) if unheld else frozenset()
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

    def _write_record(self) -> None:
        holders = {name: sorted(held) for name, held in self._record.holders.items()}
        try:
            whole_file.write(self._path, json.dumps({"seen": sorted(self._record.seen), "holders": holders}))
        except OSError as error:
            logger.warning("Could not write which pods use which library", extra={"err": str(error)})


def read_record(path: Path) -> LibraryRecord:
    """What an agent wrote down; nothing if there is none, or it is no such file, which is set aside."""
    try:
        document = records.load(path)
        holders = {str(name): frozenset(map(str, held)) for name, held in document["holders"].items()}
        return LibraryRecord(frozenset(map(str, document["seen"])), holders)
    except FileNotFoundError:
        return LibraryRecord()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        extra = {"set_aside": str(whole_file.set_aside(path)), "err": str(error)}
        logger.warning("Starting without the record of pods and libraries: all current pods count", extra=extra)
        return LibraryRecord()


def _may_restart(pods: Iterable[PodJson]) -> Iterator[str]:
    """Those with a share whose containers the kubelet may start again."""
    for manifest in pods:
        if contract.ALLOCATION in pod.annotations_of(manifest) and not pod.is_terminal(manifest):
            yield pod.uid(manifest)


def _mapped(proc: Path) -> frozenset[int] | None:
    """The inodes of all files that processes have mapped; None if that cannot be told."""
    inodes: set[int] = set()
    for directory in proc.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            inodes.update(_mapped_by(directory))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except (OSError, ValueError, IndexError) as error:
            if not _in_a_pod(directory):
                continue
            extra = {"pid": directory.name, "err": str(error)}
            logger.warning("Could not read a process's mappings: keeping old libraries", extra=extra)
            return None
    return frozenset(inodes)


def _mapped_by(directory: Path) -> Iterator[int]:
    """By one process. Of devices nothing is asked: some file systems say another one here than there."""
    left_bytes = MAX_BYTES
    with (directory / "maps").open("rb") as lines:
        for line in lines:
            yield int(line.split(maxsplit=5)[4])
            left_bytes -= len(line)
            records.check(left_bytes >= 0, f"it has more mapped than {MAX_BYTES} bytes tell")


def _in_a_pod(directory: Path) -> bool:
    """Whether a process may be in a container. Others have none of ours, and the system may hide them."""
    try:
        return "pod" in (directory / "cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError):
        return True
