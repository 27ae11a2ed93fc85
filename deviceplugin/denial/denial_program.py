"""Loads the program and its map into the kernel, keeps them for the next agent, and attaches the program to pods'
cgroups.

It is attached to the pod's cgroup rather than the container's, which does not exist yet, and where container runtimes
attach and replace programs of their own. Program and map are pinned in the bpf file system. So the next agent finds the
registered processes, and replaces the program atomically wherever it is attached. It stays attached as long as the
cgroup exists, with or without an agent.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from deviceplugin.denial import kernel, program, registered
from deviceplugin.host import identity, kernel_process

DIRECTORY: Final = "gpushare"  # in the bpf file system
MAP: Final = "registered-1"  # with the version of its keys and values
PROGRAM: Final = "program"
BTF: Final = Path("/sys/kernel/btf/vmlinux")
BESIDE_V1: Final = "unified"  # where systemd mounts cgroup v2 next to the hierarchies of v1
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of linux/proc_ns.h
_CAPABILITIES: Final = {"BPF": 39, "NET_ADMIN": 12, "PERFMON": 38}
_ALL_OF_THEM: Final = {"SYS_ADMIN": 21}
MAX_LEVELS: Final = 8  # kind: kubelet.slice/kubelet-kubepods.slice/…-burstable.slice/…, in a container of a node


class DenialError(Exception):
    """Devices cannot be denied on this node; the message is a sentence that says why."""


class DenialProgram:
    """A loaded program. The arbiter gets `map_descriptor`. Its owner closes it."""

    def __init__(self, cgroup_root: Path, *, map_descriptor: int, loaded: int, before: int | None) -> None:
        self._cgroup_root = cgroup_root
        self.map_descriptor = map_descriptor
        self._program = loaded
        self._id, _ = kernel.identity(loaded)
        self._before = before
        self._before_id = kernel.identity(before)[0] if before is not None else None

    def attach(self, pod_uids: Collection[str]) -> frozenset[str]:
        """Attach the program to these pods. Return the pods that have a cgroup. Raises DenialError."""
        cgroups = pod_cgroups(self._cgroup_root) if pod_uids else {}
        there = frozenset(uid for uid in pod_uids if uid in cgroups)
        for uid in there:
            try:
                self._attach(cgroups[uid])
            except FileNotFoundError:
                continue  # the pod has just ended
            except OSError as error:
                raise DenialError(
                    f"the kernel did not attach the program to {cgroups[uid]}: {error.strerror}"
                ) from error
        return there

    def close(self) -> None:
        """Close all descriptors. The program stays attached."""
        for descriptor in (self.map_descriptor, self._program, self._before):
            if descriptor is not None:
                os.close(descriptor)

    def _attach(self, path: Path) -> None:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            there = kernel.attached(directory)
            if self._id not in there:
                replaces = self._before if self._before_id in there else None
                kernel.attach(directory, self._program, instead_of=replaces)
        finally:
            os.close(directory)


def load(bpf_root: Path, cgroup_root: Path, *, proc: Path, majors: Collection[int] | None = None) -> DenialProgram:
    """Load the program for the driver's devices, or for these major numbers. Raises DenialError."""
    if str((proc / "self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE:
        raise DenialError("the agent is not in the host's pid namespace (the node is a container, as with kind)")
    if not is_cgroup_v2(cgroup_root):
        beside = cgroup_root / BESIDE_V1
        remedy = f"; cgroup v2 is at {beside}: set --cgroup-root={beside}" if is_cgroup_v2(beside) else ""
        raise DenialError(f"{cgroup_root} is not cgroup v2, which denying devices needs{remedy}")
    if not kernel.is_bpf_fs(bpf_root):
        raise DenialError(f"no bpf file system is mounted at {bpf_root} (systemd mounts one at /sys/fs/bpf)")
    missing = kernel_process.missing_capabilities(_CAPABILITIES, proc=proc)
    if missing and kernel_process.missing_capabilities(_ALL_OF_THEM, proc=proc):
        raise DenialError(
            f"the agent lacks the capabilities {', '.join(missing)} (see config/components/deny-unregistered)"
        )
    try:
        offsets = program.offsets(BTF.read_bytes(), program.FIELDS)
    except (OSError, program.FieldsError) as error:
        raise DenialError(f"this kernel has no usable type information at {BTF}: {error}") from error
    numbers = majors if majors is not None else program.majors((proc / "devices").read_text())
    try:
        return _load(bpf_root, cgroup_root, numbers, offsets)
    except PermissionError as error:
        raise DenialError(
            f"the kernel does not allow the agent to load the program: {error.strerror}; its seccomp profile must "
            "allow bpf(2) (see config/components/deny-unregistered)"
        ) from error
    except OSError as error:
        raise DenialError(f"the kernel rejects the program: {error.strerror or error}") from error


def _load(bpf_root: Path, cgroup_root: Path, majors: Collection[int], offsets: program.Offsets) -> DenialProgram:
    kept = bpf_root / DIRECTORY
    kept.mkdir(mode=0o700, exist_ok=True)
    descriptor = kernel.pinned(kept / MAP)
    before = kernel.pinned(kept / PROGRAM) if descriptor is not None else None
    if descriptor is None:
        descriptor = registered.make()
        kernel.pin(descriptor, kept / MAP)
    loaded = kernel.load("gpushare", program.assemble(majors, offsets, descriptor))
    if before is not None and kernel.identity(before)[1] == kernel.identity(loaded)[1]:
        os.close(loaded)
        return DenialProgram(cgroup_root, map_descriptor=descriptor, loaded=before, before=None)
    # Pin it at once, while the previous one is still attached: if the agent ends here, two equal programs stay
    # attached.
    (kept / PROGRAM).unlink(missing_ok=True)
    kernel.pin(loaded, kept / PROGRAM)
    return DenialProgram(cgroup_root, map_descriptor=descriptor, loaded=loaded, before=before)


def is_cgroup_v2(root: Path) -> bool:
    """Whether the directory belongs to cgroup v2."""
    return (root / "cgroup.controllers").exists()


def pod_cgroups(root: Path) -> dict[str, Path]:
    """Return the cgroup directories of pods by UID."""
    return dict(_below(root, MAX_LEVELS))


def _below(directory: Path, levels: int) -> Iterator[tuple[str, Path]]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return  # it has just been removed
    for name in names:
        uid = identity.pod_of(name)
        if uid is not None:
            yield uid, directory / name
        elif levels > 1:
            yield from _below(directory / name, levels - 1)
