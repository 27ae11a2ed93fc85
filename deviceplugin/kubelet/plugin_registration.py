"""Runs one plugin per advertised resource: registers it with the kubelet, and again whenever the kubelet forgets it.

The kubelet calls back on our socket inside Register, so the plugin serves before it registers. When the kubelet starts,
it removes every socket in its directory and recreates `kubelet.sock`. It decides about its pods 0.3 to 0.9 s later, and
permanently rejects those whose resource is not registered. So `kubelet.sock` is polled every 0.1 s then.

Another agent may start before this one stops, for example after a forced deletion of the pod, and replace our socket.
We leave it alone: if two agents competed, the kubelet would mark all devices unhealthy at each registration.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from deviceplugin.kubelet import plugin_service
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2_grpc as services
from deviceplugin.state import advertisement
from deviceplugin.state.node_state import Observable
from gpushare.cluster import retrying

logger = logging.getLogger(__name__)

API_VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
CHECK_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.1  # poll interval for `kubelet.sock` while no kubelet listens
FIRST_PAUSE_SECONDS: Final = 0.1  # the socket exists a moment before the kubelet listens
REGISTER_SECONDS: Final = 15.0  # the kubelet itself stops dialling us after 10 s
SILENT_SECONDS: Final = 10.0  # since registration, without a call of ListAndWatch
DROPPED_SECONDS: Final = 2.0  # since the kubelet closed the stream
STOP_SECONDS: Final = 0.5
MAX_HANGUPS: Final = 3  # more than a restarting kubelet causes
STEADY_SECONDS: Final = 60.0  # after this time the stream counts as stable
# A restarted kubelet decides about its pods within a second, and a local call is cheap.
MAX_PAUSE_SECONDS: Final = 1.0
# A Unix socket must not go through the proxy that the environment names.
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0),)

Identity = tuple[int, int]


class Registration:
    """Keeps one resource's plugin served and registered. changed: called when `problem` may have changed.

    problem: why the kubelet does not list the resource; empty if it does. hung_up: why it keeps closing the stream.
    """

    def __init__(
        self,
        served: plugin_service.ServedResource,
        *,
        advertised: Observable[advertisement.Advertisement],
        directory: Path,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._served = served
        self._advertised = advertised
        self._kubelet_socket = directory / KUBELET_SOCKET
        self._socket = directory / advertisement.socket_name(served.name)
        self._changed = changed
        self._clock = clock
        self._servicer = plugin_service.DevicePlugin(served, advertised)
        self._server: grpc.aio.Server | None = None
        self._served_at: Identity | None = None
        self._registered_with: Identity | None = None
        self._checked_kubelet: Identity | None = None
        self._options = plugin_service.options(served.answers)  # as last sent to the kubelet
        self._listened_to = self._registered_at = 0.0
        self._calls = 0  # ListAndWatch calls before the last registration
        self._hangups = 0  # consecutive, since the kubelet last started
        self._failures = 0
        self.hung_up = ""
        self.problem = f"{served.name} is not registered with the kubelet yet"

    async def run(self) -> None:
        """Serve and register until cancelled; then remove our socket."""
        try:
            while True:
                await self._wait(await self.step())
        finally:
            await self._stop()

    async def _wait(self, seconds: float) -> None:
        # A kubelet that ends drops its stream. Polling before that would only cost CPU time on every node.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._servicer.dropped.wait()
                while _identity(self._kubelet_socket) == self._checked_kubelet:  # noqa: ASYNC110 - a file has no event
                    await asyncio.sleep(POLL_SECONDS)

    async def step(self) -> float:
        """Register or serve again if necessary; return the seconds until the next check."""
        kubelet = self._checked_kubelet = _identity(self._kubelet_socket)
        if kubelet is None:
            self._registered_with = None
            self._report(
                f"no kubelet listens on {self._kubelet_socket}: it is stopped, or --kubelet-directory is wrong"
            )
            return CHECK_SECONDS
        if await self._another_agent_listens():
            self._report(f"another agent on this node listens on {self._socket}, so this agent does not register")
            return CHECK_SECONDS
        intact = self._server is not None and _identity(self._socket) == self._served_at
        known = self._registered_with == kubelet and self._options == plugin_service.options(self._served.answers)
        if self._servicer.streams:
            self._listened_to = self._clock()
        # whether the kubelet has called ListAndWatch since the last registration
        was_called = self._servicer.calls > self._calls
        silent = self._clock() - self._listened_to >= (DROPPED_SECONDS if was_called else SILENT_SECONDS)
        if intact and known and not silent:
            if self.hung_up and self._clock() - self._registered_at >= STEADY_SECONDS:
                self._hangups = 0
                self.hung_up = ""
                self.problem = ""
                self._changed()
            return CHECK_SECONDS
        if not (intact and known):
            self._hangups = 0
            self.hung_up = ""
        elif was_called:
            self._hangups = 1 if self._clock() - self._registered_at >= STEADY_SECONDS else self._hangups + 1
        if self._hangups >= MAX_HANGUPS:
            count = len(self._advertised.value.get(self._served.name, ()))
            self.hung_up = (
                f"the kubelet closes the stream when it gets the {count} devices of {self._served.name}: it accepts "
                "lists up to 4 MiB, so reduce replicas; if there are few devices, see the kubelet's log"
            )
        try:
            if not intact:
                await self._serve()
            self._calls = self._servicer.calls
            await self._register()
        except (grpc.RpcError, OSError, RuntimeError) as error:
            self._failures += 1
            self._registered_with = None
            why = f"{error.details()} ({error.code().name})" if isinstance(error, grpc.aio.AioRpcError) else str(error)
            self._report(f"{self._served.name} could not be registered with the kubelet: {why}")
            return retrying.pause_seconds(
                self._failures, first_seconds=FIRST_PAUSE_SECONDS, most_seconds=MAX_PAUSE_SECONDS
            )
        self._failures = 0
        self._registered_with = kubelet
        self._listened_to = self._registered_at = self._clock()
        if self.hung_up:
            self._report(self.hung_up)
            return CHECK_SECONDS
        self.problem = ""
        self._changed()
        logger.info("Registered with the kubelet", extra={"resource": self._served.name, "socket": str(self._socket)})
        return CHECK_SECONDS

    async def _serve(self) -> None:
        await self._stop()
        self._servicer = plugin_service.DevicePlugin(self._served, self._advertised)
        server = grpc.aio.server()
        services.add_DevicePluginServicer_to_server(self._servicer, server)  # type: ignore[no-untyped-call]
        # Use a private name: when the server stops, gRPC unlinks this path, even if another server has it by then.
        private = self._socket.with_name(f".{secrets.token_hex(4)}.sock")
        server.add_insecure_port(f"unix:{private}")
        private.replace(self._socket)
        self._server = server
        self._served_at = _identity(self._socket)
        starting = asyncio.ensure_future(server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting  # a server that is still starting cannot be stopped, and would keep the process alive
            raise
        except RuntimeError:
            self._server = None
            raise

    async def _register(self) -> None:
        self._options = plugin_service.options(self._served.answers)
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet_socket}", options=_CHANNEL_OPTIONS) as channel:
            stub = services.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(
                messages.RegisterRequest(
                    version=API_VERSION,
                    endpoint=self._socket.name,
                    resource_name=self._served.name,
                    options=self._options,
                ),
                timeout=REGISTER_SECONDS,
            )

    async def _stop(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        await server.stop(STOP_SECONDS)
        if _identity(self._socket) == self._served_at:
            with contextlib.suppress(FileNotFoundError):
                self._socket.unlink()

    async def _another_agent_listens(self) -> bool:
        """Whether another process listens on our socket's path. At our start, an existing socket is replaced."""
        there = _identity(self._socket)
        # Compare only the inode: an administrator may have changed the mode of our socket.
        if self._server is None or self._served_at is None or there is None or there[0] == self._served_at[0]:
            return False
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                _, writer = await asyncio.open_unix_connection(self._socket)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            logger.warning("Not registered with the kubelet", extra={"resource": self._served.name, "err": problem})
        self.problem = problem
        self._changed()


def _identity(socket: Path) -> Identity | None:
    """Return what distinguishes this socket from a later one with the same name; None if there is no socket."""
    try:
        status = socket.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


# A resource that is no longer advertised keeps its plugin with an empty list for this time: the kubelet would otherwise
# report the last devices as capacity for another five minutes.
EMPTY_SECONDS: Final = 10.0


@dataclasses.dataclass(eq=False)
class Plugins:
    """Keeps a registration for each resource of `advertised`. Plugins start and stop independently.

    answers: returns the allocator of a resource. registered: receives the resources whose plugins the kubelet knows.
    hung_up: receives the reason if the kubelet keeps closing the stream of a resource, else an empty string.
    """

    advertised: Observable[advertisement.Advertisement]
    _: dataclasses.KW_ONLY
    answers: Callable[[str], plugin_service.ContainerAllocator]
    directory: Path
    registered: Observable[frozenset[str]] = dataclasses.field(default_factory=lambda: Observable(frozenset()))
    hung_up: Observable[str] = dataclasses.field(default_factory=lambda: Observable(""))
    empty_seconds: float = EMPTY_SECONDS

    def __post_init__(self) -> None:
        self._registrations: dict[str, Registration] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._endings: dict[str, asyncio.TimerHandle] = {}
        self._failed = asyncio.get_running_loop().create_future()

    @property
    def problem(self) -> str:
        """A sentence that says why the kubelet does not list an advertised resource; empty if it lists all."""
        wanted = self.advertised.value
        return "; ".join(
            registration.problem
            for name, registration in self._registrations.items()
            if registration.problem and name in wanted
        )

    async def run(self) -> None:
        following = asyncio.create_task(self._follow())
        try:
            await asyncio.wait({following, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            for done in (following, self._failed):
                if done.done():
                    await done
        finally:
            following.cancel()
            for handle in self._endings.values():
                handle.cancel()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow(self) -> None:
        async for wanted in self.advertised.follow():
            for name in wanted:
                self._start(name)
            for name in self._tasks.keys() - wanted.keys() - self._endings.keys():
                loop = asyncio.get_running_loop()
                self._endings[name] = loop.call_later(
                    plugin_service.REMOVAL_SECONDS + self.empty_seconds, self._end, name
                )

    def _start(self, name: str) -> None:
        ending = self._endings.pop(name, None)
        if ending is not None:
            ending.cancel()
        if name in self._tasks:
            return
        registration = Registration(
            plugin_service.ServedResource(name, self.answers(name)),
            advertised=self.advertised,
            directory=self.directory,
            changed=self._publish,
        )
        self._registrations[name] = registration
        self._tasks[name] = asyncio.create_task(registration.run(), name=name)
        self._tasks[name].add_done_callback(self._ended)

    def _publish(self) -> None:
        there = self._registrations.items()
        self.registered.publish(frozenset(name for name, registration in there if not registration.problem))
        self.hung_up.publish("; ".join(registration.hung_up for _, registration in there if registration.hung_up))

    def _end(self, name: str) -> None:
        del self._endings[name]
        logger.info("Stopped serving a resource", extra={"resource": name})
        self._tasks.pop(name).cancel()
        del self._registrations[name]
        self._publish()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self._failed.done():
            error = task.exception() or RuntimeError(f"the plugin of {task.get_name()} ended unexpectedly")
            with contextlib.suppress(asyncio.InvalidStateError):
                self._failed.set_exception(error)
