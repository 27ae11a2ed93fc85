"""Whether one node can take one pod. tests/webhook compares the same rules with a real scheduler."""

from typing import Any

import pytest

from gpushare.nodefilters import NodeSpec, PodAffinity, PodInfo, PodKey, SchedulerCache
from tests import builders

TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
UNTOLERATED = "has the taint gpu=yes:NoSchedule, which the pod does not tolerate"


def node_spec(*, ready: str = "True", allocatable: dict[str, str] | None = None, **spec: Any) -> NodeSpec:
    labels = {"kubernetes.io/hostname": "node-a", "zone": "z1", "cards": "4"}
    status = {"conditions": [{"type": "Ready", "status": ready}], "allocatable": allocatable}
    return NodeSpec.from_manifest({"metadata": {"name": "node-a", "labels": labels}, "spec": spec, "status": status})


def asking(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    manifest = builders.pod()
    manifest["spec"]["containers"][0] |= container or {}
    manifest["spec"] |= spec
    return manifest


def requests(**amounts: str) -> dict[str, Any]:
    return {"resources": {"requests": {name.replace("_", "-"): amount for name, amount in amounts.items()}}}


def port(number: int, **more: Any) -> dict[str, Any]:
    return {"ports": [{"containerPort": 1, "hostPort": number, **more}]}


def verdict(where: NodeSpec, manifest: dict[str, Any], *there: dict[str, Any]) -> str | None:
    cache = SchedulerCache()
    cache.put_node_spec("node-a", where)
    for number, pod in enumerate(there):
        cache.put(number, PodInfo.from_manifest(pod, "node-a"))
    return cache.node_filter(PodKey.from_manifest(manifest), PodAffinity.from_manifest({}))("node-a")


def affinity(*expressions: dict[str, Any], **field: Any) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions), "matchFields": [field] if field else []}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


NO_AFFINITY = "does not match the pod's node affinity"


@pytest.mark.parametrize(
    ("where", "pod_spec", "reason"),
    [
        (node_spec(), {}, None),
        (node_spec(ready="Unknown"), {}, "is not ready"),
        (node_spec(ready="False"), {"tolerations": [{"operator": "Exists"}]}, None),
        (node_spec(ready="False"), {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]}, "is not ready"),
        (node_spec(unschedulable=True), {}, "is cordoned"),
        (node_spec(unschedulable=True), {"tolerations": [{"operator": "Exists"}]}, None),
        (node_spec(unschedulable=True), {"tolerations": [{"key": "node.kubernetes.io/unschedulable"}]}, None),
        (node_spec(taints=[TAINT]), {}, UNTOLERATED),
        (node_spec(taints=[TAINT]), {"tolerations": [{"key": "gpu", "value": "yes"}]}, None),
        (node_spec(taints=[TAINT]), {"tolerations": [{"key": "gpu", "value": "no"}]}, UNTOLERATED),
        (node_spec(taints=[TAINT]), {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, UNTOLERATED),
        (node_spec(taints=[TAINT]), {"tolerations": [{"key": "gpu", "operator": "Exists"}]}, None),
        (node_spec(taints=[{**TAINT, "value": "9"}]), {"tolerations": [{"key": "gpu", "operator": "Gt", "value": "3"}]}, "has the taint gpu=9:NoSchedule, which the pod does not tolerate"),
        (node_spec(taints=[{"key": "slow", "effect": "PreferNoSchedule"}]), {}, None),
        (node_spec(taints=[{"key": "slow", "effect": "NoExecute"}]), {}, "has the taint slow:NoExecute, which the pod does not tolerate"),
        (node_spec(), {"nodeSelector": {"zone": "z1"}}, None),
        (node_spec(), {"nodeSelector": {"zone": "z2"}}, "lacks the label zone=z2 of the pod's nodeSelector"),
        (node_spec(), affinity(label("zone", "In", "z1", "z3")), None),
        (node_spec(), affinity(label("zone", "In")), NO_AFFINITY),
        (node_spec(), affinity(label("zone", "NotIn", "z1")), NO_AFFINITY),
        (node_spec(), affinity(label("other", "NotIn", "z1")), None),
        (node_spec(), affinity(label("other", "NotIn", "no label value!")), NO_AFFINITY),
        (node_spec(), affinity(label("cards", "Gt", "3")), None),
        (node_spec(), affinity(label("cards", "Gt", "4")), NO_AFFINITY),
        (node_spec(), affinity(label("cards", "Lt", "3")), NO_AFFINITY),
        (node_spec(), affinity(label("zone", "Lt", "3")), NO_AFFINITY),
        (node_spec(), affinity(label("cards", "Gt", "few")), NO_AFFINITY),
        (node_spec(), affinity(label("other", "DoesNotExist")), None),
        (node_spec(), affinity(label("zone", "Sideways")), NO_AFFINITY),
        (node_spec(), affinity(**label("metadata.name", "In", "node-a")), None),
        (node_spec(), affinity(**label("metadata.name", "NotIn", "node-a")), NO_AFFINITY),
        (node_spec(), affinity(label("zone", "In", "z1"), **label("metadata.name", "In", "node-b")), NO_AFFINITY),
        (node_spec(), affinity(), NO_AFFINITY),
    ],
)  # fmt: skip
def test_taints_labels_and_names(where: NodeSpec, pod_spec: dict[str, Any], reason: str | None) -> None:
    assert verdict(where, asking(**pod_spec)) == reason


def test_any_matching_term_is_enough() -> None:
    terms = [{}, {"matchExpressions": [label("zone", "In", "z9")]}, {"matchExpressions": [label("zone", "Exists")]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert verdict(node_spec(), asking(affinity={"nodeAffinity": required})) is None


def test_node_without_hostname_label_is_rejected() -> None:
    where = NodeSpec.from_manifest(
        {"metadata": {"name": "node-a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    )
    assert verdict(where, asking()) == "has no label kubernetes.io/hostname, which is needed to pin a pod to it"


ROOMY = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "10Gi", "pods": "3", "gpushare.io/gpu-percent": "100"}


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (requests(cpu="500m"), None),
        (requests(cpu="501m"), "has 500m of 4 CPUs free, 501m are requested"),
        (requests(cpu="1"), "has 500m of 4 CPUs free, 1 is requested"),
        (requests(cpu="2"), "has 500m of 4 CPUs free, 2 are requested"),
        (requests(memory="6Gi"), None),
        (requests(memory="7Gi"), "has 6Gi of 8Gi memory free, 7Gi are requested"),
        (requests(ephemeral_storage="11Gi"), "has 10Gi ephemeral storage in total, 11Gi are requested"),
        (
            requests(**{"gpushare.io/gpu-idle": "1"}),
            "has free GPUs but no running agent: its kubelet offers no gpushare.io/gpu-idle",
        ),
        (requests(**{"example.com/thing": "1"}), "has 0 of 0 example.com/thing free, 1 are requested"),
        (requests(**{"example.com/thing": "0"}), None),
        (requests(memory="9Gi", cpu="9"), "has 4 CPUs in total, 9 are requested"),
    ],
)
def test_requested_amounts_must_be_free(asked: dict[str, Any], reason: str | None) -> None:
    there = asking(requests(cpu="3500m", memory="2Gi", **{"gpushare.io/gpu-percent": "50"}))
    assert verdict(node_spec(allocatable=ROOMY), asking(asked), there) == reason


def test_node_takes_no_more_than_its_maximum_of_pods() -> None:
    where = node_spec(allocatable=ROOMY)
    assert verdict(where, asking(), asking(), asking()) is None
    assert verdict(where, asking(), asking(), asking(), asking()) == "has 3 pods, and its maximum is 3"


def test_amounts_are_not_checked_without_allocatable() -> None:
    assert verdict(node_spec(), asking(requests(cpu="1000"))) is None


@pytest.mark.parametrize(
    ("wanted", "there", "conflicts"),
    [
        (port(80), port(80), True),
        (port(80), port(81), False),
        (port(80), port(80, protocol="UDP"), False),
        (port(80, hostIP="10.0.0.1"), port(80), True),
        (port(80), port(80, hostIP="10.0.0.1"), True),
        (port(80, hostIP="10.0.0.1"), port(80, hostIP="10.0.0.2"), False),
        ({"ports": [{"containerPort": 80}]}, port(80), False),
    ],
)
def test_host_ports_conflict(wanted: dict[str, Any], there: dict[str, Any], conflicts: bool) -> None:
    reason = "has host port 80/TCP in use, which the pod requests"
    assert verdict(node_spec(), asking(wanted), asking(there)) == (reason if conflicts else None)


def test_with_host_network_every_port_is_a_host_port() -> None:
    wanted = asking({"ports": [{"containerPort": 80}]}, hostNetwork=True)
    assert verdict(node_spec(), wanted, asking(port(80))) is not None


def test_invalid_allocatable_amounts_count_as_zero() -> None:
    where = node_spec(allocatable={"cpu": "-4", "memory": "lots", "pods": "NaN"})
    assert verdict(where, asking()) == "has 0 pods, and its maximum is 0"
