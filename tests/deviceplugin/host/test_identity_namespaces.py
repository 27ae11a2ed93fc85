"""Real processes in real cgroups, seen by an agent in its own cgroup namespace, as containers of cgroup v2 have one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.arbiter import socket_server
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container
from tests.deviceplugin.arbiter.programs import threads
from tests.deviceplugin.host.test_identity import ENDS_OF_LINES, OTHERS
from tests.programs import PATH, command

ROOTS = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")]  # cgroup v1 and v2
ID, AGENTS_ID = "5d" * 32, "ab" * 32


@pytest.fixture
def root() -> Iterator[Path]:
    """A cgroup for this test alone."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, to make cgroups and namespaces")
    for hierarchy in ROOTS:
        made = hierarchy / f"gpushare-test-{uuid.uuid4().hex}"
        with contextlib.suppress(OSError):
            made.mkdir()
            if (made / "cgroup.procs").exists():
                break
            made.rmdir()
    else:
        pytest.skip("no hierarchy of cgroups can be written here")
    yield made
    for path in sorted(made.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
    made.rmdir()


def entering(cgroup: Path, *command: str) -> list[str]:
    """Return a command that runs in this cgroup."""
    cgroup.mkdir(parents=True)
    return ["/bin/sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh", *command]


@pytest.mark.parametrize(
    ("below", "agent"),
    [
        ("kubepods/burstable/pod{}/" + ID, "kubepods/burstable/pod{}/" + AGENTS_ID),
        ("kubepods/besteffort/pod{}/crio-" + ID + "/container", "kubepods/pod{}/crio-" + AGENTS_ID),
        ("kubepods.slice/kubepods-pod{}.slice/cri-containerd-" + ID + ".scope", "system.slice/k3s.service"),
    ],
)
def test_a_container_is_identified_from_inside_a_cgroup_namespace(root: Path, below: str, agent: str) -> None:
    uid, agents_uid = str(uuid.uuid4()), str(uuid.uuid4())
    named = uid.replace("-", "_") if ".slice" in below else uid
    target = subprocess.Popen(
        entering(root / below.format(named), "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert target.stdin
    assert target.stdout
    try:
        print("there", file=target.stdin, flush=True)
        assert target.stdout.readline() == "there\n"
        read = f"print(open('/proc/{target.pid}/cgroup').read())"
        command = entering(root / agent.format(agents_uid), "unshare", "--cgroup", sys.executable, "-c", read)
        seen = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    finally:
        target.communicate()
    assert "/../" in seen  # seen from a namespace
    assert root.name not in seen
    assert kernel_process.container_of(seen) == Container(uid, ID)


@pytest.mark.parametrize("end", ENDS_OF_LINES, ids=ascii)
def test_no_cgroup_name_below_a_container_hides_a_process(root: Path, end: str) -> None:
    uid = str(uuid.uuid4())
    own = root / "kubepods" / f"pod{uid}" / ID / f"x{end}0::" / OTHERS[0]
    process = subprocess.Popen(entering(own, "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        print("there", file=process.stdin, flush=True)
        assert process.stdout.readline() == "there\n"
        assert socket_server.by_cgroup()(process.pid) == Container(uid, ID)
    finally:
        process.communicate()


def test_a_process_whose_first_thread_has_ended_is_in_its_container(root: Path) -> None:
    """In cgroup v1, such a thread is in no cgroup."""
    uid = str(uuid.uuid4())
    own = entering(root / "kubepods" / f"pod{uid}" / ID, *command(threads.first_thread_ends))
    process = subprocess.Popen(own, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PATH})
    try:
        ends = time.monotonic() + 30
        while kernel_process._stat(process.pid, kernel_process.PROC)[0] != b"Z":
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert socket_server.by_cgroup()(process.pid) == Container(uid, ID)
    finally:
        process.communicate()
