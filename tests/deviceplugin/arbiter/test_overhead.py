"""Memory measured beyond the charges is in the limits page, by GPU, as long as its process lives."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from deviceplugin.arbiter.share_ledger import ShareLedger
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.host.kernel_process import KernelProcess

UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{digit}" for digit in range(2)]
GRANTS = tuple(Grant(uuid, 8 << 30, 50, 80) for uuid in UUIDS)
TENANT = Tenant("uid", "ml", "trainer", ("main",), 0, GRANTS)


@pytest.fixture
def group() -> Iterator[ShareLedger]:
    made = ShareLedger.make(TENANT)
    for slot in (0, 1):
        made.admit(KernelProcess(os.getpid(), slot, os.pidfd_open(os.getpid())), slot)
    yield made
    made.close()


def overheads(group: ShareLedger) -> list[int]:
    assert [record.overhead_bytes for record in group.limits.read()] == list(group.limits.overhead_bytes())
    return list(group.limits.overhead_bytes())


def test_overhead_is_the_sum_over_the_processes_on_each_gpu(group: ShareLedger) -> None:
    group.set_overheads({0: [300, 0], 1: [200, 50]})
    assert overheads(group) == [500, 50]
    group.set_overheads({0: [310, 0]})
    assert overheads(group) == [310, 0]


def test_a_process_that_ends_takes_its_overhead_with_it_at_once(group: ShareLedger) -> None:
    group.set_overheads({0: [300, 10], 1: [200, 50]})
    group.release(1)
    assert overheads(group) == [300, 10]
    group.release(0)
    assert overheads(group) == [0, 0]


def test_the_overhead_of_a_free_slot_is_ignored(group: ShareLedger) -> None:
    group.release(1)
    group.set_overheads({0: [300, 10], 1: [200, 50]})
    assert overheads(group) == [300, 10]


def test_new_limits_and_context_charges_leave_the_overhead_as_it_is(group: ShareLedger) -> None:
    group.set_overheads({0: [300, 10]})
    group.limits.set_context_bytes(1, 250)
    group.limits.write([Grant(uuid, 4 << 30, 20, 30) for uuid in UUIDS])
    assert overheads(group) == [300, 10]
    assert [(record.memory_bytes, record.request_percent, record.context_bytes) for record in group.limits.read()] == [
        (4 << 30, 20, 0),
        (4 << 30, 20, 250),
    ]
