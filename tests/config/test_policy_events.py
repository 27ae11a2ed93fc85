"""The policy for Events: agents and webhook replicas write them under their own name, about objects they work on."""

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
class Reporter:
    """A reporter: its ServiceAccount, the object its token is bound to, and its name in Events."""

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


AGENT_OF_NODE = Reporter(AGENT, ("Node", NODE), "gpushare.io/agent")
REPLICA = Reporter(WEBHOOK, ("Pod", POD), "gpushare.io/placer")


@pytest.fixture(scope="module")
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """The cluster with the node and the pod that tokens are bound to."""
    installed.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    spec = {"serviceAccountName": WEBHOOK, "containers": [{"name": "main", "image": "x"}]}
    replica = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec}
    pods = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/pods"
    installed.administrator.create(pods, replica)
    yield installed
    for path in (f"{pods}/{POD}", f"/api/v1/nodes/{NODE}"):
        installed.administrator.delete(path)


def event(reporter: Reporter, namespace: str, **changes: Any) -> dict[str, Any]:
    made = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "event-", "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Normal",
        "reason": "Told",
        "action": "Tell",
        "note": "a sentence",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "p"},
        "reportingController": reporter.controller,
        "reportingInstance": reporter.bound[1],
    }
    return {**made, **changes}


async def write_event(
    reporter: Reporter, cluster: Cluster, administrator: access.Access, directory: Path, **changes: Any
) -> str | None:
    """Write an Event; return the error message, or None if it is accepted."""
    body = event(reporter, cluster.namespace, **changes)
    namespace = body["metadata"]["namespace"] = body["regarding"].get("namespace", "default")
    async with api_client.connect(
        reporter.kubeconfig(administrator, directory / "kubeconfig"), component="test"
    ) as api:
        try:
            await api.create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", body, query={"dryRun": "All"})
        except api_errors.ClusterError as error:
            return str(error)
    return None


def about(kind: str, name: str, api: str = contract.API_VERSION) -> dict[str, str]:
    return {"apiVersion": api, "kind": kind, "name": name}


@pytest.mark.parametrize("reporter", [AGENT_OF_NODE, REPLICA], ids=lambda reporter: reporter.account)
async def test_agents_and_replicas_write_and_count_their_events(
    cluster: Cluster, api_server: access.Access, tmp_path: Path, reporter: Reporter
) -> None:
    now = 0.0
    credentials = reporter.kubeconfig(api_server, tmp_path / "kubeconfig")
    component = reporter.account.removeprefix("gpushare-")
    async with api_client.connect(credentials, component=component) as api:
        recorder = events.Recorder(
            api, controller=reporter.controller, instance=reporter.bound[1], clock=lambda: now, wall_clock=lambda: 1.8e9
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
    own = [item for item in reply["items"] if item["reportingController"] == reporter.controller]
    assert [event["series"]["count"] for event in own] == [3]
    used = rights.used_on(api_server, reporter.account)
    assert ("events.events.k8s.io", "patch") in used


ELSEWHERE = "must have the reportingInstance "


@pytest.mark.parametrize(
    ("reporter", "changes", "said"),
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
async def test_events_under_another_name_or_about_foreign_objects_are_rejected(
    cluster: Cluster, api_server: access.Access, tmp_path: Path, reporter: Reporter, changes: dict[str, Any], said: str
) -> None:
    assert await write_event(reporter, cluster, api_server, tmp_path) is None
    assert said in (await write_event(reporter, cluster, api_server, tmp_path, **changes) or "")


async def test_an_agent_token_without_a_node_writes_no_events(
    cluster: Cluster, api_server: access.Access, tmp_path: Path
) -> None:
    unbound = dataclasses.replace(AGENT_OF_NODE, bound=("", NODE))
    said = await write_event(unbound, cluster, api_server, tmp_path)
    assert "reportingInstance of the node that its token is bound to" in (said or "")


async def test_events_of_others_cannot_be_changed(cluster: Cluster, api_server: access.Access, tmp_path: Path) -> None:
    """Counting another's series is rejected too."""
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
