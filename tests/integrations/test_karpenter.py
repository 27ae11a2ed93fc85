"""The real Karpenter starts nodes for demand pods, and removes them when no share is left on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare import contract
from lab import access
from tests.integrations import karpenter
from tests.integrations.karpenter import Agents
from tests.webhook import components, conftest
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until
from tests.webhook.test_autoscaling_on_a_real_scheduler import asking, demand_pods, is_bound
from webhook.controllers.demand import demand_pods as demand

pytestmark = [pytest.mark.integration, pytest.mark.apiserver, pytest.mark.timeout(600)]
FLAGS = (
    f"--demand-resource={contract.RESOURCE_PERCENT}",
    f"--demand-products={karpenter.PRODUCT}={karpenter.MEMORY_GIB}Gi",
    "--reservation-seconds=2",
)


@pytest.fixture
def cluster(scheduler: access.Access, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without nodes, with a real scheduler, gpushare with demand pods, and Karpenter."""
    for administrator in components.installed(scheduler, "demand", contract.DEMAND_NAMESPACE):
        for made in conftest.prepared(administrator, tmp_path):
            for path in (contract.GPUNODE_PATH, conftest.NODES):
                administrator.delete(f"{path}/node-a")
            yield made
            administrator.delete(demand.PODS_PATH)


def test_nodes_start_for_shares_and_go_when_the_last_share_ends(cluster: Cluster, tmp_path: Path) -> None:
    with karpenter.running(cluster.administrator, tmp_path) as log:
        replica, agents = cluster.start(*FLAGS), Agents(cluster.administrator)

        def explain() -> str:
            nodes = cluster.kubectl("get", "nodes", "-o", "custom-columns=N:.metadata.name,T:.spec.taints[*].key")
            pods = cluster.kubectl("get", "pods", "-A", "-o", "wide")
            return f"{nodes}\n{pods}\n{log.read_text()[-6000:]}\n{replica.explain()}"

        def eventually(look: Callable[[], bool], seconds: float = 120) -> None:
            def step() -> bool:
                agents.step()
                return look()

            until(step, explain, seconds=seconds)

        names = [f"half-{number}" for number in range(10)]
        for name in names:
            cluster.create(asking(name, request="0.5", **({"no_evict": "true"} if name == names[-1] else {})))
        eventually(lambda: is_bound(cluster, *names))
        assert len(agents.booted) == 2, explain()  # ten halves need five GPUs, and a node has four
        eventually(lambda: demand_pods(cluster) == [])
        kept = cluster.pod(names[-1])
        assert kept["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
        home = kept["spec"]["nodeName"]
        for name in names[:-1]:
            cluster.delete(name)
        eventually(lambda: agents.nodes() == [home])
        blocked = f'Pod has "karpenter.sh/do-not-disrupt" annotation (Pod={cluster.namespace}/{names[-1]})'
        eventually(lambda: blocked in cluster.notes("DisruptionBlocked", "default"))
        assert is_bound(cluster, names[-1])
        cluster.delete(names[-1])
        eventually(lambda: agents.nodes() == [])
        assert len(agents.booted) == 2, explain()
