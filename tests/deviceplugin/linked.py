"""Both ends of the channel between agent and arbiter in one event loop, on a node with a running arbiter."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

from deviceplugin.arbiter.agent_channel import AgentChannel
from deviceplugin.arbiter.messages import Channel
from deviceplugin.host.kernel_process import Container
from deviceplugin.link.arbiter import Arbiter, Who
from deviceplugin.link.node_shares import RunningShare
from tests.deviceplugin.arbiter_node import ArbiterNode


async def nothing_known(*_: object) -> int | None:
    return None


class Linked:
    """The two ends: `arbiter` is the agent's, `agent` the arbiter's. told: the number of requests to write the status."""

    def __init__(self, node: ArbiterNode, context_bytes: Callable[[str], int]) -> None:
        ours, theirs = socket.socketpair()
        self.told = 0
        self.unclaimed_bytes: Callable[[RunningShare, Who, int], Awaitable[int | None]] = nothing_known
        self.refused: Callable[[Container, str], None] = lambda *_: None
        self.ends = Channel(ours), Channel(theirs)
        self.arbiter = Arbiter(
            self.ends[0],
            lookup=node.lookup(),
            node=node.seen_node,
            tell=self._tell,
            context_bytes=context_bytes,
            unclaimed_bytes=lambda *asked: self.unclaimed_bytes(*asked),
            refused=lambda *what: self.refused(*what),
        )
        self.agent = AgentChannel(self.ends[1])
        self.agent.serve(node.groups, node.server, node.resizing)
        # The arbiter's questions about its environment go through the channel.
        node.answers = self.agent
        node.context_bytes = self.agent.context_bytes
        node.unclaimed_bytes = self.agent.unclaimed_bytes
        self.ends[1].listen(lambda message, _: self.agent.handle(message), lambda: None)

    def _tell(self) -> None:
        self.told += 1


@contextlib.contextmanager
def to(node: ArbiterNode, *, context_bytes: Callable[[str], int] = lambda _: 0) -> Iterator[Linked]:
    """Yield the two ends."""
    linked = Linked(node, context_bytes)
    try:
        yield linked
    finally:
        linked.arbiter.close()
        for end in linked.ends:
            end.close()
