"""A malicious or broken process of a share container, run by tests until it is killed.

Usage: attacker.py SOCKET WAY. Prints "at it" once it has begun. It bypasses the library, as any program may.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterator

from gpushare import contract

HEADER = struct.calcsize(contract.WIRE_HEADER)
HELD_CONNECTIONS = 900


def message(kind: int, body: bytes = b"", *, version: int = contract.WIRE_VERSION) -> bytes:
    header = (contract.WIRE_MAGIC, version, kind, HEADER + len(body), 0)
    return struct.pack(contract.WIRE_HEADER, *header) + body


def lease(kind: int, number: int = 0, *, gpu: int = 0, flags: int = 0) -> bytes:
    return message(kind, struct.pack(contract.WIRE_LEASE, gpu, flags, number))


HELLO = message(contract.MESSAGE_HELLO, struct.pack(contract.WIRE_HELLO, b"attacker"))


class Attacker:
    def __init__(self, path: str) -> None:
        self.path = path

    def connect(self) -> socket.socket:
        while True:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            made.settimeout(1.0)
            try:
                made.connect(self.path)
            except OSError:
                made.close()
                time.sleep(0.001)
                continue
            return made

    def welcomed(self) -> socket.socket:
        while True:  # the arbiter rejects or closes connections of containers with too many or too fast ones
            made, descriptors = self.connect(), list[int]()
            with contextlib.suppress(OSError):
                made.send(HELLO)
                _, descriptors, _, _ = socket.recv_fds(made, contract.WIRE_MAX, 2)
            if not descriptors:
                made.close()
                time.sleep(0.001)
                continue
            for descriptor in descriptors:
                os.close(descriptor)
            made.setblocking(False)
            return made

    def garbage(self) -> Iterator[None]:
        """Send malformed messages, and messages that are truncated or out of place."""
        dice = random.Random(3)
        while True:
            with self.connect() as made, contextlib.suppress(OSError):
                made.send(dice.choice([dice.randbytes(dice.randrange(1, 600)), HELLO[: dice.randrange(1, len(HELLO))]]))
            yield

    def versions(self) -> Iterator[None]:
        """Send HELLO in unsupported versions."""
        while True:
            with self.connect() as made, contextlib.suppress(OSError):
                made.send(
                    message(
                        contract.MESSAGE_HELLO, bytes(32), version=random.randrange(contract.WIRE_VERSION + 1, 1000)
                    )
                )
            yield

    def hellos(self) -> Iterator[None]:
        """Fork children without end, each of which sends HELLO and exits."""
        while True:
            child = os.fork()
            if child == 0:
                with contextlib.suppress(OSError):
                    self.connect().send(HELLO)
                os._exit(0)
            yield
            os.waitpid(child, 0)

    def connections(self) -> Iterator[None]:
        """Open as many connections as the arbiter accepts, and more, and keep them."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
        held: list[socket.socket] = []
        while True:
            if len(held) < HELD_CONNECTIONS:
                held.append(self.connect())
            yield

    def leases(self) -> Iterator[None]:
        """Lie about leases at full speed: numbers of other shares, other GPUs, reserved flags."""
        dice = random.Random(4)
        kinds = [contract.MESSAGE_WANT, contract.MESSAGE_CLOSED, contract.MESSAGE_RELEASED]
        while True:
            with self.welcomed() as made, contextlib.suppress(ConnectionError):
                while True:
                    with contextlib.suppress(BlockingIOError):
                        for _ in range(64):
                            number = dice.choice([0, time.monotonic_ns(), time.monotonic_ns() + dice.randrange(-9, 9)])
                            made.send(lease(dice.choice(kinds), number, flags=dice.choice([0, contract.LEASE_HELD])))
                    with contextlib.suppress(BlockingIOError):
                        while made.recv(contract.WIRE_MAX):
                            pass
                    yield

    def deaf(self) -> Iterator[None]:
        """Send requests without end, and read no answers."""
        while True:
            with self.welcomed() as made, contextlib.suppress(OSError):
                for _ in range(5000):
                    made.send(message(contract.MESSAGE_RECLAIM))
                    made.send(lease(contract.MESSAGE_WANT))
            yield

    def keeps(self) -> Iterator[None]:
        """Want the GPU, and never give it back."""
        made = self.welcomed()
        made.send(lease(contract.MESSAGE_WANT))
        while True:
            time.sleep(0.05)
            yield

    def descriptors(self) -> Iterator[None]:
        """Send descriptors, to use up those of the arbiter."""
        while True:
            with self.connect() as made, contextlib.suppress(OSError):
                socket.send_fds(made, [HELLO], [made.fileno()] * 200)
            yield


def main() -> None:
    attack = getattr(Attacker(sys.argv[1]), sys.argv[2])()
    next(attack)
    sys.stdout.write("at it\n")
    sys.stdout.flush()
    os.nice(10)  # attack the arbiter, not this machine's cores
    for _ in attack:
        pass


if __name__ == "__main__":
    main()
