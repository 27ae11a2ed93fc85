"""Admission rate of a burst of pods on a real API server, without a webhook, with a trivial one and with gpushare's.

The floor has no webhook. The "constant" webhook answers at once with the same response, which is the limit of any
webhook. gpushare's runs with one and two replicas. The cluster has 500 hand-made nodes of 8 GPUs; 1,000 pods request
shares, with 32 calls in flight. The kinds of burst take turns because the machine is shared: compare them with each
other, not with another day. After each burst all pods must be accounted for, ledger and pods must agree, and no version
of any GPUNode may be over-committed. Prints a table, then one JSON object a line per figure.

Run: `python bench/admission.py [--pods N] [--nodes N] [--rounds N]`; it takes some minutes.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burst import calls, constant, made, truth, webhooks

from gpushare import contract
from lab import access, cluster, daemon_process

REPOSITORY = Path(__file__).resolve().parents[1]
BASE = REPOSITORY / "config" / "base"
INSTALLED = ("namespace", "crd", "rbac", "certificates")  # always installed
ADMISSION_PARTS = ("policy", "admission")  # on the path of each pod; removed for the floor
CONSTANT = "constant"
NODE = "gpu-node-0000"  # the first node
# For each kind of burst: running replicas, and how many of them the API server calls.
KINDS: Mapping[str, tuple[int, int]] = {
    "floor": (0, 0),
    CONSTANT: (0, 0),
    "1 replica": (1, 1),
    "2 replicas": (2, 2),
    "2 (1 asked)": (2, 1),
}
SETTLE_SECONDS = 120.0
MIN_PART_OF_FLOOR = 0.5
MAX_OWN_MS = 10.0
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Burst:
    """One burst. `reviews` holds the webhook's own (total, waiting for the ledger), in seconds."""

    seconds: float
    creates: tuple[float, ...]
    reviews: tuple[tuple[float, float], ...]
    cpu_ms: Mapping[str, float]  # per pod, by process
    load: float
    conflicts: float = 0.0
    confirming: float = 0.0  # ledger writes with which the placer confirms allocations
    settled_seconds: float = 0.0
    verdict: truth.Found | None = None


class Bench:
    def __init__(self, administrator: access.Access, scratch: Path, options: argparse.Namespace) -> None:
        assert administrator.lab is not None
        self.administrator, self.lab, self.scratch, self.options = administrator, administrator.lab, scratch, options
        keys = self.lab.certificates
        self.server = calls.Server(administrator.server, keys / "ca.crt", keys / "admin.crt", keys / "admin.key")
        self.kubeconfig = scratch / "webhook.kubeconfig"
        self.wrapper: tuple[str, ...] = ("-m", "cProfile", "-o", options.profile) if options.profile else ()

    def prepare(self) -> None:
        for part in INSTALLED:
            self._kubectl("apply", "--server-side", "--force-conflicts", "-k", str(BASE / part))
            if part == "crd":
                self.administrator.wait_until_established("gpunodes.gpushare.io")
        account = (contract.SYSTEM_NAMESPACE, contract.WEBHOOK_SERVICE_ACCOUNT)
        self.administrator.service_account_kubeconfig(*account, self.kubeconfig)
        made.nodes(self.server, [NODE, *(f"gpu-node-{number:04}" for number in range(1, self.options.nodes))])

    def bursts(self, kinds: Sequence[str], rounds: int) -> list[str]:
        """Run all kinds in turn, print their rates, and return what is not accounted for."""
        bursts: dict[str, list[Burst]] = {kind: [] for kind in kinds}
        for number in range(rounds):
            for kind in kinds:
                burst = self.burst(kind, number)
                bursts[kind].append(burst)
                line = (
                    f"round {number + 1}, {kind}: {self.options.pods / burst.seconds:.0f} pods/s, load {burst.load:.1f}"
                )
                print(line, *(burst.verdict.problems[:5] if burst.verdict else ()), sep="\n  ", flush=True)
        if rounds:
            _print({kind: _summary(of_kind, self.options.pods) for kind, of_kind in bursts.items()})
        made = (burst.verdict for of_kind in bursts.values() for burst in of_kind)
        return [problem for verdict in made if verdict is not None for problem in verdict.problems]

    def install_admission(self, *, is_floor: bool = False) -> None:
        """Install the admission policies and webhooks; for the floor, only remove them."""
        for part in ADMISSION_PARTS:
            # Delete first: a webhook that was registered by URL cannot be patched back to a service.
            if is_floor or part == "admission":
                self._kubectl("delete", "--ignore-not-found", "-k", str(BASE / part))
            if not is_floor:
                self._kubectl("apply", "--server-side", "-k", str(BASE / part))

    def before_burst(self, processes: Iterable[int]) -> None:
        """Prepare the processes that answer the API server during the next burst."""

    def burst(self, kind: str, number: int) -> Burst:
        """Run one burst and empty the ledger after it."""
        self.install_admission(is_floor=kind == "floor")
        with self.administrator.namespace("burst") as namespace:
            if kind == "floor":
                return self._sent(namespace, number, {})[0]
            if kind == CONSTANT:
                return self._answered_at_once(namespace, number)
            count, asked = KINDS[kind]
            directory = self.scratch / f"{number}-{count}-{asked}"
            with webhooks.running(count, directory, self.kubeconfig, asked=asked, wrapper=self.wrapper) as (
                replicas,
                front,
            ):
                return self._answered(namespace, number, replicas, front)

    def _answered_at_once(self, namespace: str, number: int) -> Burst:
        serving = self.lab.certificates / "kube-apiserver"
        with constant.running(serving.with_suffix(".crt"), serving.with_suffix(".key")) as other:
            trusted = base64.b64encode((self.lab.certificates / "ca.crt").read_bytes()).decode()
            client = {"url": other.url, "caBundle": trusted}
            change = {"webhooks": [{"name": contract.WEBHOOK_NAME, "clientConfig": {**client, "service": None}}]}
            named = ("mutatingwebhookconfiguration", contract.WEBHOOK_CONFIGURATION)
            self._kubectl("patch", *named, "-p", json.dumps(change))  # finds the webhook by its name
            self.until_called(namespace)
            return self._sent(namespace, number, {"webhook": other.pid})[0]

    def until_called(self, namespace: str) -> None:
        """Wait until the API server calls the webhook: it admits pods without it until shortly after the
        registration.
        """
        first = next(made.pods(namespace, 1, seed=0))
        asked = calls.Call("POST", f"{first.path}?dryRun=All", first.body)
        webhooks.until(lambda: self._is_ours(asked), "the API server did not call the webhook")

    def _answered(self, namespace: str, number: int, replicas: list[webhooks.Replica], front: int | None) -> Burst:
        self.until_called(namespace)
        since = truth.version(self.server)
        before = sum(replica.metric("gpushare_webhook_conflicts_total ") for replica in replicas)
        known = [len(replica.logged("Answered a review")) for replica in replicas]
        processes = {f"replica {place}": replica.process.pid for place, replica in enumerate(replicas)}
        sent, ended = self._sent(namespace, number, processes | ({"balancer": front} if front else {}))
        placed = sum(replica.metric(r'gpushare_webhook_reviews_total\{outcome="placed"\}') for replica in replicas)
        webhooks.until(
            lambda: (
                sum(replica.metric(r'gpushare_placer_allocations_total\{change="confirmed"\}') for replica in replicas)
                >= placed
            ),
            "some allocations were not confirmed",
            seconds=SETTLE_SECONDS,
        )
        settled = time.monotonic() - ended
        answered = [line for replica, skip in zip(replicas, known, strict=True) for line in _reviews(replica)[skip:]]
        conflicts = sum(replica.metric("gpushare_webhook_conflicts_total ") for replica in replicas) - before
        failed = sum(
            replica.metric(r'gpushare_webhook_ledger_writes_total\{result="conflict"\}') for replica in replicas
        )
        verdict = truth.check(self.server, namespace, self.options.pods, since)
        self._clear(namespace)
        return Burst(
            sent.seconds,
            sent.creates,
            tuple(answered),
            sent.cpu_ms,
            sent.load,
            conflicts + failed,
            len([line for replica in replicas for line in replica.logged("Updated the allocations of a node")]),
            settled,
            verdict,
        )

    def _sent(self, namespace: str, number: int, processes: Mapping[str, int]) -> tuple[Burst, float]:
        wanted = list(made.pods(namespace, self.options.pods, seed=number))
        pids = {**self.control_plane(), **processes}
        self.before_burst(processes.values())
        load, before = os.getloadavg()[0], cpu(pids)
        seconds, answers = calls.burst(
            self.server, wanted, at_once=self.options.at_once, processes=self.options.clients
        )
        ended, after = time.monotonic(), cpu(pids)
        calls.all_well(answers)
        spent: dict[str, float] = {}
        for name in pids:
            group = "webhook" if name.startswith("replica") else name  # summed over all replicas
            spent[group] = spent.get(group, 0.0) + (after[name] - before[name]) * 1000 / len(wanted)
        return Burst(seconds, tuple(answer.seconds for answer in answers), (), spent, load), ended

    def control_plane(self) -> dict[str, int]:
        """Return the pids of the API server and of etcd."""
        pids = {name: daemon_process.pid_of(name, self.lab.processes) for name in ("kube-apiserver", "etcd")}
        return {name: pid for name, pid in pids.items() if pid is not None}

    def _is_ours(self, asked: calls.Call) -> bool:
        answer = calls.send(self.server, [asked], at_once=1)[0]
        return answer.status == 201 and contract.NODE in answer.json()["metadata"]["annotations"]

    def _clear(self, namespace: str) -> None:
        """Remove this burst from the ledger. The pods are deleted with their namespace."""
        changes = []
        for item in calls.ask(self.server, calls.call("GET", contract.GPUNODE_PATH))["items"]:
            entries = (item.get("spec") or {}).get("allocations", ())
            others = [entry for entry in entries if entry["pod"]["namespace"] != namespace]
            if len(others) < len(entries):
                path = f"{contract.GPUNODE_PATH}/{item['metadata']['name']}"
                changes.append(calls.call("PATCH", path, {"spec": {"allocations": others}}, calls.MERGE_PATCH))
        calls.all_well(calls.send(self.server, changes))

    def _kubectl(self, *arguments: str) -> None:
        self.administrator.kubectl(*arguments)


def _reviews(replica: webhooks.Replica) -> list[tuple[float, float]]:
    return [(line["seconds"], line["ledger_seconds"]) for line in replica.logged("Answered a review")]


def cpu(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds that each process has used."""
    taken = {}
    for name, pid in pids.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        taken[name] = (int(fields[11]) + int(fields[12])) * TICK_SECONDS
    return taken


def _percentile(values: Iterable[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def _summary(bursts: Sequence[Burst], pods: int) -> dict[str, tuple[float, str]]:
    """Return the median rate of all rounds of a kind, and percentiles over all their calls."""
    creates = [seconds * 1000 for burst in bursts for seconds in burst.creates]
    figures = {
        "rate": (statistics.median(pods / burst.seconds for burst in bursts), "pods/s"),
        "create.p50": (_percentile(creates, 50), "ms"),
        "create.p99": (_percentile(creates, 99), "ms"),
    }
    reviews = [review for burst in bursts for review in burst.reviews]
    if reviews:
        whole, own = (
            [1000 * seconds for seconds, _ in reviews],
            [1000 * (seconds - ledger) for seconds, ledger in reviews],
        )
        verdicts = [burst.verdict for burst in bursts if burst.verdict is not None]
        figures |= {
            "answer.p50": (_percentile(whole, 50), "ms"),
            "answer.p99": (_percentile(whole, 99), "ms"),
            "own.p50": (_percentile(own, 50), "ms"),
            "own.p99": (_percentile(own, 99), "ms"),
            "placed": (statistics.median(verdict.placed for verdict in verdicts), "pods"),
            "gated": (statistics.median(verdict.gated for verdict in verdicts), "pods"),
            "nodes": (statistics.median(verdict.nodes_used for verdict in verdicts), "nodes"),
            "writes": (statistics.median(verdict.writes / pods for verdict in verdicts), "writes/pod"),
            "confirming": (statistics.median(burst.confirming / pods for burst in bursts), "writes/pod"),
            "conflicts": (statistics.median(burst.conflicts / pods for burst in bursts), "conflicts/pod"),
            "settled": (statistics.median(burst.settled_seconds for burst in bursts), "s"),
            "problems": (sum(len(verdict.problems) for verdict in verdicts), "problems"),
        }
    for name in bursts[0].cpu_ms:
        figures[f"cpu.{name}"] = (statistics.median(burst.cpu_ms[name] for burst in bursts), "ms/pod")
    return figures


def _print(summaries: Mapping[str, dict[str, tuple[float, str]]]) -> None:
    for against in ("floor", CONSTANT):
        if against in summaries:
            for figures in summaries.values():
                part = figures["rate"][0] / summaries[against]["rate"][0]
                figures[f"part-of-{against}"] = (part, "of the rate")
    rows = list(dict.fromkeys(name for figures in summaries.values() for name in figures))
    print(f"\n{'':<22}" + "".join(f"{kind:>12}" for kind in summaries))
    for name in rows:
        cells = [figures.get(name) for figures in summaries.values()]
        unit = next(cell[1] for cell in cells if cell)
        digits = 2 if unit.endswith("/pod") or unit == "of the rate" else 1
        shown = (f"{cell[0]:>12.{digits}f}" if cell else f"{'':>12}" for cell in cells)
        print(f"{name:<22}" + "".join(shown) + f"  {unit}")
    print()
    floor = summaries.get("floor")
    for kind, figures in summaries.items():
        for name, (value, unit) in figures.items():
            figure = {"figure": f"admission.{kind.replace(' ', '-')}.{name}", "value": round(value, 2), "unit": unit}
            against, ratio = "", 0.0
            if name == "own.p99":
                against, ratio = "goal", value / MAX_OWN_MS
            elif name == "part-of-floor":
                against, ratio = "goal", value / MIN_PART_OF_FLOOR
            elif floor and name in floor and floor[name][0]:
                against, ratio = "floor", value / floor[name][0]
            print(json.dumps({**figure, "against": against or None, "ratio": round(ratio, 2) if against else None}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=32, help="calls in flight")
    parser.add_argument("--clients", type=int, default=1, help="processes that send calls")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which bursts, separated by commas")
    parser.add_argument("--profile", help="write the replica's profile to this file (distorts the figures)")
    options = parser.parse_args()
    # /tmp keeps the path short: Unix socket paths are limited.
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            bench = Bench(cluster.up(directory, node_count=0, owner=os.getpid()), Path(scratch), options)
            bench.prepare()
            print(f"{options.nodes} nodes of {made.GPUS} GPUs, {options.pods} pods, {options.at_once} at once")
            problems = bench.bursts(options.kinds.split(","), options.rounds)
        finally:
            cluster.down(directory)
    if problems:
        sys.exit("some pods or allocations are not accounted for")


if __name__ == "__main__":
    main()
