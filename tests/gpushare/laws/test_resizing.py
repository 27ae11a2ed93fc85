"""No order of resizes, steps and reports of a lagging agent overcommits a GPU, in the ledger or by what processes may
really allocate.
"""

from __future__ import annotations

import dataclasses

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from gpushare import codec, errors, ledger, request, resizing
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode, Resize
from tests import builders
from tests.builders import GIB

pytestmark = pytest.mark.slow

TOTAL_GIB = 24
IDS = st.sampled_from(["a0", "a1"])  # few shares and amounts, because faults need several steps of the same share
PERCENTS = st.sampled_from([25, 50, 75])
SIZES = st.sampled_from([4, 8, 16])


class Life(stateful.RuleBasedStateMachine):
    """A node with one GPU. The ledger is compared and swapped; the agent acts on the state it saw last."""

    def __init__(self) -> None:
        super().__init__()
        self.node: GpuNode = builders.node(gpus=1, memory_gib=TOTAL_GIB)
        self.version = 0
        self.seen, self.seen_version = self.node, 0  # by the agent
        self.limits: dict[str, int] = {}  # limits in the pages
        self.used: dict[str, int] = {}
        self.words: tuple[Resize, ...] = ()  # pending reports
        self.wishes: dict[str, request.Request] = {}

    def write(self, after: GpuNode) -> None:
        if after is not self.node:
            self.node, self.version = after, self.version + 1

    @stateful.initialize()
    def begin(self) -> None:
        for identity in ("a0", "a1"):
            self.place(identity, 25, 8)
        self.agent_looks()

    @stateful.rule(identity=IDS, percent=PERCENTS, gib=SIZES)
    def place(self, identity: str, percent: int, gib: int) -> None:
        if any(entry.id == identity for entry in self.node.allocations):
            return
        try:
            after = ledger.reserve(
                self.node, builders.allocation(identity, request=percent, memory_gib=gib, uid=f"u-{identity}")
            )
        except errors.LedgerError:
            return
        self.wish(identity, percent, gib)
        self.write(after)

    @stateful.rule(identity=IDS, percent=PERCENTS, gib=SIZES, now=st.booleans())
    def wishes_for(self, identity: str, percent: int, gib: int, now: bool) -> None:
        self.wish(identity, percent, gib)
        if now:
            self.step(identity)

    def wish(self, identity: str, percent: int, gib: int) -> None:
        self.wishes[identity] = request.parse(builders.pod(request=f"{percent}%", memory=f"{gib}Gi"))

    @stateful.rule(identity=IDS)
    def step(self, identity: str) -> None:
        entry = next((allocation for allocation in self.node.allocations if allocation.id == identity), None)
        if entry is None:
            return
        wish = resizing.asked(self.wishes[identity], entry, self.node)
        step = resizing.step(self.node, identity, wish)
        assert resizing.step(self.node, identity, wish) == step
        assert resizing.step(step.node, identity, wish).node is step.node or step.node.resizes, "it does not settle"
        after = next(allocation for allocation in step.node.allocations if allocation.id == identity)
        assert (after.shares == wish) == (step.waits_for == "")
        assert dataclasses.replace(after, shares=entry.shares) == entry, "more than its shares was changed"
        self.write(step.node)

    @stateful.rule(identity=IDS)
    def release(self, identity: str) -> None:
        """Release the allocation after its pod and processes have ended."""
        self.used.pop(identity, None)
        self.limits.pop(identity, None)
        self.write(ledger.release(self.node, [identity]))

    @stateful.rule(identity=IDS, gib=st.sampled_from([0, 4, 8, 16]))
    def use(self, identity: str, gib: int) -> None:
        """Allocate as much as the page allows, or free some."""
        if identity in self.limits:
            known = self.used.get(identity, 0)
            self.used[identity] = gib * GIB if gib * GIB <= max(known, self.limits[identity]) else known

    @stateful.rule()
    def agent_works(self) -> None:
        self.agent_looks()
        self.agent_tells()

    @stateful.rule()
    def agent_looks(self) -> None:
        """Read the newest GPUNode and enforce it; the report follows later."""
        self.seen, self.seen_version = self.node, self.version
        words = []
        held = {(word.allocation, word.memory_bytes) for word in self.words}
        for entry in self.seen.allocations:
            (share,) = entry.shares
            limit = share.memory_bytes
            if share.shrink_to_bytes is not None:
                acknowledged = (entry.id, share.shrink_to_bytes) in held
                if acknowledged or self.used.get(entry.id, 0) <= share.shrink_to_bytes:
                    limit = share.shrink_to_bytes
                words.append(Resize(entry.id, 0, limit, self.used.get(entry.id, 0)))
            self.limits[entry.id] = limit
        self.limits = {allocation.id: self.limits[allocation.id] for allocation in self.seen.allocations}
        self.used = {identity: used for identity, used in self.used.items() if identity in self.limits}
        self.words = tuple(words)

    @stateful.rule()
    def agent_tells(self) -> None:
        """Report by compare-and-swap on the GPUNode that was read."""
        if self.seen_version == self.version and self.words != self.node.resizes:
            self.write(dataclasses.replace(self.node, resizes=self.words))
            self.seen, self.seen_version = self.node, self.version

    @stateful.rule()
    def confirm_and_restart(self) -> None:
        """Confirm and restore state from the stored object; neither changes a share."""
        before = {entry.id: entry.shares for entry in self.node.allocations}
        again = ledger.confirm(codec.read(codec.to_document(self.node)), {"a0": PodRef("default", "other", "u-other")})
        assert {entry.id: entry.shares for entry in again.allocations} == before
        self.write(again)

    @stateful.invariant()
    def the_ledger_is_not_over_committed(self) -> None:
        assert ledger.violations(self.node) == []

    @stateful.invariant()
    def no_process_may_take_more_than_the_ledger_counts(self) -> None:
        held = {entry.id: entry.shares[0].memory_bytes for entry in self.node.allocations}
        assert all(limit <= held[identity] for identity, limit in self.limits.items() if identity in held)


TestLife = Life.TestCase
TestLife.settings = hypothesis.settings(max_examples=150, stateful_step_count=40, deadline=None)
