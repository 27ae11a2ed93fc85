"""Assigns loopback addresses and ports to each lab, so that labs on the same machine do not conflict.

Each lab has a number: its control plane listens on 127.77.NUMBER.1, its nodes use 127.78.NUMBER.x and its pods
10.213.NUMBER.x. A number is claimed with a symbolic link to the lab's directory, which is created atomically and
outlives any process.
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
# Below the kernel's range for outgoing connections (from 32768), so that no connection takes the port.
SPARE_PORTS = range(20000, 30000)


def claims_directory() -> Path:
    """Return the directory with a link for each number in use."""
    return lab_layout.common_directory() / "lab-numbers"


def claim_number(directory: Path) -> int:
    """Claim a number that no other lab of this user has, for the lab in `directory`, which must exist; return it.

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
        # In random order, because the claims of other users are not visible: so a conflict with their labs is unlikely.
        for number in random.sample(NUMBERS, len(NUMBERS)):
            with contextlib.suppress(FileExistsError):
                (claims / str(number)).symlink_to(directory.absolute())
                return number
    raise lab_errors.LabError(
        f"all {len(NUMBERS)} lab numbers are taken; remove those in {claims} that belong to no lab"
    )


def release_number(number: int, directory: Path) -> None:
    """Release a number if this lab has it."""
    link = claims_directory() / str(number)
    with _locked():
        if link.is_symlink() and link.readlink() == directory.absolute():
            _release(link)


def others_with_nodes(directory: Path) -> bool:
    """Return whether other labs of this user have nodes, or are being created and may get some."""
    return any(_may_have_nodes(other) for _, other in _claimed() if other != directory and other.exists())


def _may_have_nodes(other: Path) -> bool:
    if not lab_layout.exists(other):
        return True
    try:
        return bool(lab_layout.load(other).nodes)
    except lab_errors.LabError:  # the lab was removed meanwhile
        return False


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Lock the claims. Without that, two processes that find the same stale claim could remove each other's new one.

    The lock is on the directory itself, so no lock file remains.
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
    """Yield the links with their labs' directories; other processes may remove theirs meanwhile."""
    for link in claims_directory().iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield link, link.readlink()


def _release(link: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        link.unlink()


def free_ports(address: str, preferred: tuple[int, ...]) -> Iterator[int]:
    """Yield a free port for each preferred one: the preferred port, or a spare one if it is taken or not allowed."""
    for port in preferred:
        yield port if _is_free(address, port) else _spare_port(address)


def _spare_port(address: str) -> int:
    for port in random.sample(SPARE_PORTS, 100):
        if _is_free(address, port):
            return port
    raise lab_errors.LabError(
        f"a hundred ports of {address} were all taken; another program may listen on every address"
    )


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        # The servers set this option too: then connections in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True
