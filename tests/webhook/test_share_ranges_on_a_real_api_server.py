"""Defaults and bounds on a Namespace, with a real webhook and placer: pods, resizes, another sharer's syntax, typos."""

from __future__ import annotations

import re

import pytest

from gpushare import contract
from lab import lab_errors
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until
from tests.webhook.test_moving_in_on_a_real_api_server import asking, understand

pytestmark = pytest.mark.apiserver


def annotate(cluster: Cluster, **values: str | None) -> None:
    """Write annotations on the namespace, such as `max_memory`."""
    annotations = {key.replace("_", f".{contract.PREFIX}"): value for key, value in values.items()}
    cluster.administrator.patch(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"annotations": annotations}})


def request_keys(cluster: Cluster, name: str) -> dict[str, str]:
    annotations = cluster.pod(name)["metadata"]["annotations"]
    keys = (contract.REQUEST, contract.LIMIT, contract.MEMORY)
    return {key.removeprefix(contract.PREFIX): annotations[key] for key in keys if key in annotations}


def test_defaults_and_bounds_of_a_namespace_hold_for_every_way_to_ask(cluster: Cluster) -> None:
    annotate(cluster, default_memory="8Gi", default_limit="0.5", max_memory="16Gi", max_request="0.5")
    started = cluster.start()
    cluster.create_placed(builders.pod("one", request="0.25"))
    assert request_keys(cluster, "one") == {"request": "0.25", "limit": "0.5", "memory": "8Gi"}
    until(cluster.is_settled, cluster.explain)
    cluster.bind("one")
    too_much = (
        f'gpushare.io/request of container "main" is 0.8, but the namespace "{cluster.namespace}" has '
        'max.gpushare.io/request "0.5": write at most "0.5"'
    )
    with pytest.raises(lab_errors.LabError, match=re.escape(too_much)):
        cluster.create(builders.pod("two", request="0.8"))

    # A resize beyond the bound waits with the same sentence, and one within it happens.
    path = f"{cluster.path}/pods/one"
    cluster.administrator.patch(path, {"metadata": {"annotations": {contract.REQUEST: "0.8", contract.LIMIT: "0.9"}}})
    said = f"is not resized yet: {too_much}"
    until(lambda: cluster.pod("one")["metadata"]["annotations"].get(contract.REASON) == said, cluster.explain)
    assert cluster.node().allocations[0].shares[0].request_percent == 25
    cluster.administrator.patch(path, {"metadata": {"annotations": {contract.REQUEST: "0.5"}}})
    until(lambda: cluster.node().allocations[0].shares[0].request_percent == 50, cluster.explain)

    understand(cluster, "hami")
    with pytest.raises(lab_errors.LabError, match=re.escape("is 20000Mi, but the namespace")):
        cluster.create(asking({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "10"}))
    started.count_from_here()

    # A lower bound takes nothing from pods that exist; an unreadable one stops new pods, but not this one.
    annotate(cluster, max_request="0.1", max_memory="lots")
    wrong = 'max.gpushare.io/memory "lots" is not a quantity: write a number with an optional unit'
    until(lambda: cluster.refuses(builders.pod("three", request="0.1"), wrong), cluster.explain)
    annotate(cluster, max_memory=None)
    until(lambda: cluster.refuses(builders.pod("three", request="0.2"), "write at most"), cluster.explain)
    cluster.create_placed(builders.pod("three", request="0.1"))
    assert request_keys(cluster, "three")["memory"] == "8Gi"
    assert {entry.pod.name: entry.shares[0].request_percent for entry in cluster.node().allocations} == {
        "one": 50,
        "three": 10,
    }
