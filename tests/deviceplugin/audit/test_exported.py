"""Exported memory that was released stays charged while any process or descriptor has it, and no longer."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

import pytest

from tests.deviceplugin.audit.conftest import CONTEXT, DESCRIPTION, LIMIT, Asked, AuditNode
from tests.deviceplugin.audit.programs import exporting
from tests.deviceplugin.audit.programs.exporting import PIECE
from tests.interposer import gpu

pytestmark = pytest.mark.slow

Start = Callable[..., AuditNode]


def _client(node: AuditNode, pod: str = "trainer", *keep: int) -> Asked:
    return node.client(pod, program=exporting.answers, keep=keep)


def _all_is_back(node: AuditNode, client: Asked, most: int) -> None:
    """The size of a context cannot be distinguished from held memory; after another measurement it is counted once."""
    assert int(client("room()")) >= most - CONTEXT // PIECE - 1
    node.audit(2)
    assert int(client("room()")) == most


@pytest.mark.parametrize("looks", [0, 3])
def test_creates_and_destroys_a_thousand_exports_in_a_small_share(start: Start, looks: int) -> None:
    node = start()
    client = _client(node)
    if looks:
        node.audit(looks)  # the context is charged by now
    assert client("rounds(1000)") == "0"
    _all_is_back(node, client, (LIMIT - CONTEXT) // PIECE)


def test_exports_leave_no_charge_while_other_processes_run(start: Start) -> None:
    node = start(pods={"trainer": (LIMIT, 0), "other": (LIMIT, 0)})
    beside, other = _client(node), _client(node, "other")
    assert beside(f"c.allocate({2 * PIECE})[0]") == "0"
    assert other(f"c.allocate({4 * PIECE})[0]") == "0"
    assert other("create(2 * PIECE)[0]") == "0"
    node.audit(3)
    client = _client(node)
    node.audit(3)
    most = int(client("room()"))
    assert client("rounds(100)") == "0"
    _all_is_back(node, client, most)


def test_memory_imported_by_others_stays_charged(start: Start) -> None:
    ours, theirs = socket.socketpair()
    node = start(pods={"trainer": (LIMIT, 0), "other": (LIMIT, 0)})
    with ours, theirs:
        maker = _client(node, "trainer", ours.fileno())
        importer = _client(node, "other", theirs.fileno())
        node.audit(3)
        most = int(maker("room()"))
        for held in range(8):  # more than the uncertainty
            maker(f"send({ours.fileno()}, make())")
            importer(f"[receive({theirs.fileno()}), opened.append(held.pop('handle'))][0]")
            maker("let_go()")
            assert int(maker("room()")) == most - held - 1
        importer("[c.check('cuMemRelease', one) for one in opened][0]")
        _all_is_back(node, maker, most)


def test_memory_kept_by_a_descriptor_stays_charged(start: Start) -> None:
    node = start()
    client = _client(node)
    node.audit(3)
    most = int(client("room()"))
    for held in range(8):
        client("[opened.append(make()), let_go()][1]")
        assert int(client("room()")) == most - held - 1
    client("[os.close(one) for one in opened][0]")
    _all_is_back(node, client, most)


def test_memory_in_transit_through_a_socket_stays_charged(start: Start) -> None:
    ours, theirs = socket.socketpair()
    node = start()
    with theirs, ours:
        client = _client(node, "trainer", ours.fileno())
        node.audit(3)
        most = int(client("room()"))
        for held in range(8):
            client(f"[send({ours.fileno()}, make()), let_go()][1]")
            assert int(client("room()")) == most - held - 1
    _all_is_back(node, client, most)


def test_charges_for_future_memory_hide_nothing(start: Start) -> None:
    node = start()
    client = _client(node)
    # For the kernels' heap, which the driver creates on demand: CU_LIMIT_MALLOC_HEAP_SIZE.
    assert client("c.call('cuCtxSetLimit', 2, ctypes.c_size_t(6 * PIECE))") == "0"
    node.audit(3)
    most = int(client("room()"))
    for held in range(5):
        client("[opened.append(make()), let_go()][1]")
        assert int(client("room()")) == most - held - 1


def test_concurrent_allocations_do_not_exceed_the_limit(start: Start) -> None:
    """Held memory and free room together never exceed the limit, with any concurrent allocations."""
    node = start()
    holder, churner = _client(node), _client(node)
    node.audit(3)
    most = int(holder("room()"))
    for _ in range(5):
        holder("[opened.append(make()), let_go()][1]")
    churner.begin(f"[c.free(c.allocate({PIECE})[1]) for _ in range(4000)][0]")
    for _ in range(10):
        assert int(holder("room()")) <= most - 5
    assert churner.read() == "0"
    assert int(holder("room()")) == most - 5


@pytest.mark.parametrize(
    "start", [DESCRIPTION.replace("context-memory = 300MiB", "")], indirect=True, ids=["no context memory"]
)
def test_random_sharing_never_exceeds_the_limit(start: Start) -> None:
    node = start(pods={"trainer": (LIMIT // 2, 0)})
    pairs = [socket.socketpair() for _ in range(3)]
    with contextlib.ExitStack() as stack:
        ends = [(pairs[number][0], pairs[number - 1][1]) for number in range(3)]  # a ring
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
        fills = [end.fileno() for both in ends for end in both]
        clients = [_client(node, "trainer", *fills) for _ in ends]
        machine = gpu.Gpu(node.box)
        stack.callback(machine.close)
        for seed, (client, (there, here)) in enumerate(zip(clients, ends, strict=True)):
            client.begin(f"storm({seed}, ({there.fileno()}, {here.fileno()}))")
        most, until = 0, time.monotonic() + 3
        while time.monotonic() < until:
            most = max(most, machine.most_used())
        done = [int(client.read()) for client in clients]
        assert min(done) > 10
        assert LIMIT // 8 < most <= LIMIT // 2


def test_released_memory_stays_charged_without_a_measurement(start: Start) -> None:
    node = start()
    client = _client(node)
    most = int(client("room()"))
    assert client("rounds(3)") == "0"
    node.asked.process.kill()
    node.asked.process.wait(10)
    assert int(client("room()")) == most - 3
    again = start()
    until = time.monotonic() + 30
    while client("rounds(50)") != "0":  # until it has found the next agent
        assert time.monotonic() < until
    again.audit(3)
    most = int(client("room()"))
    for held in range(5):
        client("[opened.append(make()), let_go()][1]")
        assert int(client("room()")) == most - held - 1
