"""Kueue decides when a pod may run, gpushare where: quota counts shares, and a pod in the queue holds none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpushare import contract
from lab import access, lab_layout
from tests.e2e.observation import Observer, annotation, eventually
from tests.integrations import kueue

pytestmark = [pytest.mark.integration, pytest.mark.lab, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def queues(
    installed: lab_layout.Layout, lab: access.Access, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[access.Access]:
    """The lab with Kueue and the samples' queues."""
    with kueue.installed(installed, lab, tmp_path_factory.mktemp("kueue")):
        yield lab


@pytest.fixture
def user(queues: access.Access) -> Iterator[Observer]:
    """A user with a namespace that has a LocalQueue of the samples' ClusterQueue."""
    with queues.namespace("queued") as namespace:
        observer = Observer(queues, namespace)
        observer.apply({**kueue.KIND, "metadata": {"name": "shares"}, "spec": {"clusterQueue": "shares"}})
        yield observer
        observer.delete("jobs,pods", "--all")
        observer.ledger_is_empty()


def queued(name: str, **labels: str) -> dict[str, Any]:
    """Return the sample's pod under another name."""
    made: dict[str, Any] = next(iter(yaml.safe_load_all((kueue.SAMPLES / "pods.yaml").read_text())))
    made["metadata"] |= {"name": name, "labels": {**made["metadata"]["labels"], **labels}}
    return made


def gates(pod: dict[str, Any]) -> set[str]:
    return {gate["name"] for gate in pod["spec"].get("schedulingGates", [])}


def holds_nothing(user: Observer) -> bool:
    return not any(entry.pod.namespace == user.namespace for node in user.gpunodes() for entry in node.allocations)


def test_a_pod_in_the_queue_is_not_placed_before_kueue_admits_it(user: Observer) -> None:
    kueue.hold(user.access, "Hold")
    try:
        user.apply(queued("held"))
        pod = user.pod("held")
        assert pod is not None
        assert {contract.SCHEDULING_GATE, kueue.GATE} <= gates(pod)
        assert contract.HOSTNAME_LABEL not in pod["spec"].get("nodeSelector", {})
        assert kueue.GATE in annotation(pod, contract.REASON)
        # The amounts that Kueue counts are there all the same.
        assert pod["spec"]["containers"][0]["resources"]["limits"][contract.RESOURCE_PERCENT] == "75"
        assert holds_nothing(user)
    finally:
        kueue.hold(user.access, "None")
    running = user.running("held")
    assert annotation(running, contract.GPU_UUIDS)
    assert annotation(running, contract.REASON) == ""
    assert str(2 << 30) in user.inside("held", "gpushare-probe")


def test_a_pod_beyond_the_quota_waits_with_kueues_reason(user: Observer) -> None:
    user.apply(str(kueue.SAMPLES / "pods.yaml"))
    user.running("queued-a")
    words = "insufficient unused quota for gpushare.io/gpu-percent in flavor gpushare, 50 more needed"
    eventually(lambda: words in user.plugin("why", "queued-b", "-n", user.namespace), what=f"`why` with {words}")
    waiting = user.pod("queued-b")
    assert waiting is not None
    assert {contract.SCHEDULING_GATE, kueue.GATE} <= gates(waiting)
    user.delete("pod", "queued-a")
    user.running("queued-b")
    assert "insufficient" not in user.plugin("why", "queued-b", "-n", user.namespace)


def test_a_group_of_both_runs_as_a_whole(user: Observer) -> None:
    group = {"kueue.x-k8s.io/pod-group-name": "both"}
    for number in range(2):
        made = queued(f"both-{number}", **group)
        made["metadata"]["annotations"] |= {
            "kueue.x-k8s.io/pod-group-total-count": "2",
            contract.REQUEST: "0.5",
            contract.GROUP: "both",
            contract.GROUP_SIZE: "2",
        }
        user.apply(made)
    for number in range(2):
        assert annotation(user.running(f"both-{number}"), contract.GPU_UUIDS)


def test_the_node_labels_of_a_flavor_bind_the_pod_to_such_nodes(user: Observer) -> None:
    labels = {"kubernetes.io/os": "linux"}
    flavor = f"{kueue.API}/resourceflavors/gpushare"
    user.access.patch(flavor, {"spec": {"nodeLabels": labels}})
    try:
        user.apply(queued("bound"))
        selected = user.running("bound")["spec"]["nodeSelector"]
        assert selected == {**labels, contract.HOSTNAME_LABEL: user.gpunode().name}
    finally:
        user.access.patch(flavor, {"spec": {"nodeLabels": None}})


def test_pods_of_a_deployment_use_the_quota_one_by_one(user: Observer) -> None:
    pod = queued("worker")
    labels = {**pod["metadata"]["labels"], "app": "worker"}
    template = {"metadata": {"labels": labels, "annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "worker"}}, "template": template}
    user.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "worker"}, "spec": spec})
    eventually(
        lambda: "Kueue: couldn't assign flavors" in user.plugin("why", "deploy/worker", "-n", user.namespace),
        what="the second pod waits for Kueue",
    )
    phases = sorted(str(each["status"]["phase"]) for each in user.pods())
    assert phases == ["Pending", "Running"]
    user.kubectl("delete", "deployment", "worker")


def test_a_job_in_the_queue_counts_what_its_template_requests(user: Observer) -> None:
    """Kueue counts a Job before its pods exist, so the template has to have the amounts."""
    pod = queued("worker")
    template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    template["spec"] |= {"restartPolicy": "Never"}
    amounts = {contract.RESOURCE_PERCENT: "75", contract.RESOURCE_MEMORY: str(2 << 30)}
    template["spec"]["containers"][0] |= {"command": ["gpushare-probe"], "resources": {"limits": amounts}}
    metadata = {"name": "training", "labels": pod["metadata"]["labels"]}
    user.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}})
    user.kubectl("wait", "--for=condition=Complete", "job/training", "--timeout=60s")
    workloads = user.access.read(f"{kueue.API}/namespaces/{user.namespace}/workloads")["items"]
    (assigned,) = (item["status"]["admission"]["podSetAssignments"][0]["resourceUsage"] for item in workloads)
    assert assigned[contract.RESOURCE_PERCENT] == "75"
