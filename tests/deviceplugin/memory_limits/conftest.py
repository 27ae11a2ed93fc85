"""A node whose pods have real cgroups, with the arbiter, the agent's memory limits and its audit on simulated GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import cgroups as made_cgroups
from tests.deviceplugin import simulated
from tests.deviceplugin.audit.conftest import Asked, started
from tests.deviceplugin.audit.programs import asked
from tests.deviceplugin.named import container_id, uid
from tests.interposer import container
from tests.programs import command

GIB = 1 << 30
CONTEXT = 256 << 20
DESCRIPTION = """
[node]
driver-version = {driver}
cuda-version = 13.4
[gpu 0]
model = NVIDIA A100-SXM4-40GB
memory = 16GiB
context-memory = 256MiB
compute-capability = 8.0
mig-capable = yes
"""


@dataclasses.dataclass
class LimitsNode:
    """The node's agent, and its pods' containers."""

    agent: Asked
    box: container.Container
    cgroups: Path
    stack: contextlib.ExitStack

    def __call__(self, *words: object) -> Any:
        return json.loads(self.agent(" ".join(map(str, words))))

    def cgroup(self, pod: str) -> Path:
        """Return the cgroup of a pod's container."""
        return self.cgroups / "kubepods" / f"pod{uid(pod)}" / container_id(pod, "main")

    def client(self, pod: str, *, with_library: bool = True) -> Asked:
        """Start a program in a pod's container; without the library, it is as a static one."""
        preload = (container.LIBRARY,) if with_library else ()
        box = dataclasses.replace(self.box, preload=preload)
        joins = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.cgroup(pod))]
        process = box.start([*joins, *command(asked.answers)])
        self.stack.enter_context(container.finishing(process))
        return Asked(process)

    def audit(self, times: int = 2) -> Any:
        return [self("look") for _ in range(times)][-1]


Start = Callable[..., LimitsNode]


@pytest.fixture
def cgroups() -> Iterator[Path]:
    """Yield a new cgroup in which a node's pods can be."""
    with made_cgroups.new() as path:
        yield path


@pytest.fixture
def start(simulation: None, cgroups: Path, short_path: Path, tmp_path: Path) -> Iterator[Start]:
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)
    gpus = tmp_path / "gpus"
    with contextlib.ExitStack() as stack:

        def begin(driver: str = "615.20.01", **pods: int) -> LimitsNode:
            if not gpus.exists():
                (tmp_path / "node.ini").write_text(DESCRIPTION.format(driver=driver))
                simulated.command("create", tmp_path / "node.ini", gpus)
            given = {name: (memory_bytes, 0) for name, memory_bytes in (pods or {"web": GIB}).items()}
            for name in given:
                pod = cgroups / "kubepods" / f"pod{uid(name)}" / container_id(name, "main")
                pod.mkdir(parents=True, exist_ok=True)
            agent = started(
                stack, gpus, "tests.deviceplugin.memory_limits.limits_node", short_path, cgroups, json.dumps(given)
            )
            return LimitsNode(agent, container.Container(short_path / "arbiter", gpus), cgroups, stack)

        yield begin
