"""Random nodes and pods, as unusual as the API server accepts, from a seed."""

from __future__ import annotations

import random
from typing import Any

from gpushare import contract
from gpushare.nodefilters import pod_requests as host_ports

ZONES = ("z1", "z2", "z3")
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
APPS = ("a", "b", "c")
RUNTIME = "heavy"  # a RuntimeClass with an overhead
OVERHEAD = {"cpu": "250m", "memory": "64Mi"}
CLAIM = "data"  # a claim whose volume is in the first zone
DRIVER = "disk.example.com"
DISKS = ("disk-0", "disk-1", "disk-2")  # claims, each with a volume of that driver
ABSENT = "absent"  # a claim that does not exist
THING = "example.com/thing"


class MadeUp:
    """A generator of objects; `draw` is the only source of randomness."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def node(self, name: str) -> dict[str, Any]:
        """Return a node with its status; conditions and taints agree, as a node controller would write them."""
        draw = self.draw
        labels = {contract.HOSTNAME_LABEL: f"{name}.example", "zone": draw.choice(ZONES)}
        if draw.random() < 0.7:
            labels["cards"] = draw.choice(("1", "4", "8", "many", "007"))
        if draw.random() < 0.3:
            labels["special"] = draw.choice(("", "yes"))
        taints = [
            {"key": key, "effect": draw.choice(EFFECTS), **({"value": value} if value else {})}
            for key, value in draw.sample(
                (("team", "red"), ("team2", "7"), ("gpu", "")), k=draw.choice((0, 0, 0, 1, 2))
            )
        ]
        ready = draw.choice(("True",) * 18 + ("False", "Unknown"))
        if ready != "True":
            key = "not-ready" if ready == "False" else "unreachable"
            taints.append({"key": f"node.kubernetes.io/{key}", "effect": "NoSchedule"})
        allocatable = {
            "cpu": draw.choice(("1", "2", "3500m", "4")),
            "memory": draw.choice(("1Gi", "4Gi", "3999999999")),
            "ephemeral-storage": draw.choice(("1Gi", "10G")),
            "pods": draw.choice(("3", "4", "110")),
        }
        if draw.random() < 0.6:
            allocatable[THING] = draw.choice(("0", "2", "5"))
        if draw.random() < 0.6:
            allocatable[contract.RESOURCE_PERCENT] = draw.choice(("100", "400"))
        spec: dict[str, Any] = {"taints": taints}
        if draw.random() < 0.06:
            spec["unschedulable"] = True
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {
                "allocatable": allocatable,
                "capacity": allocatable,
                "conditions": [{"type": "Ready", "status": ready}],
            },
        }

    def pod(self, name: str, *, related: bool = False) -> dict[str, Any]:
        """Return a pod to be scheduled. `related`: with relations to other pods or to a volume, and little else."""
        draw = self.draw
        spec: dict[str, Any] = {"containers": [{"name": "c0", "image": "none"}] if related else self._containers("c")}
        if not related and draw.random() < 0.3:
            spec["initContainers"] = self._containers("i")
            for container in spec["initContainers"]:
                if draw.random() < 0.5:
                    container["restartPolicy"] = "Always"
        elif not related and draw.random() < 0.2:  # no less than its containers together
            spec["resources"] = {"requests": {"cpu": "3", "memory": "2Gi"}}
        if not related and draw.random() < 0.15:
            spec |= {"runtimeClassName": RUNTIME, "overhead": OVERHEAD}
        if related and draw.random() < 0.6:
            spec["tolerations"] = [{"operator": "Exists"}]
        elif draw.random() < 0.7:
            spec["tolerations"] = self._tolerations()
        if draw.random() < (0.1 if related else 0.2):
            spec["nodeSelector"] = draw.choice(({"zone": "z1"}, {"special": ""}, {"cards": "4"}))
        affinity: dict[str, Any] = {}
        if draw.random() < (0.1 if related else 0.3):
            terms = [self._term() for _ in range(draw.choice((1, 1, 2)))]
            affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        if related:
            self._relate(spec, affinity)
        if affinity:
            spec["affinity"] = affinity
        return self._manifest(name, spec)

    def pod_info(self, name: str, node: str) -> dict[str, Any]:
        """Return a pod that is on a node already; the API server does not check whether it fits."""
        made = self.pod(name)
        spec = made["spec"]
        if self.draw.random() < 0.5:
            spec["volumes"] = self._volumes(DISKS)
        for key in ("nodeSelector", "affinity", "tolerations"):
            spec.pop(key, None)
        if self.draw.random() < 0.15:
            term = {"topologyKey": self._topology(), "labelSelector": self._labels()}
            spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        spec["nodeName"] = node
        return made

    def limits(self, node: str) -> dict[str, Any] | None:
        """Return the CSINode of a node that has one."""
        if self.draw.random() < 0.3:
            return None
        driver: dict[str, Any] = {"name": DRIVER, "nodeID": node}
        if self.draw.random() < 0.8:
            driver["allocatable"] = {"count": self.draw.choice((0, 1, 1, 2, 3))}
        return {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": node},
            "spec": {"drivers": [driver]},
        }

    def resized(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a status where the kubelet gives the first container more or less CPU than its request."""
        container = stored["spec"]["containers"][0]
        reports = {
            "resources": {"requests": {"cpu": self.draw.choice(("50m", "1500m"))}},
            "allocatedResources": {"cpu": "700m"},
        }
        entry = {
            "name": container["name"], "image": container["image"], "imageID": "", "ready": True, "restartCount": 0, "state": {}, **reports
        }  # fmt: skip
        status: dict[str, Any] = {"containerStatuses": [entry]}
        if self.draw.random() < 0.4:
            status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
        return status

    def _manifest(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        labels = {"app": self.draw.choice(APPS)}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}

    def _containers(self, prefix: str) -> list[dict[str, Any]]:
        draw = self.draw
        made = []
        for number in range(draw.choice((1, 1, 2))):
            asked = {
                name: draw.choice(amounts)
                for name, amounts in (
                    ("cpu", ("0", "100m", "0.5", "1", "1500m")),
                    ("memory", ("1", "100Mi", "1e8", "600M", "1Gi")),
                    ("ephemeral-storage", ("100Mi", "1Gi")),
                )
                if draw.random() < 0.5
            }
            exact = {
                name: draw.choice(amounts)
                for name, amounts in ((THING, ("1", "2")), (contract.RESOURCE_PERCENT, ("50", "100")))
                if draw.random() < 0.15
            }
            sides = {"requests": {**asked, **exact}, "limits": exact}
            if draw.random() < 0.2:  # requests come from the limits
                sides = {"limits": {**asked, **exact}}
            container: dict[str, Any] = {"name": f"{prefix}{number}", "image": "none", "resources": sides}
            if draw.random() < 0.15:
                port: dict[str, Any] = {"containerPort": 80, "hostPort": draw.choice((8080, 8081))}
                if draw.random() < 0.5:
                    port["hostIP"] = draw.choice(("127.0.0.1", "10.0.0.1", host_ports.ANY_ADDRESS))
                if draw.random() < 0.3:
                    port["protocol"] = "UDP"
                container["ports"] = [port]
            made.append(container)
        return made

    def _tolerations(self) -> list[dict[str, Any]]:
        draw = self.draw
        made: list[dict[str, Any]] = []
        for _ in range(draw.choice((1, 1, 2, 3))):
            if draw.random() < 0.2:
                toleration: dict[str, Any] = {"operator": "Exists"}
            else:
                toleration = {"key": draw.choice(("team", "team2", "gpu", "node.kubernetes.io/unschedulable"))}
                toleration |= draw.choice(
                    (
                        {"operator": "Exists"},
                        {"value": "red"},
                        {"operator": "Equal", "value": "7"},
                        {"operator": "Equal"},
                        {},
                    )
                )
            effect = draw.choice(("", *EFFECTS))
            made.append({**toleration, **({"effect": effect} if effect else {})})
        return made

    def _term(self) -> dict[str, Any]:
        draw = self.draw
        if draw.random() < 0.1:
            return {}
        term: dict[str, Any] = {}
        if draw.random() < 0.8:
            term["matchExpressions"] = [self._expression() for _ in range(draw.choice((1, 1, 2)))]
        if draw.random() < 0.25:
            operator = draw.choice(("In", "NotIn"))
            name = f"node-{draw.randrange(20):02d}"
            term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
        return term

    def _expression(self) -> dict[str, Any]:
        return self.draw.choice(
            (
                {"key": "zone", "operator": "In", "values": ["z1", "z2"]},
                {"key": "zone", "operator": "NotIn", "values": ["z1"]},
                {"key": "special", "operator": "In", "values": [""]},
                {"key": "special", "operator": "NotIn", "values": ["yes"]},
                {"key": "special", "operator": "Exists"},
                {"key": "special", "operator": "DoesNotExist"},
                {"key": "cards", "operator": "Gt", "values": ["2"]},
                {"key": "cards", "operator": "Lt", "values": ["8"]},
                {"key": "cards", "operator": "Lt", "values": ["-1"]},
            )
        )

    def _volumes(self, claims: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return some of the claims, and one volume that needs no attachment."""
        chosen = self.draw.sample(claims, k=self.draw.choice((1, 1, 2)))
        mounted = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in chosen]
        return [*mounted, {"name": "inline", "csi": {"driver": DRIVER}}]

    def _relate(self, spec: dict[str, Any], affinity: dict[str, Any]) -> None:
        draw = self.draw
        kind = draw.choice(("near", "far", "far", "spread", "spread", "volume", "disks", "disks"))
        term = {"topologyKey": self._topology(), "labelSelector": self._labels()}
        if kind == "near":
            affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        elif kind == "far":
            if draw.random() < 0.3:
                term["namespaceSelector"] = {}
            affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        elif kind == "volume":
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}]
        elif kind == "disks":
            spec["volumes"] = self._volumes((*DISKS, ABSENT) if draw.random() < 0.1 else DISKS)
        else:
            constraint = {"maxSkew": draw.choice((1, 2)), "whenUnsatisfiable": "DoNotSchedule", **term}
            if draw.random() < 0.3:
                constraint["minDomains"] = draw.choice((2, 4))
            if draw.random() < 0.3:
                constraint["nodeAffinityPolicy"] = "Ignore"
            if draw.random() < 0.3:
                constraint["nodeTaintsPolicy"] = "Honor"
            spec["topologySpreadConstraints"] = [constraint]

    def _topology(self) -> str:
        return self.draw.choice((contract.HOSTNAME_LABEL, "zone", "special"))

    def _labels(self) -> dict[str, Any]:
        return self.draw.choice(
            (
                {"matchLabels": {"app": "a"}},
                {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a", "b"]}]},
                {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
            )
        )
