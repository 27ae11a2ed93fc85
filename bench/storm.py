"""A storm on a node of the lab: how the kubelet handles share pods while everything changes at random.

Pods with shares are created, deleted and resized; some end by themselves, some fail repeatedly. GPUs fail and recover;
agent and kubelet are restarted. A seed determines all events. The benchmark counts pods that the kubelet rejected, and
GPUs that any stored version of the ledger over-commits. A rejected pod is lost: only an owner recreates it. Rejections
while the agent was away count separately, because the kubelet has no plugin to ask and updates the scheduler only with
its next status. So do those between a kubelet's start and the agent's registration, which takes a few hundred
milliseconds.

Run: `python bench/storm.py [--seconds S] [--seed N] [--lab DIRECTORY]`. Prints its findings as text and as a JSON
object; exits with 1 if a pod was rejected while the agent ran, a GPU was over-committed, or something was unhealthy at
the end.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from burst import calls
from steady import fates, kubelet_log, ledger_watch

from deviceplugin.state import advertisement
from gpushare import contract
from lab import access, build, cluster, component, daemon_process, gpushare, kubelet, lab_errors, lab_layout

MAX_PODS = 12
MAX_PAUSE_SECONDS = 1.0
WELL_SECONDS = 120.0
POLL_SECONDS = 0.3
AFTER_KILL, AFTER_STOP = "after the agent was killed", "after the agent was stopped"
BEFORE_BACK = "before the agent had registered with a new kubelet"
REQUESTS = ("0", "0.05", "0.1", "0.25", "0.33", "0.5", "1")
SIZES = ("512Mi", "1Gi", "4Gi", "10Gi", "20Gi")
COMMANDS: Mapping[str, str] = {
    "stays": "trap 'exit 0' TERM; sleep infinity & wait",
    "computes": "exec gpushare-probe --allocate 256MiB --seconds 3600 --duration-us 5000 > /dev/null",
    "ends": "sleep 4",
    "fails": "sleep 1; exit 1",
}


class Storm:
    """Random events on one node. `counts` has the number of each kind of event."""

    def __init__(self, administrator: access.Access, seen: fates.Fates, seed: int) -> None:
        assert administrator.lab is not None
        self._administrator, self._lab = administrator, administrator.lab
        self._seen = seen
        self._chance = random.Random(seed)
        self._node = self._lab.nodes[0]
        self._path = f"/api/v1/namespaces/{seen.namespace}/pods"
        self._sick: set[int] = set()
        self.ended: list[float] = []  # times at which agents were stopped
        self.killed: list[float] = []  # times at which agents were killed
        self._gpus = len(list(self._lab.gpus(self._node).glob("gpu*")))
        self.counts: collections.Counter[str] = collections.Counter()
        # Each round runs these once, in random order.
        self._deck: tuple[Callable[[], object], ...] = (
            *(self._create,) * 16,
            *(self._delete,) * 8,
            *(self._resize,) * 8,
            *(self._lose_gpu,) * 2,
            *(self._find_gpu,) * 2,
            self._restart_agent,
            self._restart_kubelet,
        )

    def blow(self, seconds: float, most_pause_seconds: float) -> None:
        """Run events for this long, but at least one round."""
        end = time.monotonic() + seconds
        while True:
            for act in self._chance.sample(self._deck, len(self._deck)):
                act()
                time.sleep(self._chance.uniform(0, most_pause_seconds))
            if time.monotonic() >= end:
                return

    def calm(self) -> list[str]:
        """Heal all GPUs, wait until they are healthy and every placed pod runs, and return the remaining problems."""
        while self._sick:
            self._find_gpu()
        component.start([self._kubelet()], self._lab)
        gpushare.ready(self._lab, self._administrator)
        deadline = time.monotonic() + WELL_SECONDS
        while (stuck := self._stuck()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return stuck

    def _stuck(self) -> list[str]:
        problems = [f"GPU {gpu['index']} is not healthy: {gpu['healthReason']}" for gpu in self._unhealthy()]
        for name, pod in list(self._seen.now.items()):
            metadata, status = pod["metadata"], pod.get("status", {})
            placed = contract.ALLOCATION in metadata.get("annotations", {})
            waits = status.get("phase") == "Pending" or "deletionTimestamp" in metadata
            if placed and waits:
                problems.append(f"{name} is {status.get('phase')}: {status.get('conditions')}")
        return problems

    def _unhealthy(self) -> list[dict[str, Any]]:
        gpunode = self._administrator.read(f"{contract.GPUNODE_PATH}/{self._node.name}")
        return [gpu for gpu in gpunode["status"]["gpus"] if not gpu["healthy"]]

    def _send(self, method: str, name: str = "", body: object = None, kind: str = calls.JSON) -> bool:
        """Send a call and return whether it succeeded; 404 is allowed, because a pod may be gone by then."""
        path = f"{self._path}/{name}" if name else self._path
        (answer,) = calls.send(self._seen.server, [calls.call(method, path, body, kind)], at_once=1)
        if answer.status not in {200, 201, 202, 404}:
            raise SystemExit(f"{method} {path}: {answer.status} {answer.body.decode()[:500]}")
        return answer.status < 300

    def _there(self) -> list[str]:
        return sorted(name for name, pod in self._seen.now.items() if "deletionTimestamp" not in pod["metadata"])

    def _create(self) -> None:
        if len(self._seen.now) >= MAX_PODS:
            self._delete()
        self.counts["pods created"] += 1
        kind = self._chance.choice(sorted(COMMANDS))
        container = {
            "name": "main",
            "image": "gpushare/sample:0.1",
            "command": ["/bin/sh", "-c", COMMANDS[kind]],
        }
        metadata = {"name": f"{kind}-{self.counts['pods created']}", "annotations": self._resize_request()}
        restarts = "Never" if kind == "ends" else "Always"
        spec = {"containers": [container], "restartPolicy": restarts, "terminationGracePeriodSeconds": 1}
        self._send("POST", body={"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def _resize_request(self) -> dict[str, str]:
        return {contract.REQUEST: self._chance.choice(REQUESTS), contract.MEMORY: self._chance.choice(SIZES)}

    def _delete(self) -> None:
        there = self._there()
        grace = self._chance.choice((0, 1, 1))
        if there and self._send("DELETE", f"{self._chance.choice(there)}?gracePeriodSeconds={grace}"):
            self.counts["pods deleted"] += 1

    def _resize(self) -> None:
        placed = [
            name
            for name in self._there()
            if contract.ALLOCATION in self._seen.now[name]["metadata"].get("annotations", {})
        ]
        change = {"metadata": {"annotations": self._resize_request()}}
        if placed and self._send("PATCH", self._chance.choice(placed), change, calls.MERGE_PATCH):
            self.counts["resizes asked"] += 1

    def _lose_gpu(self) -> None:
        well = sorted(set(range(self._gpus)) - self._sick)
        if len(well) > 1:
            self._sick.add(which := self._chance.choice(well))
            self._simulate("fail", which, "lost")
            self.counts["GPUs lost"] += 1

    def _find_gpu(self) -> None:
        if self._sick:
            self._sick.remove(which := self._chance.choice(sorted(self._sick)))
            self._simulate("heal", which)

    def _simulate(self, verb: str, which: int, *more: str) -> None:
        command = [str(gpushare.DRIVER / "simgpu"), verb, str(self._lab.gpus(self._node)), str(which), *more]
        subprocess.run(command, check=True, capture_output=True)

    def _restart_agent(self) -> None:
        """Replace the agent's pod: a container that is killed repeatedly would wait longer and longer to restart."""
        for pod in gpushare.pods(self._administrator, "agent"):
            kills = self._chance.choice((True, False))
            (self.killed if kills else self.ended).append(time.time())
            if kills:
                gpushare.kill(self._lab, pod)
            arguments = ("delete", "pod", pod["metadata"]["name"], *gpushare.SCOPE, "--wait=false")
            with contextlib.suppress(lab_errors.LabError):
                self._administrator.kubectl(*arguments, *(gpushare.AT_ONCE if kills else ()))
            self.counts["agents killed" if kills else "agents ended"] += 1

    def _restart_kubelet(self) -> None:
        pid = daemon_process.pid_of(self._kubelet().process.name, self._lab.processes)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            while daemon_process.pid_of(self._kubelet().process.name, self._lab.processes) is not None:
                time.sleep(component.POLL_SECONDS)
        time.sleep(self._chance.uniform(0, MAX_PAUSE_SECONDS))
        component.start([self._kubelet()], self._lab)
        self.counts["kubelets killed"] += 1

    def _kubelet(self) -> component.Component:
        return kubelet.build(self._lab, self._node, build.ensure())


def resized(administrator: access.Access) -> int:
    """Return how many shares were resized, by the webhook's own metric."""
    pages = [gpushare.page(administrator, pod["metadata"]["name"]) for pod in gpushare.pods(administrator, "webhook")]
    lines = [line for page in pages for line in page.splitlines() if line.startswith("gpushare_placer_resized_total ")]
    return int(sum(float(line.split()[-1]) for line in lines))


def measured(administrator: access.Access, seed: int, *, seconds: float, most_pause_seconds: float) -> dict[str, Any]:
    """Create the load, wait until the cluster is idle, and count."""
    assert administrator.lab is not None
    keys = administrator.lab.certificates
    server = calls.Server(administrator.server, keys / "ca.crt", keys / "admin.crt", keys / "admin.key")
    with administrator.namespace("storm") as namespace:
        seen, ledger = (
            fates.Fates(server, namespace),
            ledger_watch.LedgerWatch(server, administrator.lab.etcd / "client.sock"),
        )
        log = administrator.lab.logs / f"{administrator.lab.nodes[0].name}.kubelet"
        known = log.stat().st_size
        seen.start()
        ledger.start()
        before, began = resized(administrator), time.monotonic()
        storm = Storm(administrator, seen, seed)
        storm.blow(seconds, most_pause_seconds)
        blown = time.monotonic() - began
        stuck = storm.calm()
        seen.stop()
        ledger.stop()
        document = {
            "seed": seed,
            "seconds": round(blown),
            **storm.counts,
            "resized": resized(administrator) - before,
            "pods placed": len(seen.placed),
            "pods ran": len(seen.ran),
            "versions": ledger.versions,
            "over-committed": len(ledger.broken),
            "stuck": stuck,
        }
    lines = log.read_bytes()[known:].decode(errors="replace").splitlines()
    refused = [refusal for refusal in kubelet_log.refusals(lines) if refusal.pod.startswith(f"{namespace}/")]
    killed, ended = absences(storm.killed, lines), absences(storm.ended, lines)
    away = [*killed, *ended]
    late = [absence for absence in absences(kubelet_log.starts(lines), lines) if not _is_in(absence[0], away)]
    spans = {AFTER_KILL: killed, AFTER_STOP: ended, BEFORE_BACK: late}
    causes = [next((cause for cause, when in spans.items() if _is_in(refusal.at, when)), "") for refusal in refused]
    sentences = [
        f"{time.strftime('%H:%M:%S', time.localtime(refusal.at))} {refusal.pod} ({cause}): "
        f"{refusal.reason}: {refusal.message}"
        for refusal, cause in zip(refused, causes, strict=True)
    ]
    return document | {
        "longest without an agent, seconds": _longest(away),
        "longest from a kubelet's start to the agent, seconds": _longest(late),
        "refused": causes.count(""),
        **{f"refused {cause}": causes.count(cause) for cause in spans},
        "sentences": [*sentences, *ledger.broken[:5]],
    }


def absences(since: Sequence[float], lines: Sequence[str]) -> list[tuple[float, float]]:
    """Return the spans from each moment until the kubelet has an agent's devices. `lines` are of the kubelet's log."""
    spans = []
    for moment in since:
        back = [
            min((at for at in kubelet_log.listings(lines, name) if at > moment), default=float("inf"))
            for name in advertisement.COUNTERS
        ]
        spans.append((moment, max(back)))
    return spans


def _is_in(at: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(begin <= at <= end for begin, end in spans)


def _longest(spans: Sequence[tuple[float, float]]) -> float:
    return round(max((end - begin for begin, end in spans), default=0.0), 2)


@contextlib.contextmanager
def installed(directory: Path | None) -> Iterator[access.Access]:
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp"))) / "lab"
            stack.callback(cluster.down, directory)
            cluster.up(directory, node_count=1, owner=os.getpid())
        where = lab_layout.load(directory)
        administrator = cluster.access_to(where)
        gpushare.install(where, administrator)
        yield administrator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="(%(default)s)")
    pause = "maximum seconds between two events (%(default)s)"
    parser.add_argument("--pause", type=float, default=MAX_PAUSE_SECONDS, help=pause)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="(default: random)")
    parser.add_argument("--lab", type=Path, help="an existing lab (default: a new one)")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with installed(options.lab) as administrator:
        document = measured(administrator, options.seed, seconds=options.seconds, most_pause_seconds=options.pause)
    for name, value in document.items():
        lines = value if isinstance(value, list) else [f"{name}: {value}"]
        print("\n".join(lines), flush=True) if lines else None
    print(json.dumps(document))
    if document["refused"] or document["over-committed"] or document["stuck"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
