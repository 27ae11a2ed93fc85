"""No order of reserving, confirming, settling, releasing and reading back breaks a rule of the ledger."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from gpushare import codec, errors, ledger
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode
from tests import builders

pytestmark = pytest.mark.slow

IDS = st.sampled_from([f"a{number}" for number in range(6)])
PODS = st.builds(PodRef, st.just("default"), st.sampled_from(["one", "two"]), st.sampled_from(["u-1", "u-2"]))
UUIDS = st.sampled_from(["GPU-node-a-0", "GPU-node-a-1"])


class Life(stateful.RuleBasedStateMachine):
    """A node with two GPUs and concurrent writers, some of which work on outdated state."""

    def __init__(self) -> None:
        super().__init__()
        self.node: GpuNode = builders.node(gpus=2, memory_gib=24)
        self.before = self.node

    def write(self, after: GpuNode, *, read: GpuNode) -> None:
        """Compare and swap: a change of outdated state is not written."""
        if read is self.node:
            self.before, self.node = self.node, after

    @stateful.rule(identity=IDS, uuid=UUIDS, request=st.integers(0, 100), memory=st.integers(0, 25), old=st.booleans())
    def reserve(self, identity: str, uuid: str, request: int, memory: int, old: bool) -> None:
        read = self.before if old else self.node
        entry = builders.allocation(identity, uuid, request=request, memory_gib=memory, reserved_until=60.0)
        try:
            after = ledger.reserve(read, entry)
        except errors.LedgerError:
            used, total = ledger.use(read)[uuid], read.gpu_by_uuid()[uuid].memory_bytes
            assert (
                any(allocation.id == identity for allocation in read.allocations)
                or used.request_percent + request > 100
                or used.memory_bytes + memory * builders.GIB > total
            ), "refused although there is room"
            return
        self.write(after, read=read)

    @stateful.rule(identity=IDS, pod=PODS, old=st.booleans())
    def confirm(self, identity: str, pod: PodRef, old: bool) -> None:
        read = self.before if old else self.node
        owners = {allocation.id: allocation.pod for allocation in read.allocations if allocation.pod.uid}
        after = ledger.confirm(read, {identity: pod})
        assert owners.items() <= {allocation.id: allocation.pod for allocation in after.allocations}.items(), (
            "a pod lost what it held"
        )
        assert ledger.confirm(after, {identity: pod}) == after
        self.write(after, read=read)

    @stateful.rule(identity=IDS)
    def settle(self, identity: str) -> None:
        if identity not in {allocation.id for allocation in self.node.allocations}:
            with pytest.raises(errors.LedgerError, match="no longer has the allocation"):
                ledger.settle(self.node, [identity])
            return
        after = ledger.settle(self.node, [identity])
        assert ledger.settle(after, [identity]) is after
        assert all(entry.reserved_until is None for entry in after.allocations if entry.id == identity)
        self.write(after, read=self.node)

    @stateful.rule(identities=st.sets(IDS), old=st.booleans())
    def release(self, identities: set[str], old: bool) -> None:
        read = self.before if old else self.node
        after = ledger.release(read, identities)
        assert {allocation.id for allocation in after.allocations} == {row.id for row in read.allocations} - identities
        self.write(after, read=read)

    @stateful.rule(now=st.floats(0, 120))
    def expire(self, now: float) -> None:
        gone = [row.id for row in self.node.allocations if row.reserved_until is not None and row.reserved_until <= now]
        self.write(ledger.release(self.node, gone), read=self.node)

    @stateful.rule()
    def restart(self) -> None:
        """Restore all state from the stored object."""
        again = codec.read(codec.to_document(self.node))
        assert again == self.node
        self.node = again

    @stateful.invariant()
    def nothing_is_over_committed(self) -> None:
        assert ledger.violations(self.node) == []

    @stateful.invariant()
    def nothing_is_there_twice(self) -> None:
        ids = [allocation.id for allocation in self.node.allocations]
        assert len(ids) == len(set(ids))


TestLife = Life.TestCase
TestLife.settings = hypothesis.settings(max_examples=100, stateful_step_count=25, deadline=None)
