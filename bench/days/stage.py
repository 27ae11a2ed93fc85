"""The setting of a bad day: pods that are created and deleted during it, and the checks afterwards."""

from __future__ import annotations

import argparse
import concurrent.futures
import http
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from burst import calls, webhooks
from steady import ledger_watch

from days.proxy import Proxy
from gpushare import codec, contract, ledger
from lab import lab_layout

if TYPE_CHECKING:
    from days.table import Day

BEFORE_SECONDS = 5.0
EVERY_SECONDS = 0.5  # a pod is created each time, and an older one deleted every second time
POLL_SECONDS = 0.25
RECOVERY_SECONDS = 180.0
STANDING = 10
AT_ONCE = 64


@dataclass
class Row:
    """The result of a day. `after`: seconds from its end until a condition held."""

    name: str
    seconds: float = 0.0
    admitted: int = 0
    gated: int = 0
    slowest_seconds: float = 0.0
    refused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    after: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Stage:
    """The cluster on which a day acts."""

    def __init__(
        self,
        server: calls.Server,
        lab: lab_layout.Layout,
        namespace: str,
        selector: dict[str, str],
        replicas: list[webhooks.Replica],
        proxy: Proxy,
        options: argparse.Namespace,
    ) -> None:
        self.server, self.lab, self.replicas, self.proxy, self.options = server, lab, replicas, proxy, options
        self.namespace = namespace
        self.notes: list[str] = []
        self._selector = selector
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._numbers = itertools.count()
        self._row = Row("")

    def run(self, name: str, day: Day) -> Row:
        row = self._row = Row(name, notes=self.notes)
        self._wait(self._is_called, "the webhook is not called")
        seen = ledger_watch.LedgerWatch(self.server, self.lab.etcd / "client.sock")
        seen.start()
        for _ in range(STANDING):
            self._create()
        self._wait(self._is_in_order, "pods that were placed on a good day are not in the ledger")
        time.sleep(BEFORE_SECONDS)
        row.admitted = row.gated = 0
        row.slowest_seconds = 0.0
        began = time.monotonic()
        with day.during(self):
            self._live(day.seconds(self.options))
        row.seconds = time.monotonic() - began
        row.notes.append(f"{sum(not _is_placed(pod) for pod in self.pods())} pods waited at the end")
        self._recover()
        row.lost += self.differences()
        seen.stop()
        row.broken = seen.broken
        return row

    def _live(self, seconds: float) -> None:
        """Create and delete pods at a fixed rate, without waiting for earlier calls."""
        ends = time.monotonic() + seconds
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for turn in itertools.count():
                if time.monotonic() >= ends:
                    break
                pool.submit(self._create)
                if turn % 2:
                    pool.submit(self._delete_oldest)
                time.sleep(EVERY_SECONDS)

    def _recover(self) -> None:
        began = time.monotonic()
        waiting = {pod["metadata"]["uid"] for pod in self.pods() if not _is_placed(pod)}
        waits: dict[str, Callable[[], bool]] = {
            "placed at once": lambda: self._create() == "placed",
            "ready": lambda: all(replica.ready() for replica in self.replicas),
            "all placed": lambda: (
                not any(pod["metadata"]["uid"] in waiting and not _is_placed(pod) for pod in self.pods())
            ),
            "in order": self._is_in_order,
        }
        while waits and time.monotonic() - began < RECOVERY_SECONDS:
            for what in [*waits]:
                if waits[what]():
                    self._row.after[what] = time.monotonic() - began
                    del waits[what]
            time.sleep(POLL_SECONDS)
        if "in order" in waits:
            self._row.lost += self.differences()

    def fill(self, count: int) -> None:
        """Create `count` more pods and wait until the ledger has all of them."""
        calls.all_well(calls.send(self.server, [self._pod() for _ in range(count)]))
        webhooks.until(self._is_in_order, "some pods are not in the ledger", seconds=RECOVERY_SECONDS)
        self.notes.append(f"{len(self.pods())} pods")

    def delete_all(self) -> None:
        began = time.monotonic()
        now = {"gracePeriodSeconds": 0}
        names = [pod["metadata"]["name"] for pod in self.pods()]
        answers = calls.send(
            self.server, [calls.call("DELETE", f"{self._path}/{name}", now) for name in names], at_once=AT_ONCE
        )
        calls.all_well([answer for answer in answers if answer.status != http.HTTPStatus.NOT_FOUND])
        self.notes.append(f"deleting them took {time.monotonic() - began:.0f} s")

    def _pod(self) -> calls.Call:
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"pod-{next(self._numbers):05}",
                "annotations": {contract.REQUEST: "10%", contract.MEMORY: "4Gi"},
            },
            "spec": {"nodeSelector": self._selector, "containers": [{"name": "main", "image": "localhost/none"}]},
        }
        return calls.call("POST", self._path, manifest)

    def _create(self) -> str:
        answer = calls.send(self.server, [self._pod()], at_once=1)[0]
        self._row.slowest_seconds = max(self._row.slowest_seconds, answer.seconds)
        body = answer.json()
        if answer.status != 201:
            self._row.refused.append(str(body.get("message")))
            return "refused"
        self._row.admitted += 1
        self._row.gated += not _is_placed(body)
        return "placed" if _is_placed(body) else "gated"

    def _delete_oldest(self) -> None:
        names = sorted(pod["metadata"]["name"] for pod in self.pods())
        if names:
            self.delete(names[0])

    def delete(self, name: str) -> None:
        now = {"gracePeriodSeconds": 0}  # no kubelet would confirm the deletion
        calls.send(self.server, [calls.call("DELETE", f"{self._path}/{name}", now)], at_once=1)

    def pods(self) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = calls.ask(self.server, calls.call("GET", self._path))["items"]
        return pods

    def differences(self) -> list[str]:
        """Return the shares that only the ledger or only a pod has, on all nodes: the cluster has no other pods."""
        claimed = {
            pod["metadata"]["annotations"][contract.ALLOCATION]: (pod["metadata"]["uid"], pod["metadata"]["name"])
            for pod in self.pods()
            if _is_placed(pod)
        }
        held: dict[str, tuple[str, str]] = {}
        problems: list[str] = []
        for item in calls.ask(self.server, calls.call("GET", contract.GPUNODE_PATH))["items"]:
            node = codec.read(item)
            problems += [*ledger.violations(node), *node.problems]
            held |= {
                entry.id: (entry.pod.uid, entry.pod.name)
                for entry in node.allocations
                if not entry.is_backfill_reservation
            }
        problems += [
            f"{pod} has the share {id_}, but the ledger does not"
            for id_, (_, pod) in claimed.items()
            if id_ not in held
        ]
        problems += [
            f"the ledger has {id_} for {pod}, but the pod does not"
            for id_, (uid, pod) in held.items()
            if claimed.get(id_, ("",))[0] != uid
        ]
        return problems

    def _is_in_order(self) -> bool:
        return not self.differences()

    def _is_called(self) -> bool:
        return self._create() == "placed"

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        webhooks.until(condition, otherwise)


def _is_placed(pod: dict[str, Any]) -> bool:
    return contract.ALLOCATION in (pod["metadata"].get("annotations") or {})
