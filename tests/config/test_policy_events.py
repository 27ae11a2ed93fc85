"""Agents and replicas write Events in their own name, about what they have to do with; each by a token of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract
from gpushare.cluster import api_client, api_errors, events
from lab import access, kubeconfig
from tests import rights
from tests.config.conftest import Cluster

pytestmark = pytest.mark.apiserver

NODE, POD = "config-test-events", "gpushare-webhook-0"
AGENT, WEBHOOK = contract.AGENT_SERVICE_ACCOUNT, contract.WEBHOOK_SERVICE_ACCOUNT


@dataclasses.dataclass(frozen=True)
class Teller:
    """Who tells: its ServiceAccount, the object that its token is bound to, and how it calls itself in Events."""

    account: str
    bound: tuple[str, str]
    controller: str

    def kubeconfig(self, administrator: access.Access, path: Path) -> str:
        kind, name = self.bound
        bound = (f"--bound-object-kind={kind}", f"--bound-object-name={name}")
        flags = (f"--namespace={contract.SYSTEM_NAMESPACE}", *(bound if kind else ()))
        token = administrator.kubectl("create", "token", self.account, *flags).strip()
        text = kubeconfig.with_token(administrator.server, administrator.ca_file, token, contract.SYSTEM_NAMESPACE)
        kubeconfig.write(path, text)
        return str(path)


AGENT_OF_NODE = Teller(AGENT, ("Node", NODE), "gpushare.io/agent")
REPLICA = Teller(WEBHOOK, ("Pod", POD), "gpushare.io/placer")


@pytest.fixture(scope="module")
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """With the node and the pod to which tokens are bound."""
    installed.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    spec = {"serviceAccountName": WEBHOOK, "containers": [{"name": "main", "image": "x"}]}
    replica = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec}
    where = f"--namespace={contract.SYSTEM_NAMESPACE}"
    installed.kubectl("create", where, "--filename=-", input=json.dumps(replica))
    yield installed
    installed.kubectl("delete", "pod", POD, where, "--force", "--grace-period=0")
    installed.kubectl("delete", "node", NODE, "--wait=false")


def event(teller: Teller, namespace: str, **changes: Any) -> dict[str, Any]:
    made = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "told-", "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Normal",
        "reason": "Told",
        "action": "Tell",
        "note": "a sentence",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "p"},
        "reportingController": teller.controller,
        "reportingInstance": teller.bound[1],
    }
    return {**made, **changes}


async def told(
    teller: Teller, cluster: Cluster, administrator: access.Access, directory: Path, **changes: Any
) -> str | None:
    """The sentence with which it is refused, or None."""
    body = event(teller, cluster.namespace, **changes)
    namespace = body["metadata"]["namespace"] = body["regarding"].get("namespace", "default")
    async with api_client.connect(teller.kubeconfig(administrator, directory / "kubeconfig"), component="test") as api:
        try:
            await api.create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", body, query={"dryRun": "All"})
        except api_errors.ClusterError as error:
            return str(error)
    return None


def about(kind: str, name: str, api: str = contract.API_VERSION) -> dict[str, str]:
    return {"apiVersion": api, "kind": kind, "name": name}


@pytest.mark.parametrize("teller", [AGENT_OF_NODE, REPLICA], ids=lambda teller: teller.account)
async def test_each_tells_what_it_lives_by_and_counts_what_happens_again(
    cluster: Cluster, api_server: access.Access, tmp_path: Path, teller: Teller
) -> None:
    now = 0.0
    credentials = teller.kubeconfig(api_server, tmp_path / "kubeconfig")
    component = teller.account.removeprefix("gpushare-")
    async with api_client.connect(credentials, component=component) as api:
        recorder = events.Recorder(
            api, controller=teller.controller, instance=teller.bound[1], clock=lambda: now, wall_clock=lambda: 1.8e9
        )
        writing = asyncio.create_task(recorder.run())
        pod = {"apiVersion": "v1", "kind": "Pod", "namespace": cluster.namespace, "name": "p"}
        for _ in range(3):
            recorder.record(pod, contract.EVENT_GATED, "again")
            recorder.record(about(contract.GPUNODE_KIND, NODE), contract.EVENT_GATED, "again")
            await recorder.flush(30.0)
            now += 700.0
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
        assert recorder.dropped == 0
    reply = json.loads(cluster.kubectl("get", "events.events.k8s.io", f"--namespace={cluster.namespace}", "-o", "json"))
    own = [item for item in reply["items"] if item["reportingController"] == teller.controller]
    assert [event["series"]["count"] for event in own] == [3]
    used = rights.used_on(api_server, teller.account)
    assert ("events.events.k8s.io", "patch") in used


ELSEWHERE = "must have the reportingInstance "


@pytest.mark.parametrize(
    ("teller", "changes", "said"),
    [
        (
            AGENT_OF_NODE,
            {"reportingController": "kubelet"},
            'gpushare\'s agent must have the reportingController "gpushare.io/agent"',
        ),
        (
            AGENT_OF_NODE,
            {"reportingController": "gpushare.io/placer"},
            'must have the reportingController "gpushare.io/agent"',
        ),
        (AGENT_OF_NODE, {"reportingInstance": "another-node"}, ELSEWHERE + NODE),
        (
            AGENT_OF_NODE,
            {"regarding": about("GPUNode", "another")},
            f"the agent of node {NODE} may not write Events about GPUNode",
        ),
        (AGENT_OF_NODE, {"regarding": about("Node", NODE, "v1")}, "only about pods and GPUNodes"),
        (AGENT_OF_NODE, {"related": about("Node", NODE, "v1")}, "about one object"),
        (AGENT_OF_NODE, {"deprecatedSource": {"component": "kubelet"}}, "needs to be unset"),
        (
            REPLICA,
            {"reportingController": "kubelet"},
            'gpushare\'s webhook must have the reportingController "gpushare.io/placer"',
        ),
        (REPLICA, {"reportingInstance": "gpushare-webhook-1"}, ELSEWHERE + POD),
        (REPLICA, {"regarding": about("Deployment", "x", "apps/v1")}, "only about pods and GPUNodes"),
    ],
)
async def test_nobody_tells_in_anothers_name_or_of_what_is_not_its_own(
    cluster: Cluster, api_server: access.Access, tmp_path: Path, teller: Teller, changes: dict[str, Any], said: str
) -> None:
    assert await told(teller, cluster, api_server, tmp_path) is None
    assert said in (await told(teller, cluster, api_server, tmp_path, **changes) or "")


async def test_an_agent_whose_token_is_bound_to_no_node_tells_nothing(
    cluster: Cluster, api_server: access.Access, tmp_path: Path
) -> None:
    unbound = dataclasses.replace(AGENT_OF_NODE, bound=("", NODE))
    said = await told(unbound, cluster, api_server, tmp_path)
    assert "reportingInstance of the node that its token is bound to" in (said or "")


async def test_what_others_have_told_is_not_changed(
    cluster: Cluster, api_server: access.Access, tmp_path: Path
) -> None:
    """Nor is a series counted that is another's."""
    namespace = cluster.namespace
    other = event(REPLICA, namespace, reportingController="example.com/other", reportingInstance="x")
    other["metadata"]["name"] = "others"
    cluster.create(other)
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/others"
    seen = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}
    async with api_client.connect(
        AGENT_OF_NODE.kubeconfig(api_server, tmp_path / "kubeconfig"), component="test"
    ) as api:
        with pytest.raises(api_errors.ClusterError, match="must have the reportingController"):
            await api.patch(path, seen)
        with pytest.raises(api_errors.ClusterError, match=r"immutable|must have the reportingController"):
            await api.patch(path, {"reportingController": "gpushare.io/agent", "reportingInstance": NODE})
