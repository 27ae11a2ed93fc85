"""The UIDs of a test's pods and the IDs of its containers, made from names; a process's environment has the names.

Arbiters that tests start import this alone, so that they start quickly.
"""

from __future__ import annotations

from pathlib import Path

from deviceplugin.host.kernel_process import Container
from gpushare.refusal import Refusal


def uid(name: str) -> str:
    return f"00000000-0000-0000-0000-{name.encode().hex():0>12}"


def container_id(pod: str, container: str) -> str:
    return f"{pod}.{container}".encode().hex().ljust(64, "0")


def identify(pid: int) -> Container | Refusal:
    """Return the container that a test's process represents."""
    # All processes here share a cgroup; the environment names the container that a process represents.
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return Refusal("this process has ended")
    environment = dict(entry.decode().partition("=")[::2] for entry in entries)
    if "TEST_POD" not in environment:
        return Refusal("this process is not in a container of a pod")
    return Container(uid(environment["TEST_POD"]), container_id(environment["TEST_POD"], environment["TEST_CONTAINER"]))
