"""Loopback addresses and ports for one lab, so that labs side by side never meet.

A lab has a number: its control plane lives on 127.77.NUMBER.1, its nodes on 127.78.NUMBER.x and its pods on
10.213.NUMBER.x. A number is claimed by a symbolic link to the lab's directory, which is made atomically and outlives
any process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from lab import lab_errors, lab_layout

NUMBERS = range(1, 250)
# Below the range that the kernel gives to outgoing connections (32768 and up), so that none of them takes the port.
SPARE_PORTS = range(20000, 30000)


def claims_directory() -> Path:
    """Return the directory of one link per number in use."""
    return lab_layout.common_directory() / "lab-numbers"


def claim_number(directory: Path) -> int:
    """Return a number no other lab of this user has, claimed for the lab in `directory`, which exists already.

    Raises:
        LabError: all numbers are taken.
    """
    claims = claims_directory()
    with _locked():
        for link, target in _claimed():
            if target == directory.absolute():
                return int(link.name)
            if not target.exists():
                _release(link)
        # In random order: labs of other users, who have other claims, are then unlikely to meet this one.
        for number in random.sample(NUMBERS, len(NUMBERS)):
            with contextlib.suppress(FileExistsError):
                (claims / str(number)).symlink_to(directory.absolute())
                return number
    raise lab_errors.LabError(
        f"all {len(NUMBERS)} lab numbers are taken; remove those in {claims} that belong to no lab"
    )


def release_number(number: int, directory: Path) -> None:
    """Give a number back, if it is this lab's."""
    link = claims_directory() / str(number)
    with _locked():
        if link.is_symlink() and link.readlink() == directory.absolute():
            _release(link)


def others_with_nodes(directory: Path) -> bool:
    """Return whether labs of this user in other directories have nodes, or are just being made and may get some."""
    return any(_may_have_nodes(other) for _, other in _claimed() if other != directory and other.exists())


def _may_have_nodes(other: Path) -> bool:
    if not lab_layout.exists(other):
        return True
    try:
        return bool(lab_layout.load(other).nodes)
    except lab_errors.LabError:  # it was a moment ago, and has ended
        return False


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Let one at a time change the claims: of two that find one stale, the second would remove the first one's new one.

    The lock is on the directory itself, which leaves no file.
    """
    claims = claims_directory()
    claims.mkdir(parents=True, exist_ok=True)
    handle = os.open(claims, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _claimed() -> Iterator[tuple[Path, Path]]:
    """Yield links with the directories of their labs; others may release theirs meanwhile."""
    for link in claims_directory().iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield link, link.readlink()


def _release(link: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        link.unlink()


def free_ports(address: str, preferred: tuple[int, ...]) -> Iterator[int]:
    """Yield one free port for each preferred one: that itself, or a spare one if it is taken or not allowed."""
    for port in preferred:
        yield port if _is_free(address, port) else _spare_port(address)


def _spare_port(address: str) -> int:
    for port in random.sample(SPARE_PORTS, 100):
        if _is_free(address, port):
            return port
    raise lab_errors.LabError(f"a hundred ports of {address} were all taken; something listens on every address")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        # As the servers set it themselves: a connection in TIME_WAIT does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True
