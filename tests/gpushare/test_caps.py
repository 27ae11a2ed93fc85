"""The caps on one pod with a share; and that the ledger's CRD accepts the largest such pod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import caps, contract, errors
from gpushare import request as requests
from tests import builders
from tests.config.test_crd import schema

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def share() -> dict[str, Any]:
    allocation = schema()["spec"]["properties"]["allocations"]["items"]["properties"]
    shares: dict[str, Any] = allocation["shares"]
    return shares


@pytest.mark.slow
def test_the_schema_of_the_ledger_accepts_the_largest_pod() -> None:
    fields = share()["items"]["properties"]
    # a backfill reservation has an entry for each GPU; the largest nodes have 16
    assert share()["maxItems"] >= caps.SHARES * 16
    assert fields["containers"]["maxItems"] >= caps.SHARERS
    assert fields["gpus"]["maxItems"] >= caps.GPUS
    assert caps.GPUS == contract.MAX_GPUS
    status = schema()["status"]["properties"]["gpus"]["items"]["properties"]
    assert status["model"]["maxLength"] <= caps.NAME


def of_containers(count: int) -> dict[str, Any]:
    names = tuple(f"c{number}" for number in range(count))
    manifest = builders.pod(containers=names)
    manifest["metadata"]["annotations"] = {f"gpushare.io/request.{name}": "0.1" for name in names}
    return manifest


def listing(key: str, item: Callable[[int], str]) -> Callable[[int], dict[str, Any]]:
    return lambda count: builders.pod(request="0.5", **{key: ",".join(map(item, range(count)))})


def sharing(count: int) -> dict[str, Any]:
    names = tuple(f"c{number}" for number in range(count))
    return builders.pod(containers=names, request="0.5", container=",".join(names))


ASKED: dict[str, tuple[int, Callable[[int], dict[str, Any]], str]] = {
    "own shares": (caps.SHARES, of_containers, "9 containers with their own share: at most 8"),
    "sharers": (caps.SHARERS, sharing, "is a list of 65 items: write at most 64"),
    "models": (caps.NAMES, listing("model", lambda number: f"*{number}*"), "is a list of 129 items"),
    "a pattern": (
        caps.NAME,
        lambda count: builders.pod(request="1", model="x" * count),
        "has a pattern of 257 characters",
    ),
    "uuids": (caps.NAMES, listing("uuid", lambda number: f"GPU-{number}"), "is a list of 129 items"),
    "refused uuids": (caps.NAMES, listing("not_uuid", lambda number: f"GPU-{number}"), "is a list of 129 items"),
    "gpus": (caps.GPUS, lambda count: builders.pod(request="1", gpus=str(count)), "write a whole number from 1 to 63"),
}


@pytest.mark.parametrize("name", ASKED)
def test_annotations_beyond_the_cap_are_rejected(name: str) -> None:
    most, make, said = ASKED[name]
    requests.parse(make(most))
    with pytest.raises(errors.RequestError) as caught:
        requests.parse(make(most + 1))
    assert said in str(caught.value)


def spec(**fields: Any) -> dict[str, Any]:
    manifest = builders.pod(request="0.5")
    manifest["spec"].update(fields)
    return manifest


def terms(count: int) -> list[dict[str, Any]]:
    return [{"topologyKey": "zone", "labelSelector": {}} for _ in range(count)]


def expressions(count: int, values: int = 1) -> list[dict[str, Any]]:
    return [{"key": f"k{number}", "operator": "In", "values": ["v"] * values} for number in range(count)]


def nodes(*of_terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": of_term} for of_term in of_terms]}}}


def container(**fields: Any) -> dict[str, Any]:
    return spec(initContainers=[{"name": "i", **fields}])


LISTS: dict[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
    "containers": (63, lambda count: spec(initContainers=[{"name": f"i{number}"} for number in range(count)])),
    "tolerations": (32, lambda count: spec(tolerations=[{"operator": "Exists"}] * count)),
    "nodeSelector": (16, lambda count: spec(nodeSelector={f"k{number}": "v" for number in range(count)})),
    "requirements of a term": (16, lambda count: spec(affinity=nodes(expressions(count)))),
    "terms": (16, lambda count: spec(affinity=nodes(*[expressions(1)] * count))),
    "empty terms": (16, lambda count: spec(affinity=nodes(*[list[dict[str, Any]]()] * count))),
    "values": (1024, lambda count: spec(affinity=nodes(expressions(1, count)))),
    "affinity": (4, lambda count: spec(affinity={"podAffinity": {REQUIRED: terms(count)}})),
    "anti-affinity": (4, lambda count: spec(affinity={"podAntiAffinity": {REQUIRED: terms(count)}})),
    "spread": (4, lambda count: spec(topologySpreadConstraints=terms(count))),
    "selectors": (
        63,
        lambda count: spec(topologySpreadConstraints=[{"labelSelector": {"matchExpressions": expressions(1, count)}}]),
    ),
    "volumes": (256, lambda count: spec(volumes=[{}] * count)),
    "gates": (64, lambda count: spec(schedulingGates=[{"name": "x"}] * count)),
    "ports": (64, lambda count: container(ports=[{}] * count)),
    "environment": (1024, lambda count: container(env=[{}] * count)),
    "resources": (64, lambda count: container(resources={"limits": {f"r{number}": "1" for number in range(count)}})),
}


@pytest.mark.parametrize("name", LISTS)
def test_every_list_read_for_each_node_has_a_cap(name: str) -> None:
    most, make = LISTS[name]
    assert caps.exceeded(make(most)) is None
    said = caps.exceeded(make(most + 1))
    assert said is not None
    assert f"a pod with a GPU share may have at most {most + (name in {'containers', 'selectors'})}" in said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def odd_pods(draw: st.DrawFn) -> Any:
    """Draw pods in which any field may have any JSON value."""
    manifest: Any = LISTS[draw(st.sampled_from(sorted(LISTS)))][1](2)
    for _ in range(draw(st.integers(1, 3))):
        holder, key = manifest, draw(st.sampled_from(sorted(manifest)))
        while draw(st.booleans()) and isinstance(holder[key], dict | list) and holder[key]:
            holder = holder[key]
            keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
            key = draw(st.sampled_from(list(keys)))
        holder[key] = draw(JSON)
    return manifest


@pytest.mark.slow
@given(odd_pods())
def test_law_pods_of_any_shape_are_counted_without_an_error(manifest: dict[str, Any]) -> None:
    assert caps.exceeded(manifest) is None
