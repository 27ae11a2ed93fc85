"""CPU time of one turn in the arbiter, by the number of shares that wait for the GPU.

    python -m bench.arbiter [--seconds 1]

A turn consists of all its messages (WANT, OPEN, REVOKE, CLOSED, RELEASED), including encoding and decoding. The figures
are compared with a goal of a hundred microseconds and with the turn of two shares: more waiting shares should not make
a turn more expensive.
"""

from __future__ import annotations

import argparse
import itertools
import json
import struct
import time

from deviceplugin.arbiter import wire
from deviceplugin.arbiter.scheduling.gpu_share import Debts
from deviceplugin.arbiter.scheduling.leases import GpuLeases
from deviceplugin.arbiter.tenant import Grant, Tenant
from gpushare import contract

SHARES = (2, 10, 40, 100)
GOAL_US = 100.0
TURN_US = 30_000
GPUS = 8
UUID = "GPU-00000000-0000-0000-0000-000000000000"
HEADER_BYTES = struct.calcsize(contract.WIRE_HEADER)


class Client:
    """A process of a share that returns the lease on request and queues for the next at once."""

    def __init__(self, number: int, shares: int, asked: list[tuple[Client, int]]) -> None:
        grant = Grant(UUID, 1 << 30, 100 // shares, 100)
        self.tenant = Tenant(f"uid-{number}", "bench", f"pod-{number}", ("main",), 0, (grant,))
        self._asked = asked

    def send(self, message: bytes) -> None:
        """Record a revoked lease, so that it can be returned."""
        if struct.unpack_from(contract.WIRE_HEADER, message)[2] == contract.MESSAGE_REVOKE:
            self._asked.append((self, struct.unpack_from(contract.WIRE_LEASE, message, HEADER_BYTES)[2]))


def turn_us(shares: int, seconds: float) -> float:
    """Return the microseconds of one turn with this many shares."""
    asked: list[tuple[Client, int]] = []
    gpu = GpuLeases(UUID, itertools.count(2), Debts(), settled=lambda: True)
    now_ns, turns = 1, 0
    clients = [Client(number, shares, asked) for number in range(shares)]

    def said(client: Client, kind: int, number: int) -> None:
        nonlocal now_ns
        now_ns += 1
        gpu.handle(client, kind, wire.Lease(0, 0, number), now_ns)
        gpu.settle(now_ns)

    for client in clients:
        gpu.join(client, 0, now_ns)
        said(client, contract.MESSAGE_WANT, 0)
    began = time.process_time()
    while time.process_time() - began < seconds:
        for _ in range(100):
            now_ns = max(now_ns + 1, gpu.scheduler.due_ns() or 0)
            gpu.execute(gpu.scheduler.tick(now_ns))
            gpu.settle(now_ns)
            while asked:
                client, number = asked.pop()
                said(client, contract.MESSAGE_CLOSED, number)
                said(client, contract.MESSAGE_RELEASED, number)
                said(client, contract.MESSAGE_WANT, 0)
                turns += 1
    return (time.process_time() - began) / turns * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each number of shares")
    seconds = parser.parse_args().seconds
    figures = {shares: turn_us(shares, seconds) for shares in SHARES}
    print(f"{'shares':>8}{'a turn':>12}{'beside two':>12}{f'of a core, {GPUS} GPUs':>20}")
    for shares, took_us in figures.items():
        part = 100 * GPUS * took_us / TURN_US
        print(f"{shares:>8}{took_us:>9.0f} us{took_us / figures[SHARES[0]]:>11.2f}x{part:>18.1f} %")
    print()
    for shares, took_us in figures.items():
        figure = {"figure": f"arbiter.turn.{shares}", "value": round(took_us, 1), "unit": "us", "against": "goal"}
        print(json.dumps({**figure, "ratio": round(took_us / GOAL_US, 3)}))


if __name__ == "__main__":
    main()
