"""Registering a plugin with the kubelet, and again whenever the kubelet forgets.

The order is the kubelet's: it calls back on our socket inside Register, so we serve before we register. When it starts,
it removes every socket in its directory and makes `kubelet.sock` again; both are looked at, by inode, when `coming`
says so and once a second. A kubelet that has dropped our stream without a restart is registered with again too.

Another agent of this node may have come while we are about to stop, as when our pod was deleted by force. Then it has
our socket, and keeps it: the kubelet takes all devices for unhealthy whenever one of two that fight registers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
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
from deviceplugin.state.offer import Observable
from gpushare.cluster import backoff

logger = logging.getLogger(__name__)

API_VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
CHECK_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.2  # for a new kubelet.sock, between two checks
FIRST_PAUSE_SECONDS: Final = 0.1  # its socket is there a moment before it listens
REGISTER_SECONDS: Final = 15.0  # the kubelet itself gives up dialling us after 10
SILENT_SECONDS: Final = 10.0  # registered, but nobody has begun to read the list
DROPPED_SECONDS: Final = 2.0  # and nobody reads it any more
STOP_SECONDS: Final = 0.5
MAX_HANGUPS: Final = 3  # a kubelet that restarts does not come to it
STEADY_SECONDS: Final = 60.0  # one that has listened for so long does not hang up
# A kubelet that comes back judges its pods within a second, and to ask a socket of this node costs nothing.
MAX_PAUSE_SECONDS: Final = 1.0
# Which proxy a cluster's environment names is nothing to a socket.
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0),)

Identity = tuple[int, int]


class Registration:
    """Keeps one resource's plugin served and registered.

    problem: why the kubelet does not list the resource now, as a sentence; empty when it does.
    hung_up: the same if that is because it hangs up again and again, else empty.
    changed: called when the problem may be another.
    pause: waits for so many seconds, or less if there may be something to do.
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
        self._options = plugin_service.options(served.answers)  # as the kubelet knows them
        self._listened_to = self._registered_at = 0.0
        self._calls = 0  # before it was registered
        self._hangups = 0  # one after the other, of one kubelet
        self._failures = 0
        self.hung_up = ""
        self.problem = f"{served.name} is not registered with the kubelet yet"

    async def run(self) -> None:
        """Serve and register until cancelled; then take our socket away."""
        try:
            while True:
                await self._wait(await self.step())
        finally:
            await self._stop()

    async def _wait(self, seconds: float) -> None:
        for _ in range(math.ceil(seconds / POLL_SECONDS)):
            await asyncio.sleep(min(seconds, POLL_SECONDS))
            if _identity(self._kubelet_socket) != self._checked_kubelet:
                return

    async def step(self) -> float:
        """Do what is due; return the seconds until the next look."""
        kubelet = self._checked_kubelet = _identity(self._kubelet_socket)
        if kubelet is None:
            self._registered_with = None
            self._report(
                f"no kubelet listens on {self._kubelet_socket}: it is stopped, or --kubelet-directory is wrong"
            )
            return CHECK_SECONDS
        if await self._another_agent_listens():
            self._report(f"another agent of this node listens on {self._socket}: this one leaves the kubelet to it")
            return CHECK_SECONDS
        intact = self._server is not None and _identity(self._socket) == self._served_at
        known = self._registered_with == kubelet and self._options == plugin_service.options(self._served.answers)
        if intact and known and self._is_listened_to():
            if self.hung_up and self._clock() - self._registered_at >= STEADY_SECONDS:
                self._hangups, self.hung_up, self.problem = 0, "", ""
                self._changed()
            return CHECK_SECONDS
        self._count_hangups(is_dropped=intact and known)
        try:
            if not intact:
                await self._serve()
            self._calls = self._servicer.calls
            await self._register()
        except (grpc.RpcError, OSError, RuntimeError) as error:
            self._failures += 1
            self._registered_with = None
            self._report(f"{self._served.name} could not be registered with the kubelet: {_sentence(error)}")
            return backoff.pause_seconds(
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
        # Under a name of its own: at its end gRPC removes what it finds under the name, whoever's it is by then.
        private = self._socket.with_name(f".{secrets.token_hex(4)}.sock")
        server.add_insecure_port(f"unix:{private}")
        private.replace(self._socket)
        self._server, self._served_at = server, _identity(self._socket)
        starting = asyncio.ensure_future(server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting  # what is half started cannot be stopped, and would keep the process from ending
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

    def _is_listened_to(self) -> bool:
        if self._servicer.streams:
            self._listened_to = self._clock()
        most_seconds = DROPPED_SECONDS if self._was_called else SILENT_SECONDS
        return self._clock() - self._listened_to < most_seconds

    @property
    def _was_called(self) -> bool:
        """Whether the kubelet asked for the list since it was registered with."""
        return self._servicer.calls > self._calls

    def _count_hangups(self, *, is_dropped: bool) -> None:
        if not is_dropped:
            self._hangups, self.hung_up = 0, ""
        elif self._was_called:
            self._hangups = 1 if self._clock() - self._registered_at >= STEADY_SECONDS else self._hangups + 1
        if self._hangups >= MAX_HANGUPS:
            count = len(self._advertised.value.get(self._served.name, ()))
            self.hung_up = (
                f"the kubelet hangs up whenever it is told the {count} devices of {self._served.name}: it takes no "
                "list of more than 4 MiB, so lower replicas; if there are few, see the kubelet's log"
            )

    async def _another_agent_listens(self) -> bool:
        """Whether our socket was replaced by one that somebody listens on; at our start we replace what is there."""
        there = _identity(self._socket)
        # The inode alone: somebody may have changed the rights of our own.
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
    """What tells a socket from another one made later under the same name; None if there is none."""
    try:
        status = socket.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def _sentence(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.details()} ({error.code().name})"
    return str(error)
