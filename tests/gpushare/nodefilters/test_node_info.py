"""One node, who is on it, one pod: may it run there? The same is asked of a real scheduler in tests/webhook."""

from typing import Any

import pytest

from gpushare.nodefilters import NodeSpec, PodAffinity, PodInfo, PodKey, SchedulerCache
from tests import builders

TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
UNTOLERATED = "has the taint gpu=yes:NoSchedule, which the pod does not tolerate"


def machine(*, ready: str = "True", allocatable: dict[str, str] | None = None, **spec: Any) -> NodeSpec:
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
        (machine(), {}, None),
        (machine(ready="Unknown"), {}, "is not ready"),
        (machine(ready="False"), {"tolerations": [{"operator": "Exists"}]}, None),
        (machine(ready="False"), {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]}, "is not ready"),
        (machine(unschedulable=True), {}, "is cordoned"),
        (machine(unschedulable=True), {"tolerations": [{"operator": "Exists"}]}, None),
        (machine(unschedulable=True), {"tolerations": [{"key": "node.kubernetes.io/unschedulable"}]}, None),
        (machine(taints=[TAINT]), {}, UNTOLERATED),
        (machine(taints=[TAINT]), {"tolerations": [{"key": "gpu", "value": "yes"}]}, None),
        (machine(taints=[TAINT]), {"tolerations": [{"key": "gpu", "value": "no"}]}, UNTOLERATED),
        (machine(taints=[TAINT]), {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, UNTOLERATED),
        (machine(taints=[TAINT]), {"tolerations": [{"key": "gpu", "operator": "Exists"}]}, None),
        (machine(taints=[{**TAINT, "value": "9"}]), {"tolerations": [{"key": "gpu", "operator": "Gt", "value": "3"}]}, "has the taint gpu=9:NoSchedule, which the pod does not tolerate"),
        (machine(taints=[{"key": "slow", "effect": "PreferNoSchedule"}]), {}, None),
        (machine(taints=[{"key": "slow", "effect": "NoExecute"}]), {}, "has the taint slow:NoExecute, which the pod does not tolerate"),
        (machine(), {"nodeSelector": {"zone": "z1"}}, None),
        (machine(), {"nodeSelector": {"zone": "z2"}}, "lacks the label zone=z2 of the pod's nodeSelector"),
        (machine(), affinity(label("zone", "In", "z1", "z3")), None),
        (machine(), affinity(label("zone", "In")), NO_AFFINITY),
        (machine(), affinity(label("zone", "NotIn", "z1")), NO_AFFINITY),
        (machine(), affinity(label("other", "NotIn", "z1")), None),
        (machine(), affinity(label("other", "NotIn", "no label value!")), NO_AFFINITY),
        (machine(), affinity(label("cards", "Gt", "3")), None),
        (machine(), affinity(label("cards", "Gt", "4")), NO_AFFINITY),
        (machine(), affinity(label("cards", "Lt", "3")), NO_AFFINITY),
        (machine(), affinity(label("zone", "Lt", "3")), NO_AFFINITY),
        (machine(), affinity(label("cards", "Gt", "few")), NO_AFFINITY),
        (machine(), affinity(label("other", "DoesNotExist")), None),
        (machine(), affinity(label("zone", "Sideways")), NO_AFFINITY),
        (machine(), affinity(**label("metadata.name", "In", "node-a")), None),
        (machine(), affinity(**label("metadata.name", "NotIn", "node-a")), NO_AFFINITY),
        (machine(), affinity(label("zone", "In", "z1"), **label("metadata.name", "In", "node-b")), NO_AFFINITY),
        (machine(), affinity(), NO_AFFINITY),
    ],
)  # fmt: skip
def test_taints_labels_and_names(where: NodeSpec, pod_spec: dict[str, Any], reason: str | None) -> None:
    assert verdict(where, asking(**pod_spec)) == reason


def test_one_of_several_terms_is_enough() -> None:
    terms = [{}, {"matchExpressions": [label("zone", "In", "z9")]}, {"matchExpressions": [label("zone", "Exists")]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert verdict(machine(), asking(affinity={"nodeAffinity": required})) is None


def test_a_node_without_the_label_that_pods_are_pinned_by_cannot_take_one() -> None:
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
def test_what_is_asked_for_must_be_free(asked: dict[str, Any], reason: str | None) -> None:
    there = asking(requests(cpu="3500m", memory="2Gi", **{"gpushare.io/gpu-percent": "50"}))
    assert verdict(machine(allocatable=ROOMY), asking(asked), there) == reason


def test_a_node_takes_so_many_pods_and_no_more() -> None:
    where = machine(allocatable=ROOMY)
    assert verdict(where, asking(), asking(), asking()) is None
    assert verdict(where, asking(), asking(), asking(), asking()) == "has 3 pods, and its maximum is 3"


def test_of_a_node_that_declares_nothing_no_amount_is_judged() -> None:
    assert verdict(machine(), asking(requests(cpu="1000"))) is None


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
def test_host_ports_do_not_meet(wanted: dict[str, Any], there: dict[str, Any], conflicts: bool) -> None:
    reason = "has host port 80/TCP in use, which the pod requests"
    assert verdict(machine(), asking(wanted), asking(there)) == (reason if conflicts else None)


def test_on_the_network_of_the_host_every_port_is_one_of_the_host() -> None:
    wanted = asking({"ports": [{"containerPort": 80}]}, hostNetwork=True)
    assert verdict(machine(), wanted, asking(port(80))) is not None


def test_what_a_node_declares_in_nonsense_counts_as_nothing() -> None:
    where = machine(allocatable={"cpu": "-4", "memory": "lots", "pods": "NaN"})
    assert verdict(where, asking()) == "has 0 pods, and its maximum is 0"
