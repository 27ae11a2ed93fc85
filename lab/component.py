"""A component as a value: its command, and the probe that shows whether it serves."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lab import daemon_process, lab_errors, lab_layout

POLL_SECONDS = 0.05
# Enough for an answer on a busy machine.
ANSWER_SECONDS = 2.0


class Probe(Protocol):
    """A readiness check of a component."""

    def answers(self) -> bool:
        """Return whether it is ready now. Raises nothing if the component does not run yet."""


@dataclass(frozen=True, slots=True)
class UnixHTTP:
    """Ready when an HTTP GET over a Unix socket answers 200."""

    socket: Path
    path: str

    def answers(self) -> bool:
        """Check once whether the component is ready."""
        connection = http.client.HTTPConnection("localhost", timeout=ANSWER_SECONDS)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(ANSWER_SECONDS)
            try:
                stream.connect(str(self.socket))
                connection.sock = stream
                connection.request("GET", self.path)
                return connection.getresponse().status == http.client.OK
            except (OSError, http.client.HTTPException):
                return False


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """Ready when a process accepts connections on a Unix socket."""

    socket: Path

    def answers(self) -> bool:
        """Check once whether the component is ready."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(ANSWER_SECONDS)
            try:
                stream.connect(str(self.socket))
            except OSError:
                return False
            return True


@dataclass(frozen=True, slots=True)
class URL:
    """Ready when an HTTP or HTTPS GET answers 200; with HTTPS the certificate has to be the lab's."""

    url: str
    ca_file: Path

    def answers(self) -> bool:
        """Check once whether the component is ready."""
        url = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=ANSWER_SECONDS)
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=str(self.ca_file))
            connection = http.client.HTTPSConnection(
                url.hostname or "", url.port, timeout=ANSWER_SECONDS, context=context
            )
        try:
            connection.request("GET", url.path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Component:
    """A daemon of the lab and its probe."""

    process: daemon_process.Process
    probe: Probe


def start(components: Sequence[Component], lab: lab_layout.Layout) -> None:
    """Start the components that do not run, without waiting for them.

    Raises:
        LabError: one could not be started.
    """
    for component in components:
        daemon_process.start(component.process, lab.processes, lab.logs)


def wait(components: Sequence[Component], lab: lab_layout.Layout, seconds: float) -> None:
    """Wait until all are ready.

    Raises:
        LabError: one ended, or was not ready in time; the message ends with the last lines of its log.
    """
    deadline = time.monotonic() + seconds
    for component in components:
        name = component.process.name
        while not component.probe.answers():
            if daemon_process.pid_of(name, lab.processes) is None:
                raise lab_errors.LabError(f"{name} ended while starting; {daemon_process.last_lines(lab.logs / name)}")
            if time.monotonic() > deadline:
                raise lab_errors.LabError(
                    f"{name} was not ready after {seconds:.0f} s; {daemon_process.last_lines(lab.logs / name)}"
                )
            time.sleep(POLL_SECONDS)
