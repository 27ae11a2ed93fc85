"""The table of faults. Each hits a cluster that continues to admit pods, and ends when the cluster is healthy."""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from burst import calls

from gpushare import contract
from lab import access, build, component, control_plane, daemon_process, gpushare, lab_errors, lab_layout
from steady import ledger_watch

DEPLOYMENT = f"deployment/{gpushare.WEBHOOK}"
REPLICAS = 2
WELL_SECONDS = 240.0
POLL_SECONDS = 0.3
IN_FLIGHT_SECONDS = 1.0
ROTATION_SECONDS = 15


@dataclass
class Stage:
    """The cluster in trouble; `notes` are for the table."""

    lab: lab_layout.Layout
    administrator: access.Access
    server: calls.Server
    kills: int
    notes: list[str] = field(default_factory=list)
    seen: ledger_watch.LedgerWatch | None = None

    def kubectl(self, *arguments: str) -> str:
        return self.administrator.kubectl(*arguments, seconds=WELL_SECONDS + 10)

    def replicas(self) -> list[dict[str, Any]]:
        """Return all pods of the webhook, including terminating ones."""
        return sorted(gpushare.listed(self.administrator, "webhook"), key=_name)

    def until(self, condition: Callable[[], object], what: str, *, seconds: float = WELL_SECONDS) -> float:
        """Wait for a condition, and return how long it took."""
        began = time.monotonic()
        while True:
            try:
                if condition():
                    return time.monotonic() - began
            except (lab_errors.LabError, OSError, SystemExit):
                pass  # the API server is down
            if time.monotonic() - began > seconds:
                raise SystemExit(f"{what}: not in {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def well(self, *, without: Collection[str] = ()) -> None:
        """Wait until two replicas are ready and no other pod remains. `without`: pods that have to be gone."""

        def is_well() -> bool:
            pods = self.replicas()
            return len(pods) == REPLICAS and all(_ready(pod) and _name(pod) not in without for pod in pods)

        self.until(is_well, "two ready replicas")

    def restart(self) -> None:
        before = [*map(_name, self.replicas())]
        self.kubectl("rollout", "restart", *gpushare.SCOPE, DEPLOYMENT)
        self.well(without=before)


@dataclass(frozen=True)
class Trouble:
    act: Callable[[Stage], None]
    before: Callable[[Stage], None] = lambda _: None
    nodes: int = 1
    shares: bool = True  # whether the pods request shares


def _name(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def _ready(pod: Mapping[str, Any]) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in pod.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def nothing(_: Stage) -> None:
    time.sleep(20)


def rolling_restart(stage: Stage) -> None:
    stage.restart()


def kill(stage: Stage) -> None:
    """Kill the replicas one after the other with SIGKILL; never one pod twice, because its restart would back off."""
    for number in range(stage.kills):
        victim = stage.replicas()[number % REPLICAS]
        name = _name(victim)
        was_placer = _placer(stage).startswith(name)
        killed = time.monotonic()
        gpushare.kill(stage.lab, victim)

        def is_back(name: str = name) -> bool:
            (replica,) = [pod for pod in stage.replicas() if _name(pod) == name]
            return replica["status"]["containerStatuses"][0]["restartCount"] > 0 and _ready(replica)

        stage.until(is_back, f"{name} again")
        if was_placer:
            _note_failover(stage, killed)
        if number % REPLICAS:
            stage.restart()


def _placer(stage: Stage) -> str:
    path = "-o=jsonpath={.spec.holderIdentity}"
    return stage.kubectl("get", "lease", *gpushare.SCOPE, contract.PLACER_LEASE, path)


def _note_failover(stage: Stage, killed: float) -> None:
    """Note how long it takes until shares are released again and gated pods are placed."""
    seen = stage.seen
    if seen is not None:
        # Writes in flight at the kill do not come from the next placer.
        after = killed + IN_FLIGHT_SECONDS
        stage.until(lambda: seen.released and seen.released[-1] > after, "a new placer")
        first = min(at for at in seen.released if at > after)
        stage.notes.append(f"placer killed: shares were released again {first - killed:.0f} s later")


def quick_rotation(stage: Stage) -> None:
    stage.kubectl("set", "env", *gpushare.SCOPE, DEPLOYMENT, f"GPUSHARE_WEBHOOK_ROTATION_SECONDS={ROTATION_SECONDS}")
    stage.kubectl("rollout", "status", *gpushare.SCOPE, DEPLOYMENT)
    stage.well()


def rotation(stage: Stage) -> None:
    """Rotate the certificates as an administrator would."""
    before = _trusted(stage)
    secret = f"secret/{contract.CERTIFICATE_SECRET}"
    stage.kubectl("annotate", *gpushare.SCOPE, secret, f"{contract.ROTATE}=now")
    steps: list[int] = []

    def is_done() -> bool:
        now = _trusted(stage)
        if not steps or steps[-1] != now.count("BEGIN"):
            steps.append(now.count("BEGIN"))
        return steps[-1] == 1 and now != before

    seconds = stage.until(is_done, "a new authority alone")
    stage.notes.append(f"authorities trusted: {steps}, {seconds:.0f} s")


def _trusted(stage: Stage) -> str:
    path = "{.webhooks[0].clientConfig.caBundle}"
    text = stage.kubectl("get", "mutatingwebhookconfiguration", contract.WEBHOOK_CONFIGURATION, f"-o=jsonpath={path}")
    return base64.b64decode(text).decode()


def api_server_restart(stage: Stage) -> None:
    _api_server(stage, 5.0)


def api_server_kill(stage: Stage) -> None:
    _api_server(stage, 0.0)


def _api_server(stage: Stage, patience_seconds: float) -> None:
    pid = daemon_process.pid_of("kube-apiserver", stage.lab.processes)
    if pid is None:
        raise SystemExit("there is no API server")
    if patience_seconds:
        daemon_process.stop([("kube-apiserver", patience_seconds)], stage.lab.processes)
    else:
        os.kill(pid, signal.SIGKILL)
        stage.until(lambda: daemon_process.pid_of("kube-apiserver", stage.lab.processes) is None, "its end")
    began = time.monotonic()
    started = control_plane.api_server(stage.lab, build.ensure())
    component.start([started], stage.lab)
    component.wait([started], stage.lab, WELL_SECONDS)
    stage.notes.append(f"away for {time.monotonic() - began:.0f} s")
    time.sleep(5)
    stage.well()


def drain(stage: Stage) -> None:
    """Drain each node in turn. The second one has both replicas, and their budget allows one eviction at a time."""
    for node in stage.lab.nodes:
        places = [pod["spec"].get("nodeName") for pod in stage.replicas()]
        stage.notes.append(f"{places.count(node.name)} of {len(places)} on {node.name} before its drain")
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={WELL_SECONDS:.0f}s")
        stage.kubectl("drain", node.name, *flags)
        stage.well()
        stage.kubectl("uncordon", node.name)


def down(stage: Stage) -> None:
    """Remove all replicas. Pods that request a share are rejected with a message that names the webhook."""
    asked = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "wants-a-share", "annotations": {contract.REQUEST: "0.5"}},
        "spec": {"containers": [{"name": "main", "image": "localhost/none"}]},
    }
    with gpushare.without_webhook(stage.lab, stage.administrator):
        refused = calls.send(
            stage.server, [calls.call("POST", "/api/v1/namespaces/default/pods", asked)] * 20, at_once=1
        )
        words = {str(answer.json()["message"]) for answer in refused}
        if {answer.status for answer in refused} != {500} or not all(contract.WEBHOOK_NAME in text for text in words):
            raise SystemExit(f"a pod that asks for a share was not refused with the expected message: {words}")
        stage.notes.append(f"{len(refused)} that ask for a share refused: {sorted(words)[0]}")
        time.sleep(10)


TROUBLES: Mapping[str, Trouble] = {
    "nothing": Trouble(nothing),
    "rolling restart": Trouble(rolling_restart),
    "kill -9 of a replica": Trouble(kill),
    "certificate rotation": Trouble(rotation, before=quick_rotation),
    "API server restart": Trouble(api_server_restart),
    "API server kill -9": Trouble(api_server_kill),
    "node drain": Trouble(drain, nodes=2),
    "webhook wholly down": Trouble(down, shares=False),
}
