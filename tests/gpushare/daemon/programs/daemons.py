"""Daemons that end in every way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from gpushare.daemon import lifecycle


def say(what: str) -> None:
    print(what, flush=True)


async def forever() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        say("cleaned up")


async def drains(daemon: lifecycle.Daemon) -> None:
    daemon.start("informer", forever())
    await asyncio.sleep(0)
    say("ready")
    await daemon.stopping.wait()
    say("drained")


async def has_a_task_that_fails(daemon: lifecycle.Daemon) -> None:
    async def fail() -> None:
        raise LookupError("no such GPU")

    daemon.start("health", fail())
    await daemon.stopping.wait()
    say("drained")


async def has_a_task_that_returns(daemon: lifecycle.Daemon) -> None:
    async def end() -> None:
        return

    daemon.start("informer", end())
    await daemon.stopping.wait()


async def has_a_task_that_is_cancelled(daemon: lifecycle.Daemon) -> None:
    async def end() -> None:
        task = asyncio.current_task()
        assert task
        task.cancel()
        await asyncio.sleep(0)

    daemon.start("informer", end())
    await daemon.stopping.wait()


async def fails(daemon: lifecycle.Daemon) -> None:
    daemon.start("informer", forever())
    await asyncio.sleep(0)
    raise OSError("the port is taken")


async def returns(daemon: lifecycle.Daemon) -> None:
    say("done")


async def drains_for_ever(daemon: lifecycle.Daemon) -> None:
    say("ready")
    await daemon.stopping.wait()
    say("ready")
    await forever()


MAINS: dict[str, Callable[[lifecycle.Daemon], Awaitable[None]]] = {
    main.__name__: main
    for main in (
        drains,
        has_a_task_that_fails,
        has_a_task_that_returns,
        has_a_task_that_is_cancelled,
        fails,
        returns,
        drains_for_ever,
    )
}


def runs(main: str, grace_seconds: float) -> None:
    lifecycle.configure_logs("info", "test")
    sys.exit(lifecycle.run(MAINS[main], grace_seconds=grace_seconds))
