"""A process of a share container, as the library makes one. Tests run it, and send it commands on standard input.

hello            connect and say hello; prints the answer
charge GPU N     add N bytes to its own slot
take GPU N       the same as the library does it: only up to the limit; prints whether it did
write GPU SLOT N store a value in any slot
sum GPU          print the bytes that its container holds
limits           print the limits page
tamper           try to write the limits in every way a hostile program could
reclaim          prints the bytes freed
disguise DIR     take a name that is not UTF-8, and map a file of that directory with such a name
turns N          have the GPU N times, and give it back at once
close            close the socket and live on
become           exec another program, with the same PID
fork             leave a child behind that keeps everything open; prints its PID
raw HEX          send these bytes; prints the answer, or "closed"
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import struct
import sys
import time
from typing import Any

from gpushare import contract

HEADER = struct.calcsize(contract.WIRE_HEADER)
PR_SET_NAME = 15


class Share:
    def __init__(self, path: str) -> None:
        self.path = path
        self.socket: socket.socket | None = None
        self.slot = -1
        self.lease_number = 0

    def connected(self) -> socket.socket:
        if self.socket is None:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.socket.settimeout(20)
            self.socket.connect(self.path)
        return self.socket

    def message(self, kind: int, body: bytes = b"") -> bytes:
        header = (contract.WIRE_MAGIC, contract.WIRE_VERSION, kind, HEADER + len(body), 0)
        return struct.pack(contract.WIRE_HEADER, *header) + body

    def hello(self) -> dict[str, Any]:
        connected = self.connected()
        connected.send(self.message(contract.MESSAGE_HELLO, struct.pack(contract.WIRE_HELLO, b"test")))
        data, descriptors, _, _ = socket.recv_fds(connected, contract.WIRE_MAX, 2)
        if not data:
            return {"closed": True}
        kind = struct.unpack_from(contract.WIRE_HEADER, data)[2]
        if kind == contract.MESSAGE_REFUSED:
            return {"refused": data[HEADER:].split(b"\0")[0].decode()}
        self.gpus, self.slot = struct.unpack_from(contract.WIRE_WELCOME, data, HEADER)
        self.limits_descriptor, ledger = descriptors
        self.limits_map = mmap.mmap(self.limits_descriptor, contract.PAGE_SIZE, prot=mmap.PROT_READ)
        self.ledger_map = mmap.mmap(ledger, self.gpus * contract.PAGE_SIZE)
        self.ledger_descriptor = ledger
        self.words = (ctypes.c_uint64 * (self.gpus * contract.LEDGER_SLOTS)).from_buffer(self.ledger_map)
        return {"gpus": self.gpus, "slot": self.slot}

    def limits(self) -> dict[str, Any]:
        gpus, slots, _, _ = struct.unpack_from(contract.LIMITS_HEADER, self.limits_map)
        records = [
            struct.unpack_from(contract.LIMITS_RECORD, self.limits_map, 64 + gpu * contract.LIMITS_RECORD_SIZE)
            for gpu in range(gpus)
        ]
        return {
            "slots": slots,
            "records": [[record[0].hex(), *record[1:4]] for record in records],
            "measured": [list(record[4:6]) for record in records],
            "turns": [list(record[6:8]) for record in records],
        }

    def total(self, gpu: int) -> int:
        slots = struct.unpack_from(contract.LIMITS_HEADER, self.limits_map)[1]
        return sum(self.words[gpu * contract.LEDGER_SLOTS : gpu * contract.LEDGER_SLOTS + slots])

    def take(self, gpu: int, taken: int) -> bool:
        self.words[gpu * contract.LEDGER_SLOTS + self.slot] += taken
        limit = self.limits()["records"][gpu][1]
        if self.total(gpu) <= limit:
            return True
        self.words[gpu * contract.LEDGER_SLOTS + self.slot] -= taken
        return False

    def tamper(self) -> list[str]:
        link = f"/proc/self/fd/{self.limits_descriptor}"
        ledger = f"/proc/self/fd/{self.ledger_descriptor}"
        attempts = {
            "map": lambda: mmap.mmap(self.limits_descriptor, contract.PAGE_SIZE),
            "reopen": lambda: mmap.mmap(os.open(link, os.O_RDWR), contract.PAGE_SIZE),
            "write": lambda: os.pwrite(os.open(link, os.O_RDWR), b"x", 64),
            "shrink limits": lambda: os.ftruncate(os.open(link, os.O_RDWR), 0),
            "shrink ledger": lambda: os.ftruncate(os.open(ledger, os.O_RDWR), 0),
            "grow ledger": lambda: os.ftruncate(os.open(ledger, os.O_RDWR), 1 << 30),
        }
        succeeded = []
        for name, attempt in attempts.items():
            try:
                attempt()
            except (OSError, ValueError):
                continue
            succeeded.append(name)
        return succeeded

    def raw(self, text: str) -> str:
        connected = self.connected()
        connected.send(bytes.fromhex(text))
        try:
            data = connected.recv(contract.WIRE_MAX)
        except ConnectionError:
            return "closed"
        return data[HEADER:].split(b"\0")[0].decode() if data else "closed"

    def reclaim(self) -> int:
        connected = self.connected()
        connected.send(self.message(contract.MESSAGE_RECLAIM))
        data = connected.recv(contract.WIRE_MAX)
        return int(struct.unpack_from(contract.WIRE_RECLAIMED, data, HEADER)[0])

    def disguise(self, directory: str) -> None:
        name = b"\xff\xfe"
        ctypes.CDLL(None).prctl(PR_SET_NAME, name)
        descriptor = os.open(directory.encode() + b"/" + name, os.O_RDWR | os.O_CREAT)
        os.ftruncate(descriptor, contract.PAGE_SIZE)
        self.file_map = mmap.mmap(descriptor, contract.PAGE_SIZE)

    def turns(self, count: int) -> int:
        connected = self.connected()
        self.lease(contract.MESSAGE_WANT, 0)
        for left in reversed(range(count)):
            kind, number = 0, self.lease_number
            # The last lease may be reported once more after it was given back, with other flags.
            while kind != contract.MESSAGE_OPEN or number == self.lease_number:
                data = connected.recv(contract.WIRE_MAX)
                kind = struct.unpack_from(contract.WIRE_HEADER, data)[2]
                number = struct.unpack_from(contract.WIRE_LEASE, data, HEADER)[2]
            self.lease_number = number
            self.lease(contract.MESSAGE_CLOSED, number)
            self.lease(contract.MESSAGE_RELEASED, number)
            if left:
                self.lease(contract.MESSAGE_WANT, 0)
        return count

    def lease(self, kind: int, number: int) -> None:
        self.connected().send(self.message(kind, struct.pack(contract.WIRE_LEASE, 0, 0, number)))

    def fork(self) -> int:
        child = os.fork()
        if child == 0:
            os.close(0)
            os.close(1)
            time.sleep(60)
            os._exit(0)
        return child

    def do(self, verb: str, *arguments: str) -> Any:
        numbers = [int(argument) for argument in arguments] if verb not in {"raw", "disguise"} else []
        match verb:
            case "charge":
                self.words[numbers[0] * contract.LEDGER_SLOTS + self.slot] += numbers[1]
            case "turns":
                return self.turns(*numbers)
            case "take":
                return self.take(*numbers)
            case "write":
                self.words[numbers[0] * contract.LEDGER_SLOTS + numbers[1]] = numbers[2]
            case "sum":
                return self.total(numbers[0])
            case "disguise":
                self.disguise(arguments[0])
            case "raw":
                return self.raw(arguments[0])
            case "close":
                self.connected().close()
                self.socket = None
            case "become":
                os.execv(sys.executable, sys.orig_argv)  # noqa: S606
            case _:
                return getattr(self, verb)()
        return None


def main() -> None:
    share = Share(sys.argv[1])
    sys.stdout.write("null\n")
    sys.stdout.flush()
    for line in iter(sys.stdin.readline, ""):
        answer = share.do(*line.split())
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
