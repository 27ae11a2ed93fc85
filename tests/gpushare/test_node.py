from typing import Any

import pytest

from gpushare import node
from tests import builders


def machine(*, ready: str = "True", **spec: Any) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": "node-a", "zone": "z1", "cards": "4"}
    return {
        "metadata": {"name": "node-a", "labels": labels},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def affinity(**expression: Any) -> dict[str, Any]:
    terms = [{"matchExpressions": [expression]}]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


@pytest.mark.parametrize(
    ("where", "pod_spec", "reason"),
    [
        (machine(), {}, None),
        (machine(ready="Unknown"), {}, "is not ready"),
        (machine(unschedulable=True), {}, "has the taint node.kubernetes.io/unschedulable:NoSchedule, which the pod does not tolerate"),
        (machine(unschedulable=True), {"tolerations": [{"operator": "Exists"}]}, None),
        (machine(taints=[TAINT]), {}, "has the taint gpu=yes:NoSchedule, which the pod does not tolerate"),
        (machine(taints=[TAINT]), {"tolerations": [{"key": "gpu", "value": "yes"}]}, None),
        (machine(taints=[TAINT]), {"tolerations": [{"key": "gpu", "value": "no"}]}, "has the taint gpu=yes:NoSchedule, which the pod does not tolerate"),
        (machine(taints=[TAINT]), {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, "has the taint gpu=yes:NoSchedule, which the pod does not tolerate"),
        (machine(taints=[{"key": "slow", "effect": "PreferNoSchedule"}]), {}, None),
        (machine(), {"nodeSelector": {"zone": "z1"}}, None),
        (machine(), {"nodeSelector": {"zone": "z2"}}, "has not the label zone=z2 of the pod's node selector"),
        (machine(), affinity(key="zone", operator="In", values=["z1", "z3"]), None),
        (machine(), affinity(key="zone", operator="NotIn", values=["z1"]), "does not match the pod's node affinity"),
        (machine(), affinity(key="cards", operator="Gt", values=["3"]), None),
        (machine(), affinity(key="cards", operator="Lt", values=["3"]), "does not match the pod's node affinity"),
        (machine(), affinity(key="other", operator="DoesNotExist"), None),
        (machine(), affinity(key="zone", operator="Sideways"), "does not match the pod's node affinity"),
    ],
)  # fmt: skip
def test_fitness_is_judged_as_the_scheduler_does(
    where: dict[str, Any], pod_spec: dict[str, Any], reason: str | None
) -> None:
    manifest = builders.pod()
    manifest["spec"] |= pod_spec
    assert node.unfit(where, manifest) == reason
