"""A process of a share that has the GPU for about three milliseconds a turn, and wants it again at once.

    python -m bench.handover.share SOCKET

For each number of seconds on stdin it takes turns for that time, and prints as JSON when each turn began and ended, in
nanoseconds of the monotonic clock.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import time

from gpushare import contract

HEADER = struct.calcsize(contract.WIRE_HEADER)
TURN_SECONDS = (0.002, 0.004)


class Share:
    """A connection to an arbiter."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(path)
        self._say(contract.MESSAGE_HELLO, struct.pack(contract.WIRE_HELLO, b"bench"))
        socket.recv_fds(self._socket, contract.WIRE_MAX, 2)

    def turns(self, seconds: float) -> list[tuple[int, int]]:
        """Return when each turn began and ended."""
        turns, number = [], 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._lease(contract.MESSAGE_WANT, 0)
            number = self._opened(number)
            began = time.monotonic_ns()
            time.sleep(random.uniform(*TURN_SECONDS))
            self._lease(contract.MESSAGE_CLOSED, number)
            ended = time.monotonic_ns()
            self._lease(contract.MESSAGE_RELEASED, number)
            turns.append((began, ended))
        return turns

    def _opened(self, last: int) -> int:
        """Return the number of the next lease; the arbiter may repeat the last one with other flags."""
        while True:
            data = self._socket.recv(contract.WIRE_MAX)
            number = int(struct.unpack_from(contract.WIRE_LEASE, data, HEADER)[2])
            if struct.unpack_from(contract.WIRE_HEADER, data)[2] == contract.MESSAGE_OPEN and number > last:
                return number

    def _lease(self, kind: int, number: int) -> None:
        self._say(kind, struct.pack(contract.WIRE_LEASE, 0, 0, number))

    def _say(self, kind: int, body: bytes) -> None:
        header = (contract.WIRE_MAGIC, contract.WIRE_VERSION, kind, HEADER + len(body), 0)
        self._socket.send(struct.pack(contract.WIRE_HEADER, *header) + body)


def main() -> None:
    """Take turns until stdin ends."""
    share = Share(sys.argv[1])
    print(flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps(share.turns(float(line))), flush=True)


if __name__ == "__main__":
    main()
