"""Real processes in real cgroups, seen by an agent that has a cgroup namespace of its own, as containers of cgroup v2 do."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.arbiter import identity
from deviceplugin.arbiter.identity import Container

ROOTS = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")]  # of version one, and of version two
ID, AGENTS_ID = "5d" * 32, "ab" * 32


@pytest.fixture
def root() -> Iterator[Path]:
    """A cgroup of this test alone."""
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
    """A command that runs in this cgroup."""
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
def test_a_container_is_known_from_inside_a_cgroup_namespace(root: Path, below: str, agent: str) -> None:
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
    assert "/../" in seen  # it is seen from a namespace
    assert root.name not in seen
    assert identity.parse(seen) == Container(uid, ID)
