"""Limited, unlimited and foreign processes: no false alarms and no silence."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.arbiter.pages import LimitsRecord
from deviceplugin.arbiter.tenant import UNLIMITED_BYTES
from deviceplugin.audit import node_audit, process_limits
from deviceplugin.audit.excess import Overuse
from deviceplugin.audit.node_audit import LimitState, NodeAudit, Problem, Seen, SeenMember, SeenProcess, SeenShare
from deviceplugin.hardware.nvml_limits import MemoryLimits
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container
from deviceplugin.memory_limits.plan import HardLimit, HardLimitState
from gpushare import contract
from gpushare.allocation import Allocation, Isolation, Labels, PodRef
from gpushare.gpunode import Gpu, GpuNode, MemoryEnforcement, Mode, Resize
from tests.deviceplugin.audit.sample_node import (
    GIB,
    GIVEN,
    GPUS,
    MEMBER,
    NODE,
    OTHER,
    PODS,
    RECORD,
    SIDE,
    TENANT,
    TRAINER,
    A,
    B,
)


def process(pid: int = 7, gpu: str = A, **changes: Any) -> SeenProcess:
    made = SeenProcess(gpu, pid, pid * 10, "python3", 2 * GIB, TRAINER, with_library=True)
    return dataclasses.replace(made, **changes)


def seen(
    *processes: SeenProcess, members: tuple[SeenMember, ...] = (MEMBER,), record: LimitsRecord = RECORD, **more: Any
) -> Seen:
    shares = (SeenShare(TENANT, (record,), members),) if members else ()
    return Seen(more.pop("gpus", GPUS), processes, shares, **more)


def judge(snapshot: Seen, *, node: GpuNode | None = NODE, looks: int = 2) -> NodeAudit:
    audit = NodeAudit()
    for _ in range(looks):
        audit = process_limits.check(snapshot, pods=PODS, node=node, suspects=audit.suspects)
    return audit


def state(snapshot: Seen, **more: Any) -> tuple[LimitState, str]:
    (judged,) = judge(snapshot, **more).processes
    return judged.state, judged.reason


def status(audit: NodeAudit) -> tuple[str, str]:
    said = node_audit.condition(audit)
    return said.status, said.reason


def test_registered_process_is_limited() -> None:
    audit = judge(seen(process()))
    (judged,) = audit.processes
    assert (judged.state, judged.reason, judged.charged_bytes) == (LimitState.LIMITED, "", GIB)
    assert (judged.namespace, judged.pod, judged.container) == ("ml", "trainer", "main")
    assert audit.shares[0].in_force
    assert status(audit) == ("True", "Audited")


def test_unregistered_process_of_a_share_is_unlimited() -> None:
    kind, reason = state(seen(process(9)))
    assert kind is LimitState.UNLIMITED
    assert reason == process_limits.NOT_REGISTERED
    assert state(seen(process(9, with_library=False)))[1] == process_limits.NO_LIBRARY
    assert state(seen(process(9, orphaned=True))) == (LimitState.UNLIMITED, process_limits.ORPHANED)
    audit = judge(seen(process(), process(9)))
    assert status(audit) == ("False", "ProcessUnlimited")
    assert (audit.shares[0].in_force, audit.shares[0].reason) == (False, "python3 (9) bypassed its limits")
    assert "the pod ml/trainer runs without limits on GPU 0" in node_audit.condition(audit).message


def test_reports_nothing_after_a_single_observation() -> None:
    audit = judge(seen(process(9), process(11, container=None)), looks=1)
    assert {process.state for process in audit.processes} == {LimitState.UNJUDGED}
    assert status(audit) == ("True", "Audited")
    assert process_limits.troubles(audit) == {}


def test_process_with_a_reused_pid_is_a_new_one() -> None:
    before = judge(seen(process(9)), looks=1)
    audit = process_limits.check(seen(process(9, start_ticks=91)), pods=PODS, node=NODE, suspects=before.suspects)
    assert audit.processes[0].state is LimitState.UNJUDGED


def test_registered_pid_with_another_start_time_is_unlimited() -> None:
    assert state(seen(process(start_ticks=71)))[0] is LimitState.UNLIMITED


@pytest.mark.parametrize("container", [None, OTHER, SIDE, Container("uid-unknown", "id")])
def test_process_without_a_share_is_foreign_on_a_fractional_gpu(container: Container | None) -> None:
    kind, reason = state(seen(process(9, container=container)))
    assert kind is LimitState.FOREIGN
    assert reason
    assert status(judge(seen(process(9, container=container)))) == ("False", "ForeignProcess")


def test_share_of_another_gpu_does_not_count() -> None:
    assert state(seen(process(9, gpu=B))) == (LimitState.FOREIGN, process_limits.ELSEWHERE)
    assert state(seen(process(7, gpu=B))) == (
        LimitState.FOREIGN,
        process_limits.ELSEWHERE,
    )  # registered for the other GPU


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.TIME_SLICING, Mode.MPS, Mode.MIG])
def test_processes_on_a_gpu_of_another_mode_are_not_judged(mode: Mode) -> None:
    gpus = (dataclasses.replace(GPUS[0], mode=mode),)
    kind, reason = state(seen(process(9, container=OTHER), gpus=gpus))
    assert (kind, reason) == (LimitState.UNJUDGED, f"the GPU is not shared by annotation: its mode is {mode}")


@pytest.mark.parametrize("name", ["nvidia-cuda-mps", "gpushare-agent", "python3", ""])
def test_no_process_is_exempt_by_name(name: str) -> None:
    assert state(seen(process(9, name=name, container=OTHER)))[0] is LimitState.FOREIGN
    assert state(seen(process(9, name=name)))[0] is LimitState.UNLIMITED


@given(
    st.text(),
    st.sampled_from([kernel_process.IN_NO_POD, kernel_process.IN_SEVERAL, kernel_process.NOT_UNDERSTOOD]).map(
        lambda refusal: refusal.reason
    ),
)
def test_process_outside_of_known_containers_is_foreign(name: str, outside: str) -> None:
    kind, reason = state(seen(process(9, name=name, container=None, outside=outside)))
    assert kind is LimitState.FOREIGN
    assert reason == f"{outside}, and it may use memory and compute that belong to shares"


def test_process_with_an_unreachable_ledger_is_limited() -> None:
    snapshot = seen(process(9), members=(), unreachable=frozenset({(9, 90)}))
    assert state(snapshot) == (LimitState.LIMITED, "")


def test_waits_for_a_container_missing_from_the_pods_status() -> None:
    two = dataclasses.replace(GIVEN, containers=("side",))
    node = dataclasses.replace(NODE, allocations=(dataclasses.replace(NODE.allocations[0], shares=(GIVEN, two)),))
    assert state(seen(process(9, container=Container("uid-trainer", "id-new"))), node=node)[0] is LimitState.UNJUDGED


def test_unknown_gpunode_makes_the_audit_incomplete() -> None:
    audit = judge(seen(process(9), process(7)), node=None)
    assert [process.state for process in audit.processes] == [LimitState.UNJUDGED, LimitState.LIMITED]
    assert status(audit) == ("Unknown", "AuditIncomplete")
    assert audit.shares == ()


def test_reports_what_could_not_be_read() -> None:
    blind = judge(seen(process(), problems=(Problem("the driver does not answer"),)))
    assert status(blind) == ("Unknown", "AuditIncomplete")
    dim = judge(seen(process(), problems=(Problem("the driver does not tell how much", blind=False),)))
    assert status(dim) == ("True", "Audited")
    assert "does not tell how much" in node_audit.condition(dim).message
    unseen = judge(seen(process(), members=(dataclasses.replace(MEMBER, with_library=None),)))
    assert "SYS_PTRACE" in node_audit.condition(unseen).message


def test_share_without_a_process_is_in_force() -> None:
    (share,) = judge(seen(members=())).shares
    assert (share.in_force, share.enforced, share.processes, share.reason) == (True, None, 0, "")


@pytest.mark.parametrize("change", [{"memory_bytes": 9 * GIB}, {"request_percent": 51}, {"limit_percent": 100}])
def test_reports_differing_limits_at_the_second_audit(change: dict[str, int]) -> None:
    snapshot = seen(process(), record=dataclasses.replace(RECORD, **change))
    assert judge(snapshot, looks=1).shares[0].in_force
    audit = judge(snapshot)
    assert not audit.shares[0].in_force
    assert "but the GPUNode grants a request of 50%, a limit of 80% and 8Gi" in audit.shares[0].reason
    assert status(audit) == ("False", "LimitsDiffer")


def test_reports_overuse_immediately() -> None:
    beyond = {(A, TENANT.key): Overuse(0.9, 0.1)}
    audit = judge(seen(process(), overuse=beyond), looks=1)
    sentence = "the driver ran its kernels for 90% of the time, but the arbiter allowed 10%"
    assert (audit.shares[0].in_force, audit.shares[0].reason) == (False, sentence)
    assert status(audit) == ("False", "ShareBeyondLimit")
    share = node_audit.to_json(audit, node_name="node-a", checked_at=1.0)["shares"][0]
    assert (share["usedPercent"], share["letPercent"]) == (90, 10)
    around = judge(seen(process(9), overuse=beyond))
    assert status(around) == ("False", "ProcessUnlimited")


def test_shrinking_share_may_have_either_size() -> None:
    shrinking = dataclasses.replace(GIVEN, shrink_to_bytes=4 * GIB)
    node = dataclasses.replace(
        NODE,
        allocations=(dataclasses.replace(NODE.allocations[0], shares=(shrinking,)),),
        resizes=(Resize("of-trainer", 0, 4 * GIB, GIB),),
    )
    for memory_bytes in (4 * GIB, 8 * GIB):
        record = dataclasses.replace(RECORD, memory_bytes=memory_bytes)
        assert judge(seen(process(), record=record), node=node).shares[0].in_force


@pytest.mark.parametrize(("memory_gib", "in_force"), [(8, True), (10, True), (12, True), (7, False), (13, False)])
def test_a_share_may_have_what_it_is_lent_and_no_more(memory_gib: int, in_force: bool) -> None:
    lent = dataclasses.replace(GIVEN, memory_limit_bytes=20 * GIB)
    node = dataclasses.replace(
        NODE,
        allocations=(dataclasses.replace(NODE.allocations[0], shares=(lent,)),),
        resizes=(Resize("of-trainer", 0, 12 * GIB, 12 * GIB),),
    )
    found = seen(process(), record=dataclasses.replace(RECORD, memory_bytes=memory_gib * GIB))
    assert judge(found, node=node).shares[0].in_force is in_force


def test_reports_members_without_the_library() -> None:
    members = (MEMBER, SeenMember((8, 80), (0,), with_library=False))
    audit = judge(seen(process(), process(8), members=members))
    (share,) = audit.shares
    assert (share.processes, share.with_library, share.in_force) == (2, 1, False)
    assert share.reason == "the library is not loaded in 1 of its 2 processes"


def test_reports_a_running_share_that_the_gpunode_lacks() -> None:
    audit = judge(seen(process()), node=dataclasses.replace(NODE, allocations=()))
    (share,) = audit.shares
    assert (share.pod, share.limit_bytes, share.in_force) == ("trainer", 0, False)


def test_overhead_beyond_the_limit_is_reported_but_in_force() -> None:
    record = dataclasses.replace(RECORD, overhead_bytes=8 * GIB)
    (share,) = judge(seen(process(), record=record)).shares
    assert share.in_force
    assert share.beyond_bytes == GIB
    assert share.reason.startswith("including contexts, it exceeds its limit by 1Gi")


def test_backfill_reservation_is_not_a_share() -> None:
    hold = Allocation(f"{contract.BACKFILL_PREFIX}x", PodRef("ml", "waits"), (GIVEN,))
    assert judge(seen(members=()), node=dataclasses.replace(NODE, allocations=(hold,))).shares == ()


def test_condition_names_ten_processes_and_counts_the_rest() -> None:
    audit = judge(seen(*(process(pid, container=None) for pid in range(20, 33))))
    assert node_audit.condition(audit).message.count("runs without limits") == 10
    assert node_audit.condition(audit).message.endswith("and 3 more")


ABLE = tuple(dataclasses.replace(gpu, memory_enforcement=MemoryEnforcement.DRIVER) for gpu in GPUS)


def limit(
    container: str = "", *, problem: str = "", hard_bytes: int = 8 * GIB, pod_uid: str = TENANT.pod_uid
) -> HardLimitState:
    of = HardLimit(
        A, Path("/cgroup"), 8 * GIB, "ml", "trainer", pod_uid, container, TRAINER.container_id if container else ""
    )
    return HardLimitState(of, MemoryLimits(0, hard_bytes), problem)


def test_the_wall_of_a_share_is_the_drivers_once_it_reads_back() -> None:
    audit = judge(seen(process(), gpus=ABLE, driver_limits=(limit(), limit("main", hard_bytes=9 * GIB))))
    (judged,), (share,) = audit.processes, audit.shares
    assert (judged.memory_enforcement, share.memory_enforcement, share.driver_bytes, share.in_force) == (
        "driver",
        "driver",
        9 * GIB,
        True,
    )


@pytest.mark.parametrize(
    ("gpus", "driver_limits"),
    [
        (GPUS, (limit(), limit("main"))),  # the ability was lost
        (ABLE, (limit(pod_uid="u-0"), limit("main", pod_uid="u-0"))),  # of an ended pod with the same name
        (ABLE, (limit(),)),  # the container's cgroup is not among the pod's
    ],
    ids=["ability", "predecessor", "container"],
)
def test_limits_that_do_not_cover_the_process_are_do_not_count(
    gpus: tuple[Gpu, ...], driver_limits: tuple[HardLimitState, ...]
) -> None:
    bypassing = process(20, with_library=False)
    audit = judge(seen(process(), bypassing, gpus=gpus, driver_limits=driver_limits))
    assert [judged.memory_enforcement for judged in audit.processes] == ["library", "none"]
    assert (audit.shares[0].memory_enforcement, audit.processes[1].state) == ("none", LimitState.UNLIMITED)


def test_a_driver_without_the_limit_is_reported_after_two_audits() -> None:
    broken = seen(
        process(), gpus=ABLE, driver_limits=(limit(), limit("main", problem="the driver has no limit for it"))
    )
    assert judge(broken, looks=1).shares[0].in_force
    audit = judge(broken)
    (share,) = audit.shares
    assert (share.memory_enforcement, share.in_force, share.reason) == (
        "library",
        False,
        "the driver has no limit for it",
    )
    assert status(audit) == ("False", "LimitsDiffer")
    (missing,) = judge(seen(process(), gpus=ABLE)).shares
    assert missing.reason == "it has no limit by the driver yet"


def test_the_driver_keeps_the_memory_of_a_process_without_the_library() -> None:
    bypassing = process(20, with_library=False)
    audit = judge(seen(bypassing, members=(), gpus=ABLE, driver_limits=(limit(), limit("main"))))
    (judged,), (share,) = audit.processes, audit.shares
    assert (judged.state, judged.memory_enforcement) == (LimitState.MEMORY_LIMITED, "driver")
    assert (share.memory_enforcement, share.in_force) == ("driver", False)
    assert share.reason == "python3 (20) bypassed its compute limit; the driver keeps its memory limit"
    assert process_limits.processes_to_kill(audit) == [judged]
    (without,) = judge(seen(bypassing, members=(), gpus=ABLE)).shares
    assert (without.memory_enforcement, without.reason) == ("none", "python3 (20) bypassed its limits")


def as_client(*processes: SeenProcess, clients: dict[str, frozenset[int]]) -> Seen:
    share = SeenShare(dataclasses.replace(TENANT, isolation=Isolation.MPS), (RECORD,), (MEMBER,))
    return Seen(GPUS, processes, (share,), mps_clients=clients)


def test_registered_process_that_is_no_client_of_its_gpus_mps_daemon_has_a_memory_limit_alone() -> None:
    assert state(as_client(process(), clients={A: frozenset({7})}))[0] is LimitState.LIMITED
    assert state(as_client(process(), clients={}))[0] is LimitState.LIMITED, "the daemon lists none"
    others = as_client(process(), clients={A: frozenset({8})})
    assert state(others) == (LimitState.MEMORY_LIMITED, process_limits.NOT_A_CLIENT)
    assert judge(others, looks=1).processes[0].state is LimitState.UNJUDGED
    assert process_limits.processes_to_kill(judge(others)) == [], "clients can answer in the daemon's place"
    (share,) = [share for share in judge(others).shares if share.pod == "trainer" and share.gpu == A]
    assert share.reason == "python3 (7) bypassed its compute limit; the library keeps its memory limit"
    assert share.memory_enforcement == "library"


def test_client_of_no_share_is_foreign_and_the_mps_server_is_not() -> None:
    stranger = process(9, container=None, outside="it is in no container")
    assert state(as_client(stranger, clients={A: frozenset({9})}))[0] is LimitState.FOREIGN
    assert state(as_client(dataclasses.replace(stranger, mps_server=True), clients={}))[0] is LimitState.UNJUDGED


def test_memory_of_a_share_without_isolation_is_not_compared() -> None:
    entry = dataclasses.replace(NODE.allocations[0], labels=Labels(isolation=Isolation.NONE))
    node = dataclasses.replace(NODE, allocations=(entry, *NODE.allocations[1:]))
    share = SeenShare(dataclasses.replace(TENANT, isolation=Isolation.NONE), (RECORD,), (MEMBER,))
    assert not judge(Seen(GPUS, (), (share,)), node=node).shares[0].in_force, "it has a limit"
    free = dataclasses.replace(RECORD, memory_bytes=UNLIMITED_BYTES)
    assert judge(Seen(GPUS, (), (dataclasses.replace(share, enforced=(free,)),)), node=node).shares[0].in_force
