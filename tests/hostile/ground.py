"""A node of the lab with an honest pod on a GPU and attacking pods next to it, and observations of all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpushare import contract
from lab import gpushare, lab_layout, node_cgroup
from tests.e2e.observation import Observer, eventually
from tests.hostile.attacks import ATTACKS

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    *(f"tests/hostile/{name}.py" for name in ("attacks", "cuda", "neighbour")),
    "tests/deviceplugin/arbiter/attacker.py",
    "tests/deviceplugin/share_process.py",
)
RESOURCES = {"requests": {"cpu": "500m"}}
MOUNTED = "/programs"
MAX_SECONDS = 250.0  # the duration of an attack that is not stopped earlier
USERS: dict[str, dict[str, Any]] = {
    "root": {},
    "nobody": {"runAsUser": 65534, "runAsGroup": 65534, "capabilities": {"drop": ["ALL"]}},
}


@dataclasses.dataclass(frozen=True)
class Agent:
    """The agent's container: its restarts, and its processes' memory in bytes, now and at most."""

    restarts: int
    pids: frozenset[int]
    now_bytes: int
    most_bytes: int


@dataclasses.dataclass(frozen=True)
class Filled:
    """The memory that a new process of the neighbour found, and the time from its start to its end."""

    began: float
    ended: float
    bytes: int | None
    failed: str = ""


@dataclasses.dataclass(frozen=True)
class Said:
    """The neighbour's reports so far: the time and delay in microseconds of each kernel, and what its new processes
    found.
    """

    total_bytes: int
    late_us: tuple[tuple[float, tuple[int, ...]], ...]
    filled: tuple[Filled, ...]

    def delays(self, begin: float, end: float) -> list[int]:
        """Return the sorted delays of the kernels that completed in a window of the machine's clock."""
        return sorted(delay for at, late in self.late_us if begin <= at <= end for delay in late)

    def newcomers(self, begin: float, end: float) -> list[Filled]:
        """Return the new processes of that window."""
        return [newcomer for newcomer in self.filled if begin <= newcomer.began and newcomer.ended <= end]


class Ground:
    """The namespace of `user` in a lab with gpushare. All pods are on its first GPU."""

    def __init__(self, user: Observer, where: lab_layout.Layout) -> None:
        self.user, self._where = user, where
        self.gpu = user.gpunode().gpus[0]
        files = {path.replace("/", "."): (ROOT / path).read_text() for path in PROGRAMS}
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "programs"}, "data": files}
        user.apply(made)

    def pod(
        self,
        name: str,
        command: Sequence[str],
        *,
        request: float,
        memory: str,
        who: str = "root",
        attacks: bool = False,
    ) -> None:
        """Create a pod with the agent's image, which has an interpreter and the contract."""
        items = [{"key": path.replace("/", "."), "path": path} for path in PROGRAMS]
        container = {
            "name": "main",
            "image": gpushare.built_images().agent.name,
            "imagePullPolicy": "Never",
            "command": ["python", *command],
            "env": [{"name": "PYTHONPATH", "value": MOUNTED}],
            "securityContext": USERS[who],
            # CPU is limited separately, so effects of one pod on the other come from the GPU.
            "resources": {"limits": {"cpu": "500m"}, "requests": {"cpu": "10m"}} if attacks else RESOURCES,
            "volumeMounts": [{"name": "programs", "mountPath": MOUNTED}, {"name": "scratch", "mountPath": "/scratch"}],
        }
        annotations = {
            contract.REQUEST: str(request),
            contract.MEMORY: memory,
            contract.UUID: self.gpu.uuid,
        }
        spec = {
            "containers": [container],
            "volumes": [
                {"name": "programs", "configMap": {"name": "programs", "items": items}},
                {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            ],
            "terminationGracePeriodSeconds": 0,
        }
        metadata = {"name": name, "annotations": annotations}
        path = f"/api/v1/namespaces/{self.user.namespace}/pods"
        self.user.access.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def neighbour(self, *, request: float, memory: str) -> None:
        """Create the honest pod."""
        self.pod("neighbour", ["-m", "tests.hostile.neighbour", "both"], request=request, memory=memory)

    def attacker(self, name: str, who: str, *, request: float, memory: str) -> None:
        """Create an attacking pod, which is idle at first."""
        self.pod(name, ["-c", "import signal; signal.pause()"], request=request, memory=memory, who=who, attacks=True)

    def wait(self, *attackers: str) -> None:
        """Wait until these run, and the neighbour works."""
        for name in ("neighbour", *attackers):
            self.user.running(name)
        eventually(lambda: self.said().filled, what="the neighbour at work")

    def log(self, name: str) -> str:
        return self.user.access.text(f"/api/v1/namespaces/{self.user.namespace}/pods/{name}/log")

    def said(self) -> Said:
        """Return the neighbour's reports so far."""
        lines = [json.loads(line) for line in self.log("neighbour").splitlines()]
        late = tuple((line["at"], tuple(line["late_us"])) for line in lines if "at" in line)
        filled = tuple(
            Filled(line["filling"], line["filled"], line.get("filled_bytes"), line.get("failed", ""))
            for line in lines
            if "filling" in line
        )
        return Said(next((line["total_bytes"] for line in lines if "total_bytes" in line), 0), late, filled)

    @contextlib.contextmanager
    def attacking_with(self, pods: Sequence[str], names: Sequence[str], processes: int = 1) -> Iterator[Attacking]:
        """Run each attack in each of the pods while the context lasts."""
        access_ = self.user.access
        base = [
            str(access_.kubectl_program),
            f"--kubeconfig={access_.kubeconfig}",
            f"--namespace={self.user.namespace}",
        ]
        attack = ["--", "python", "-m", "tests.hostile.attacks"]
        # Attacks that bypass the library exec another program, so they run separately.
        alone = any(ATTACKS[name].past for name in names if name in ATTACKS)
        attacks = [name for name in names for _ in range(processes)]
        running = [
            (
                subprocess.Popen(
                    [*base, "exec", pod, *attack, ",".join(what), str(MAX_SECONDS)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                ),
                len(what),
            )
            for pod in pods
            for what in ([[name] for name in attacks] if alone else [attacks])
        ]
        attacking = Attacking(running)
        try:
            attacking.wait_for_start()
            yield attacking
        finally:
            for pod in pods:
                self._tell_to_end(pod)
            attacking.end()

    def agent(self) -> Agent:
        """Return the state of the agent's container."""
        (pod,) = gpushare.pods(self.user.access, "agent")
        (status,) = pod["status"]["containerStatuses"]
        pids = node_cgroup.members_below(self._where.cgroup, status["containerID"].rpartition("/")[2])
        sizes = [_sizes(pid) for pid in pids]
        now, most = (sum(size[which] for size in sizes) for which in (0, 1))
        return Agent(status["restartCount"], frozenset(pids), now, most)

    def audit(self) -> dict[str, Any]:
        """Return the node's last audit."""
        page = gpushare.agent_page(self.user.access, self._where.nodes[0], contract.AUDIT_PATH)
        document: dict[str, Any] = json.loads(page)
        return document

    def told(self, pod: str) -> frozenset[str]:
        """Return the audit's complaints about a pod: states of its processes, and `beyond`."""
        audit = self.audit()
        states = {process["state"] for gpu in audit["gpus"] for process in gpu["processes"] if process["pod"] == pod}
        beyond = {"beyond" for share in audit["shares"] if share["pod"] == pod and share["usedPercent"] is not None}
        return frozenset(states - {"limited", "unjudged"} | beyond)

    def status_seconds(self) -> float:
        """Make another GPU of the node disappear and return; measure the seconds until the GPUNode reports both."""
        began = time.monotonic()
        index = max(gpu.index for gpu in self.user.gpunode().gpus if gpu.healthy)
        directory = str(self._where.gpus(self._where.nodes[0]))
        for command, healthy in (
            (("fail", directory, str(index), "lost"), False),
            (("heal", directory, str(index)), True),
        ):
            subprocess.run([str(gpushare.DRIVER / "simgpu"), *command], check=True, capture_output=True)
            eventually(lambda healthy=healthy: self._healthy(index) is healthy, seconds=60, what=f"{command[0]} told")  # type: ignore[misc]
        return time.monotonic() - began

    def _healthy(self, index: int) -> bool:
        return next(gpu.healthy for gpu in self.user.gpunode().gpus if gpu.index == index)

    def _tell_to_end(self, pod: str) -> None:
        (status,) = (self.user.pod(pod) or {})["status"]["containerStatuses"]
        for pid in node_cgroup.members_below(self._where.cgroup, status["containerID"].rpartition("/")[2]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGALRM)  # the first process of a container does not receive SIGTERM

    def restart(self, pod: str) -> None:
        """Kill a pod's container; return when the kubelet has restarted it."""
        before = self._restarts(pod)
        gpushare.kill(self._where, self.user.pod(pod) or {})
        eventually(lambda: self._restarts(pod) > before, seconds=60, what=f"{pod} restarted")
        self.user.running(pod)

    def _restarts(self, pod: str) -> int:
        statuses = (self.user.pod(pod) or {}).get("status", {}).get("containerStatuses") or [{}]
        return int(statuses[0].get("restartCount", 0)) if statuses[0].get("ready") else -1

    def third(self, *, request: float) -> float:
        """Start another pod on the same GPU; measure the seconds until it has filled its memory."""
        began = time.monotonic()
        self.pod("third", ["-m", "tests.hostile.neighbour", "both"], request=request, memory="1Gi")
        self.user.running("third")
        told = eventually(
            lambda: re.search(r'"filled_bytes":(\d+)', self.log("third")),
            what="the third pod's memory filled",
            seconds=90,
        )
        assert int(told[1]) == 1 << 30, told
        took = time.monotonic() - began
        self.user.access.delete(f"/api/v1/namespaces/{self.user.namespace}/pods/third")
        return took


class Attacking:
    """Running programs of `tests/hostile/attacks.py`."""

    def __init__(self, running: Sequence[tuple[subprocess.Popen[str], int]]) -> None:
        self._running = running
        self.won: list[str] = []
        self.rounds: list[int] = []

    def wait_for_start(self) -> None:
        """Wait until all have begun; raise AssertionError for those that did not."""
        for process, count in self._running:
            assert process.stdout is not None
            for _ in range(count):
                said = process.stdout.readline()
                if said != "at it\n":
                    process.kill()  # other attacks of it may be running
                    _, problem = process.communicate()
                    raise AssertionError(f"{process.args!r}: {said}{problem}")

    def end(self) -> None:
        """Wait for their ends, and collect their results."""
        for process, _ in self._running:
            text, _ = process.communicate(timeout=120)
            for line in text.splitlines():
                if line.startswith("{"):
                    report = json.loads(line)
                    self.won += report["won"]
                    self.rounds.append(report["rounds"])


def _sizes(pid: int) -> tuple[int, int]:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    sizes = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", status, re.MULTILINE))
    return int(sizes.get("VmRSS", 0)) << 10, int(sizes.get("VmHWM", 0)) << 10
