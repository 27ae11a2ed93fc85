"""Denies the devices to unregistered processes of pods with shares, before their containers are created.

The program is attached to the pod's cgroup rather than the container's, which does not exist yet, and where container
runtimes attach and replace their own programs. If another container of the pod may have whole GPUs, whose programs
do not register, that would take these away: such a pod is left out, and named in the condition.

Program and map are pinned in the bpf file system. So the next agent finds the registered processes, and replaces the
program atomically wherever it is attached. It stays attached as long as the cgroup exists, with or without an agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from deviceplugin.denial import kernel, program
from deviceplugin.host import cgroups as host_cgroups
from deviceplugin.host import kernel_process
from gpushare import contract, pod
from gpushare.gpunode import Condition
from gpushare.pod import PodJson

logger = logging.getLogger(__name__)

SECONDS: Final = 2.0  # between two rounds, for pods whose start the kubelet did not announce
DENIED: Final = "a process in a container with a share gets no GPU unless it is registered with the arbiter"
_NVIDIA: Final = "nvidia.com/"
_MAX_NAMED: Final = 10
PIN_DIRECTORY: Final = "gpushare"  # in the bpf file system
PINNED_MAP: Final = "registered-1"  # with the version of its keys and values
PINNED_PROGRAM: Final = "program"
BTF: Final = Path("/sys/kernel/btf/vmlinux")
BESIDE_V1: Final = "unified"  # where systemd mounts cgroup v2 next to the hierarchies of v1
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of linux/proc_ns.h
_CAPABILITIES: Final = {"BPF": 39, "NET_ADMIN": 12, "PERFMON": 38}
_ALL_OF_THEM: Final = {"SYS_ADMIN": 21}


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
        cgroups = host_cgroups.pods(self._cgroup_root) if pod_uids else {}
        there = frozenset(uid for uid in pod_uids if uid in cgroups)
        for uid in there:
            try:
                directory = os.open(cgroups[uid], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    attached = kernel.attached(directory)
                    if self._id not in attached:
                        replaces = self._before if self._before_id in attached else None
                        kernel.attach(directory, self._program, instead_of=replaces)
                finally:
                    os.close(directory)
            except FileNotFoundError:
                continue  # the pod has just ended
            except OSError as error:
                problem = f"the kernel did not attach the program to {cgroups[uid]}: {error.strerror}"
                raise DenialError(problem) from error
        return there

    def close(self) -> None:
        """Close all descriptors. The program stays attached."""
        for descriptor in (self.map_descriptor, self._program, self._before):
            if descriptor is not None:
                os.close(descriptor)


def load_program(
    bpf_root: Path, cgroup_root: Path, *, proc: Path, majors: Collection[int] | None = None
) -> DenialProgram:
    """Load the program for the driver's devices, or for these major numbers. Raises DenialError."""
    if str((proc / "self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE:
        raise DenialError("the agent is not in the host's pid namespace (the node is a container, as with kind)")
    if not host_cgroups.is_v2(cgroup_root):
        beside = cgroup_root / BESIDE_V1
        remedy = f"; cgroup v2 is at {beside}: set --cgroup-root={beside}" if host_cgroups.is_v2(beside) else ""
        raise DenialError(f"{cgroup_root} is not cgroup v2, which denying devices needs{remedy}")
    if not kernel.is_bpf_fs(bpf_root):
        raise DenialError(f"no bpf file system is mounted at {bpf_root} (systemd mounts one at /sys/fs/bpf)")
    missing = kernel_process.missing_capabilities(_CAPABILITIES, proc=proc)
    if missing and kernel_process.missing_capabilities(_ALL_OF_THEM, proc=proc):
        lacked = ", ".join(missing)
        raise DenialError(f"the agent lacks the capabilities {lacked}: add the component deny-unregistered")
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
    kept = bpf_root / PIN_DIRECTORY
    kept.mkdir(mode=0o700, exist_ok=True)
    descriptor = kernel.pinned(kept / PINNED_MAP)
    before = kernel.pinned(kept / PINNED_PROGRAM) if descriptor is not None else None
    if descriptor is None:
        descriptor = kernel.make_registered_map()
        kernel.pin(descriptor, kept / PINNED_MAP)
    loaded = kernel.load("gpushare", program.assemble(majors, offsets, descriptor))
    if before is not None and kernel.identity(before)[1] == kernel.identity(loaded)[1]:
        os.close(loaded)
        return DenialProgram(cgroup_root, map_descriptor=descriptor, loaded=before, before=None)
    # Pin it at once, while the previous one is attached: if the agent ends here, two equal programs stay attached.
    (kept / PINNED_PROGRAM).unlink(missing_ok=True)
    kernel.pin(loaded, kept / PINNED_PROGRAM)
    return DenialProgram(cgroup_root, map_descriptor=descriptor, loaded=loaded, before=before)


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """The UIDs of the pods to cover, and the names of pods with shares that are left out."""

    uids: frozenset[str]
    left_out: tuple[str, ...] = ()


def choose(pods: Iterable[PodJson]) -> Chosen:
    uids, left_out = set(), []
    for manifest in pods:
        if contract.ALLOCATION not in pod.annotations_of(manifest) or pod.is_terminal(manifest):
            continue
        containers = (*pod.containers(manifest), *pod.init_containers(manifest))
        # A container may get a whole GPU by a resource of NVIDIA or by a claim.
        by_name = (name.startswith(_NVIDIA) for container in containers for name in pod.resources(container))
        if any(by_name) or any((container.get("resources") or {}).get("claims") for container in containers):
            left_out.append("/".join(pod.namespaced_name(manifest)))
        else:
            uids.add(pod.uid(manifest))
    return Chosen(frozenset(uids), tuple(sorted(left_out)))


def condition(problem: str, left_out: tuple[str, ...]) -> Condition:
    """Return the GPUNode's condition. problem: why nothing is denied, as a sentence, or empty."""
    kind = contract.CONDITION_UNREGISTERED_DENIED
    if problem:
        return Condition(kind, "False", "NotPossible", f"{problem}; processes without limits are still reported")
    if not left_out:
        return Condition(kind, "True", "Denied", DENIED)
    more = f" and {len(left_out) - _MAX_NAMED} more" if len(left_out) > _MAX_NAMED else ""
    named = f"{', '.join(left_out[:_MAX_NAMED])}{more}"
    message = f"{DENIED}, except in {named}: another container there may have whole GPUs"
    return Condition(kind, "True", "Denied", message)


class PodDenial:
    """Attaches the program to the pods of the node, or says in a condition why it cannot.

    made: the loaded program, or None. problem: why it could not be loaded, or empty. pods: returns the node's pods.
    changed: called when `conditions` has changed.
    """

    def __init__(
        self,
        made: DenialProgram | None,
        problem: str,
        *,
        pods: Callable[[], Iterable[PodJson]] = tuple,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._denial = made
        self._covered: frozenset[str] = frozenset()
        self._pods, self._changed = pods, changed
        self.conditions: tuple[Condition, ...] = ()
        if problem:
            self._set_condition(problem, ())

    @property
    def is_on(self) -> bool:
        return self._denial is not None

    @property
    def map_descriptor(self) -> int | None:
        return self._denial.map_descriptor if self._denial is not None else None

    def cover(self, pod_uid: str = "") -> None:
        """Attach the program to all pods that need it. Raises DenialError, also if this pod could not be covered."""
        if self._denial is None:
            return
        known = tuple(self._pods())
        if pod_uid and all(pod.uid(manifest) != pod_uid for manifest in known):
            raise DenialError(f"the pod {pod_uid} is not known to the agent yet")
        chosen = choose(known)
        new = chosen.uids - self._covered
        self._covered = (self._covered & chosen.uids) | self._denial.attach(new)
        self._set_condition("", chosen.left_out)
        if pod_uid in chosen.uids - self._covered:
            raise DenialError(f"the cgroup of the pod {pod_uid} was not found, so no process could be denied its GPU")

    async def run(self) -> None:
        """Attach the program in a loop, for pods that were running or that started without Allocate."""
        while True:
            try:
                self.cover()
            except DenialError as error:
                self._set_condition(str(error), ())
            await asyncio.sleep(SECONDS)

    def _set_condition(self, problem: str, left_out: tuple[str, ...]) -> None:
        conditions = (condition(problem, left_out),)
        if conditions != self.conditions:
            self.conditions = conditions
            if problem:
                logger.error("Unregistered processes are not denied the GPU", extra={"err": problem})
            self._changed()


@contextlib.contextmanager
def opened(
    bpf_root: Path,
    cgroup_root: Path,
    *,
    proc: Path,
    wanted: bool,
    pods: Callable[[], Iterable[PodJson]],
    changed: Callable[[], None],
) -> Iterator[PodDenial]:
    """Load the program if it is wanted, and yield its PodDenial. A failure goes into the condition."""
    if not wanted:
        yield PodDenial(None, "")
        return
    try:
        made = load_program(bpf_root, cgroup_root, proc=proc)
    except DenialError as error:
        yield PodDenial(None, str(error), pods=pods, changed=changed)
        return
    try:
        yield PodDenial(made, "", pods=pods, changed=changed)
    finally:
        made.close()
