"""A night on the lab's cluster, observed by a real Prometheus: shares are used or idle, pods wait, a GPU fails, a
process bypasses a limit, a GPU is cordoned. Every expression of every panel, rule and alert is evaluated, and the page
of `kubectl gpushare ui` shows the same.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import contract
from lab import access, gpushare, image, lab_layout
from tests.deviceplugin.test_lab_audit import OWN_LOADER
from tests.e2e.observation import Observer, eventually
from tests.monitoring import dashboards, prometheus, rules
from tests.monitoring.prometheus import Prometheus

pytestmark = pytest.mark.lab

GIB = 1 << 30
IDLE, HOLDS = "sleep 3600", "gpushare-probe --allocate 1GiB --hold 3600"
BUSY = "gpushare-probe --duration-us 1000 --seconds 3600"
# These fire now and then on a busy machine. test_rules checks when they should.
MAY_BE = {"GpushareKeepsGpu", "GpushareWebhookSlow", "GpushareMemoryBeyondLimit"}


def scrapes(lab: access.Access) -> list[dict[str, object]]:
    """Return the targets with the labels that the scrape configurations in docs/monitoring.md give."""
    jobs = {"webhook": ("instance",), "agent": ("instance", "node")}
    return [
        {
            "job_name": f"gpushare-{part}",
            "honor_labels": True,
            "static_configs": [
                {
                    "targets": [f"{pod['status']['podIP']}:{gpushare.PROBE_PORT}"],
                    "labels": dict.fromkeys(
                        labels, pod["spec"]["nodeName"] if part == "agent" else pod["metadata"]["name"]
                    ),
                }
                for pod in gpushare.pods(lab, part)
            ],
        }
        for part, labels in jobs.items()
    ]


def at_once(text: str) -> str:
    """Return the rules without `for`, so that alerts fire at once."""
    return re.sub(r"(\bfor|\binterval): \w+", lambda match: f"{match[1]}: 1s", text)


class Night:
    def __init__(self, lab: access.Access, where: lab_layout.Layout, seen: Prometheus, team: str, other: str) -> None:
        self.lab, self.where, self.seen, self.team, self.other = lab, where, seen, team, other
        self.node = where.nodes[0].name
        status = lab.read(f"{contract.GPUNODE_PATH}/{self.node}")["status"]
        self.uuids = [gpu["uuid"] for gpu in status["gpus"]]

    def run(self, name: str, command: str, *, namespace: str = "", gpu: int | None = None, **asks: str) -> None:
        container = {"name": "main", "image": image.SAMPLE, "command": ["sh", "-c", command]}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "restartPolicy": "Never"}
        annotations = {contract.PREFIX + key: value for key, value in asks.items()}
        if gpu is not None:
            annotations[contract.UUID] = self.uuids[gpu]
        metadata = {"name": name, "namespace": namespace or self.team, "annotations": annotations}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.lab.create(f"/api/v1/namespaces/{metadata['namespace']}/pods", manifest)

    def wait_for(self, expression: str, value: float, *, seconds: float = 40.0) -> None:
        """Wait until an expression has this value."""
        try:
            eventually(
                lambda: self.seen.value(expression) == pytest.approx(value),
                seconds=seconds,
                what=f"{expression} = {value}",
            )
        except AssertionError as error:
            raise AssertionError(f"{error}, but {self.seen.value(expression)}; {self.seen.unanswered()}") from error

    def firing(self) -> set[str]:
        """Return the alerts that fire now, without the tolerated ones."""
        alerts = self.seen.get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts} - MAY_BE

    def change_gpu(self, verb: str, gpu: int, *how: str) -> None:
        directory = self.where.gpus(self.where.nodes[0])
        subprocess.run([gpushare.DRIVER / "simgpu", verb, directory, str(gpu), *how], check=True, timeout=30)

    def cordon(self, *gpus: int) -> None:
        body = {"spec": {"cordoned": [self.uuids[gpu] for gpu in gpus]}}
        self.lab.patch(f"{contract.GPUNODE_PATH}/{self.node}", body)


@pytest.fixture
def night(installed: lab_layout.Layout, lab: access.Access, tmp_path: Path) -> Iterator[Night]:
    text = at_once(rules.FILE.read_text())
    with (
        prometheus.running(tmp_path / "prometheus", scrapes(lab), rules=text) as seen,
        lab.namespace("team") as team,
        lab.namespace("other") as other,
    ):
        made = Night(lab, installed, seen, team, other)
        try:
            yield made
        finally:
            made.change_gpu("heal", 2)
            made.cordon()


def the_page_shows_it(night: Night) -> None:
    """Check what the agent, the placer and the recorder of events have told the page."""
    with Observer(night.lab, night.team).page() as address:
        model = json.loads(urllib.request.urlopen(address.replace("/?", "/cluster?"), timeout=60).read())  # noqa: S310
    (node,) = model["nodes"]
    statuses = [gpu.get("status", []) for gpu in node["gpus"]]
    assert statuses[2:] == [["Unhealthy"], ["Cordoned"]]
    assert "it does not answer" in node["gpus"][2]["reason"]
    assert len(node["gpus"][0]["shares"]) == 4
    (first, second) = model["queue"]["pods"]
    assert (first["pod"], second["pod"]) == (f"{night.other}/waits-0", f"{night.other}/waits-1")
    assert "of 4 GPUs on 1 node, 1 unhealthy, 1 cordoned, 2 with too little compute free" in first["reason"]
    assert any(change["kind"] == "GpuUnhealthy" and "GPU 2" in change["text"] for change in model["changes"])


def test_every_expression_works_during_a_night(night: Night) -> None:
    seen = night.seen
    night.wait_for("sum(gpushare_placer_gpus)", 4)
    night.wait_for("sum(gpushare_gpu_healthy)", 4)
    eventually(lambda: night.firing() == set(), what="a calm evening")

    # Four quarters on one GPU: two compute, one holds memory, one is idle.
    for number, command in enumerate((BUSY, BUSY, HOLDS, IDLE)):
        night.run(f"quarter-{number}", command, gpu=0, request="0.25")
    night.run("sneaky", OWN_LOADER, gpu=1, request="0.25", memory="2Gi")
    night.run("unlucky", HOLDS, gpu=2, request="0.5")
    in_team = f'namespace="{night.team}"'
    night.wait_for(f'sum(container_gpu_allocation{{{in_team}, pod=~"quarter-.*"}})', 1)
    night.wait_for(f"sum(container_gpu_allocation{{{in_team}}})", 1.75)
    night.wait_for('sum(gpushare_placer_gpus{state="allocated"})', 1.75)
    night.wait_for(f'gpushare_share_used_memory_bytes{{{in_team}, pod="quarter-2"}}', GIB)
    night.wait_for("sum(gpushare_gpu_unlimited_processes)", 1)
    night.wait_for('sum(gpushare_node_condition{condition="LimitsInForce", status="False"})', 1)

    night.cordon(3)
    night.change_gpu("fail", 2, "xid=79")
    night.wait_for("sum(1 - gpushare_gpu_healthy)", 1)
    for number in range(2):
        night.run(f"waits-{number}", IDLE, namespace=night.other, request="1", gpus="2")
    night.wait_for("max(gpushare_placer_gated_pods)", 2)
    night.wait_for(f'sum(gpushare_placer_waiting_pods{{namespace="{night.other}"}})', 2)
    night.wait_for('sum(gpushare_placer_gpus{state="unhealthy"})', 0.5)
    night.wait_for('sum(gpushare_placer_gpus{state="cordoned"})', 1)
    night.wait_for('sum(gpushare_placer_gpus{state=~"free|fragmented"})', 0.75)
    night.wait_for("cluster:gpushare_allocated:ratio", 1.75 / 4)
    the_page_shows_it(night)
    expected = {"GpushareGpuUnhealthyInUse", "GpushareRunsUnlimited", "GpushareShareUnused"}
    eventually(lambda: night.firing() == expected, what=f"{expected}, but {night.firing()}")
    eventually(
        lambda: len(seen.samples("gpushare_share_used_compute_ratio")) >= 2, what="the use of a GPU that two want"
    )

    # The computing shares split the GPU and wait for it in turns; the idle one uses nothing.
    both_have = f'sum(rate(gpushare_share_lease_seconds_total{{{in_team}, pod=~"quarter-[01]"}}[10s]))'
    eventually(lambda: abs((seen.value(both_have) or 0) - 1) < 0.3, what="the GPU in use by those two")
    unused = "gpushare_share_allocated_memory_bytes unless on (namespace, pod) gpushare_share_limit_memory_bytes"
    # On a busy machine a late scrape loses all samples of a target for a moment.
    eventually(
        lambda: {dict(labels)["pod"] for labels in seen.samples(unused)} == {"quarter-3", "sneaky"},
        what="quarter-3 and sneaky alone without a process",
    )
    assert seen.value("sum(namespace:gpushare_gpu_hours:sum1h)")

    variables = {
        "node": night.node,
        "namespace": night.team,
        "pod": "quarter-0",
        "__rate_interval": "20s",
        "__range": "10m",
    }
    both = {**variables, "namespace": f"{night.team}|{night.other}"}

    def answered() -> dict[str, float] | None:
        answers = {
            str(query): seen.samples(query.filled(variables if query.dashboard == "pod" else both))
            for query in dashboards.QUERIES
        }
        # A late scrape leaves a rule without a result for a moment, and a join with an error.
        empty = [rule.name for rule in rules.RECORDS.values() if not seen.samples(rule.name)]
        judged = [rule["health"] for group in seen.get("rules")["groups"] for rule in group["rules"]]
        if not all(answers.values()) or empty or set(judged) != {"ok"}:
            return None
        numbers = {name: next(iter(samples.values())) for name, samples in answers.items() if len(samples) == 1}
        return numbers if numbers.get("cluster/Webhook replicas/__auto") == 2 else None

    numbers = eventually(answered, what="all queries of the dashboards and all rules answered")
    assert numbers["cluster/Unhealthy GPUs/__auto"] == 1
    assert numbers["cluster/Agents down/__auto"] == 0
    assert numbers["cluster/Processes without limits/__auto"] == 1
    assert numbers["cluster/Memory/allocated to shares"] == 1.5 * 40 * GIB + 2 * GIB
    assert numbers["namespace/Allocated GPUs/__auto"] == 1.75
    assert numbers["pod/Allocated GPUs/__auto"] == 0.25
    for rule in rules.RULES:
        seen.samples(rule.expression)
    for alert in seen.get("alerts")["alerts"]:
        said = alert["annotations"]["summary"] + alert["annotations"]["description"]
        assert not re.search(r"<no value>|<error|%!|{{", said), said
