"""`python -m deviceplugin.arbiter`: the arbiter's process, which the agent starts and which ends with the agent.

The arbiter connects to neither the API server nor the driver; the agent sends it what it needs of both. So neither a
slow API server nor parsing the cluster's JSON can delay a lease.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deviceplugin.arbiter import socket_server
from deviceplugin.arbiter.agent_channel import AgentChannel, DepartedShares
from deviceplugin.arbiter.messages import ArbiterReady, Channel, Message
from deviceplugin.arbiter.orphans import Orphans
from deviceplugin.arbiter.share_ledgers import ShareLedgers
from deviceplugin.arbiter.share_resizing import ShareResizer
from deviceplugin.denial.kernel import RENEW_SECONDS, RegisteredMap
from deviceplugin.host import kernel_process
from gpushare.daemon import lifecycle

logger = logging.getLogger("deviceplugin.arbiter")

POLL_SECONDS: Final = 0.05


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    lifecycle.configure_logs(options.log_level, "arbiter")
    return lifecycle.run(lambda daemon: _serve(options, daemon))


async def _serve(options: argparse.Namespace, daemon: lifecycle.Daemon) -> None:
    channel = Channel(socket.socket(fileno=options.agent))
    agent = AgentChannel(channel)
    registered = RegisteredMap(options.registered) if options.registered is not None else None
    ledgers = ShareLedgers(
        options.ledgers,
        proc=options.proc_root,
        context_bytes=agent.context_bytes,
        unclaimed_bytes=agent.unclaimed_bytes,
        registered=registered,
    )
    arbiter = socket_server.Server(
        options.socket,
        lookup=DepartedShares(agent, ledgers, node=lambda: agent.node, gpu_bytes=agent.gpu_bytes),
        ledgers=ledgers,
        identify=socket_server.by_cgroup(options.proc_root),
        proc=options.proc_root,
    )
    orphans = Orphans(ledgers, identify=socket_server.by_cgroup(options.proc_root), proc=options.proc_root)
    resizing = ShareResizer(
        ledgers,
        arbiter.leases,
        orphans=orphans,
        node=lambda: agent.node,
        notify=agent.changed,
        gpu_bytes=agent.gpu_bytes,
        measured=lambda: agent.has_measured,
    )
    agent.serve(ledgers, arbiter, resizing)

    def handle(message: Message, _: Sequence[int]) -> None:
        try:
            agent.handle(message)
        except Exception as error:
            # Restart rather than go on after half a message: later answers would be matched to the wrong questions.
            daemon.fail(f"The arbiter failed to handle the agent's message {type(message).__name__}", error)

    lock = await _lock_ledgers(options.ledgers, daemon)
    try:
        if daemon.stopping.is_set():
            return
        ledgers.recover()
        if registered is not None:
            daemon.start("beat", _renew(registered))
        lifecycle.freeze_objects()  # startup objects live on, and scanning them takes longer than handing over a lease
        async with arbiter:
            # Listen only now: before recovery, reports about shares would be wrong.
            channel.listen(handle, lambda: daemon.stop("the agent has ended"))
            channel.send(ArbiterReady())
            await daemon.stopping.wait()
    finally:
        resizing.close()
        orphans.close()
        ledgers.close()
        channel.close()
        os.close(lock)


async def _renew(registered: RegisteredMap) -> None:
    """Renew, in the kernel's map, the time until which the arbiter counts as running."""
    while True:
        registered.renew()
        await asyncio.sleep(RENEW_SECONDS)


async def _lock_ledgers(ledgers: Path, daemon: lifecycle.Daemon) -> int:
    """Wait for the lock on the ledgers, and return its descriptor.

    The arbiter of an agent that was killed may run for a moment longer, and would overwrite the records of this one.
    """
    path = ledgers.with_name(f"{ledgers.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    warned = False
    while not daemon.stopping.is_set():
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not warned:
                logger.warning("Waiting for the previous arbiter to end", extra={"lock": str(path)})
            warned = True
            await asyncio.sleep(POLL_SECONDS)
    return descriptor


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deviceplugin.arbiter",
        description="The arbiter of a node's shares. The agent starts it and sends it the allocations.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--agent", type=int, required=True, metavar="DESCRIPTOR", help="a socket connected to the agent")
    add("--socket", type=Path, required=True, help="the socket for processes of share containers")
    add("--ledgers", type=Path, required=True, help="the directory for the state that the next arbiter needs")
    add("--registered", type=int, metavar="DESCRIPTOR", help="the kernel's map of registered processes")
    add("--proc-root", type=Path, default=kernel_process.PROC, help="the host's /proc (%(default)s)")
    add("--log-level", choices=lifecycle.LOG_LEVELS, default="info", help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
