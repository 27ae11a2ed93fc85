"""All processes in the cgroup of a lab's nodes can be ended, even if it was left frozen."""

from __future__ import annotations

import os
import subprocess

import pytest

from lab import node_cgroup

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="cgroups are for root")

FROZEN = (("freezer.state", "FROZEN"), ("cgroup.freeze", "1"))


@pytest.mark.slow
def test_frozen_process_is_ended() -> None:
    name = f"gpushare-frozen-{os.getpid()}"
    node_cgroup.create(name)
    try:
        with subprocess.Popen(["sleep", "60"]) as process:
            for root in node_cgroup.hierarchies():
                (root / name / "cgroup.procs").write_text(str(process.pid))
            for root in node_cgroup.hierarchies():
                for file, word in FROZEN:
                    if (root / name / file).exists():
                        (root / name / file).write_text(word)
            node_cgroup.kill(name)
            assert process.wait(timeout=10) == -9
    finally:
        node_cgroup.remove(name)
