"""Tests that a container short of a resource gets an error and one line, or works, but never hangs."""

from __future__ import annotations

import os

import pytest

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import PROBE, Container, complaints_of_the_library
from tests.interposer.programs import starved
from tests.programs import command

# The descriptors left before the first call (None: another resource is short), and the expected line.
SHORTAGES = {
    "no descriptor at all": (0, "no descriptor for the connection to the arbiter: raise the container's limit"),
    "one descriptor": (1, "no descriptor for the connection to the arbiter: raise the container's limit"),
    "two descriptors": (2, "no descriptor for the connection to the arbiter: raise the container's limit"),
    "no address space": (None, "raise the container's limit"),
}


@pytest.mark.parametrize(("descriptors", "said"), SHORTAGES.values(), ids=SHORTAGES.keys())
def test_missing_resource_is_named_and_the_start_can_be_retried(
    container: Container, make_arbiter: ArbiterMaker, descriptors: int | None, said: str
) -> None:
    make_arbiter(5 * MIB)
    result = container.run(command(starved.starts_short_of, descriptors))
    assert result.returncode == 0, result.stderr
    (message,) = complaints_of_the_library(result.stderr)
    assert said in message


def test_cuda_does_not_start_without_a_thread(container: Container, make_arbiter: ArbiterMaker) -> None:
    """A system call filter denies the creation of threads."""
    make_arbiter(5 * MIB)
    result = container.run(command(starved.starts_without_threads))
    assert result.stdout == "[802, 802, 802]\n", result.stderr
    (message,) = complaints_of_the_library(result.stderr)
    assert "the helper thread cannot be started" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize(
    "before",
    [
        "mount --bind /proc /proc && mount -o remount,ro,bind /proc",
        "mount -t tmpfs none /proc",  # an empty /proc
        "exec 0<&- 2<&-",  # the library may get the descriptors of the standard streams
    ],
    ids=["read-only /proc", "no /proc", "closed streams"],
)
def test_bare_container_has_its_share(container: Container, make_arbiter: ArbiterMaker, before: str) -> None:
    make_arbiter(5 * MIB)
    result = container.run(["sh", "-c", f'set -e; {before}; exec "$0" --fill', PROBE])
    assert result.stdout.splitlines()[-1:] == [f"filled {5 * MIB}"], result.stderr
