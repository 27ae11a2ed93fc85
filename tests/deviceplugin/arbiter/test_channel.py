"""The channel between agent and arbiter delivers messages in order, with descriptors, and never blocks."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from deviceplugin.arbiter import messages
from deviceplugin.arbiter.messages import Channel
from tests.deviceplugin import waiting


class End:
    """One end of the channel, with the messages it got and the contents of their files."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.heard: list[tuple[messages.Message, list[bytes]]] = []
        self.ended = False

    def listen(self) -> None:
        self.channel.listen(self._hear, self._end)

    def _hear(self, message: messages.Message, descriptors: Sequence[int]) -> None:
        self.heard.append((message, [os.pread(descriptor, 100, 0) for descriptor in descriptors]))
        for descriptor in descriptors:
            assert not os.get_inheritable(descriptor)
            os.close(descriptor)

    def _end(self) -> None:
        self.ended = True


@pytest.fixture
async def ends() -> Iterator[tuple[End, End]]:
    first, other = (End(Channel(end)) for end in socket.socketpair())
    yield first, other
    first.channel.close()
    other.channel.close()


NAME = "sent-by-a-channel"


def file(content: bytes) -> int:
    made = os.memfd_create(NAME)
    os.write(made, content)
    return made


def opened() -> int:
    """Count this test's open files in this process. Others come and go as earlier tests' garbage is collected."""
    return sum(NAME in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


@pytest.mark.slow
async def test_messages_arrive_in_order_with_their_descriptors_after_a_long_pause(ends: tuple[End, End]) -> None:
    sender, other = ends
    sent = []
    for number in range(1000):
        # Some messages are longer than the socket's buffer.
        message = messages.AllocationGone(str(number) * (200_000 if number % 100 == 0 else 1))
        contents = [f"{number}-{position}".encode() for position in range(number % 3)]
        files = [file(content) for content in contents]
        sender.channel.send(message, files)
        for descriptor in files:
            os.close(descriptor)
        sent.append((message, contents))
    other.listen()
    await waiting.until(lambda: len(other.heard) == len(sent))
    assert other.heard == sent
    assert opened() == 0


async def test_unsent_and_unread_descriptors_are_closed(ends: tuple[End, End]) -> None:
    sender, other = ends
    sender.listen()
    for number in range(2000):
        made = file(b"")
        sender.channel.send(messages.AllocationGone(str(number)), [made])
        os.close(made)
    assert opened() > 0
    other.channel.close()
    await waiting.until(lambda: sender.ended)
    sender.channel.close()
    assert opened() == 0
    sender.channel.send(messages.Changed())  # no one listens


async def test_a_closed_end_is_noticed_after_its_last_message(ends: tuple[End, End]) -> None:
    sender, other = ends
    for number in range(10):
        sender.channel.send(messages.AllocationGone(str(number)))
    sender.channel.close()
    other.listen()
    await waiting.until(lambda: other.ended)
    assert [str(message.allocation) for message, _ in other.heard] == [str(number) for number in range(10)]
