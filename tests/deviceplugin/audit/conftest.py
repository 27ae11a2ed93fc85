"""A node with the real library, the real arbiter with its auditor, NVML on simulated GPUs, and programs on them."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deviceplugin import simulated
from tests.deviceplugin.audit.programs import asked
from tests.interposer import container
from tests.programs import command

MIB = 1 << 20
LIMIT = 1024 * MIB
CONTEXT = 300 * MIB
DESCRIPTION = """
[node]
name = audit-tests
[gpu 0]
count = 2
model = NVIDIA A100-SXM4-40GB
memory = 4GiB
context-memory = 300MiB
compute-capability = 8.0
"""


class Asked:
    """A process that answers each line with a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def read(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 30)[0], "no answer"
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=10)
        return line.strip()

    def begin(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def __call__(self, words: str) -> str:
        self.begin(words)
        return self.read()


class AuditNode:
    """The auditor and the node's containers."""

    def __init__(self, agent: Asked, box: container.Container, stack: contextlib.ExitStack) -> None:
        self.asked, self.box, self._stack = agent, box, stack

    def __call__(self, words: str) -> Any:
        return json.loads(self.asked(words))

    def audit(self, times: int = 2) -> Any:
        return [self("look") for _ in range(times)][-1]

    def failing(self, pod: str) -> str:
        """Return the stderr of a program in a pod's container that cannot create a context."""
        ended = self.box.run(command(asked.answers), {"TEST_POD": pod, "TEST_CONTAINER": "main"})
        assert ended.returncode != 0
        return ended.stderr

    def client(
        self,
        pod: str,
        *,
        preload: tuple[Path, ...] = (container.LIBRARY,),
        program: Callable[[], None] = asked.answers,
        keep: tuple[int, ...] = (),
    ) -> Asked:
        """Start a program with a context in a pod's container; without `preload`, it does not load the library.

        program: the questions that it answers. keep: descriptors to pass on.
        """
        box = container.Container(self.box.arbiter_directory, self.box.gpus, preload)
        environment = {"TEST_POD": pod, "TEST_CONTAINER": "main"} if pod else {}
        process = box.start(command(program), environment, keep=keep)
        self._stack.enter_context(container.finishing(process))
        made = Asked(process)
        assert made.read() == "ready"
        return made


def started(stack: contextlib.ExitStack, gpus: Path, module: str, *arguments: str | Path) -> Asked:
    """Start an agent in its own process, and wait until it is ready; it ends with the stack."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=simulated.environment(gpus),
        cwd=simulated.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(container.finishing(process))
    agent = Asked(process)
    agent.read()
    return agent


@pytest.fixture(scope="session")
def _library() -> None:
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)


@pytest.fixture
def start(
    request: pytest.FixtureRequest, _library: None, simulation: None, short_path: Path, tmp_path: Path
) -> Iterator[Callable[..., AuditNode]]:
    description = tmp_path / "node.ini"
    description.write_text(getattr(request, "param", DESCRIPTION))
    gpus = tmp_path / "gpus"
    simulated.command("create", description, gpus)
    with contextlib.ExitStack() as stack:

        def begin(*more: str, pods: dict[str, tuple[int, ...]] | None = None) -> AuditNode:
            pods_json = json.dumps(pods or {"trainer": (LIMIT, 0)})
            agent = started(stack, gpus, "tests.deviceplugin.audit_node", short_path, pods_json, *more)
            return AuditNode(agent, container.Container(short_path / "arbiter", gpus), stack)

        yield begin
