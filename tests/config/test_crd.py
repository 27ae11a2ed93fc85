"""The CRD accepts everything the codec writes, and rejects invalid values."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare import codec, contract
from gpushare.allocation import Isolation, Labels, MigInstance, Steps
from gpushare.gpunode import Condition, GpuNode, MemoryEnforcement, Mode, Resize
from lab import lab_errors
from tests import builders
from tests.config import manifests
from tests.config.conftest import Cluster
from tests.gpushare.laws import strategies

Json = dict[str, Any]


def schema() -> Json:
    crd = manifests.named("CustomResourceDefinition", "gpunodes.gpushare.io")
    properties: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return properties


def full_node(name: str = "node-a") -> GpuNode:
    """Build a node in which every field that the codec can write is set."""
    condition = Condition("Ready", "True", "Registered", "all is well", "2026-01-01T00:00:00Z")
    gpu = dataclasses.replace(
        builders.gpu(node=name),
        numa_node=1,
        link_group=0,
        pending_mode=Mode.MPS,
        mig_profiles=("1g.10gb", "3g.40gb"),
        isolations=(Isolation.ARBITER, Isolation.MPS),
        sm_partitions=4,
        mig_geometry=builders.mig_geometry(),
        memory_enforcement=MemoryEnforcement.DRIVER,
        pci_bus_id="00000000:07:00.0",
        healthy=False,
        health_reason="XID 79",
        cordoned=True,
        owner="u3",
    )
    labels = Labels("a", "b", "c", Isolation.MPS)
    entry = dataclasses.replace(builders.allocation("a1", gpu.uuid, uid="u1", reserved_until=1e9), labels=labels)
    device = MigInstance("1g.10gb", 6, 1, 14, 10 * builders.GIB)
    amounts = {"shrink_to_bytes": builders.GIB, "memory_limit_bytes": builders.GIB}
    shrinking = dataclasses.replace(entry.shares[0], steps=Steps(1, 2), mig=device, **amounts)
    borrower = builders.allocation("a2", gpu.uuid, uid="u2", request=5, memory_gib=1, isolation=Isolation.MPS)
    return GpuNode(
        name,
        gpus=(gpu,),
        allocations=(dataclasses.replace(entry, latency=True, shares=(shrinking,)), borrower),
        cordoned=frozenset({gpu.uuid}),
        borrowed={gpu.uuid: "u3"},
        config="default",
        conditions=(condition,),
        resizes=(Resize("a1", 0, builders.GIB, 0), Resize("a2", 0, 3 * builders.GIB, builders.GIB)),
    )


MAPS = {".borrowed"}  # their keys are no fields


def fields(value: Any, path: str = "") -> Iterator[str]:
    if path in MAPS:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}"
            yield from fields(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, path)


def described(properties: Json, path: str = "") -> Iterator[str]:
    for key, inner in properties.items():
        yield f"{path}.{key}"
        yield from described(inner.get("properties") or inner.get("items", {}).get("properties") or {}, f"{path}.{key}")


@pytest.mark.slow
def test_the_schema_has_exactly_the_fields_of_the_codec() -> None:
    document = codec.to_document(full_node())
    for part in ("spec", "status"):
        assert set(described(schema()[part]["properties"])) == set(fields(document[part]))


def test_the_schema_knows_every_mode() -> None:
    mode = schema()["status"]["properties"]["gpus"]["items"]["properties"]["mode"]
    assert mode["enum"] == [member.value for member in Mode]


@st.composite
def several_nodes(draw: st.DrawFn) -> list[GpuNode]:
    nodes = [draw(strategies.gpu_nodes(f"config-test-{index}")) for index in range(8)]
    return [*nodes, full_node("config-test-full")]


@pytest.mark.apiserver
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(several_nodes())
def test_gpunodes_of_the_codec_are_stored_unchanged(installed: Cluster, nodes: list[GpuNode]) -> None:
    wanted = {node.name: dataclasses.replace(node, version="", created="") for node in nodes}
    documents = [codec.to_document(node) for node in wanted.values()]
    try:
        stored = [stored_with_status(installed, document) for document in documents]
        copies = [dataclasses.replace(codec.read(document), version="", created="") for document in stored]
        assert {node.name: node for node in copies} == wanted
    finally:
        for name in wanted:
            delete(installed, name)


def stored_with_status(installed: Cluster, document: Json) -> Json:
    """Create a GPUNode and its status, as agent and placer do; return it as the API server has it."""
    installed.create(document)
    path = f"{contract.GPUNODE_PATH}/{document['metadata']['name']}"
    installed.administrator.patch(f"{path}/status", {"status": document["status"]})
    return installed.administrator.read(path)


def delete(installed: Cluster, name: str) -> None:
    installed.administrator.delete(f"{contract.GPUNODE_PATH}/{name}")


def at(*path: str | int) -> Callable[[Json], tuple[Any, Any]]:
    """Return the container and the key of a field in an object."""

    def find(document: Json) -> tuple[Any, Any]:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        return place, path[-1]

    return find


SHARE = ("spec", "allocations", 0, "shares", 0)
NONSENSE = [
    ((*SHARE, "request"), -1, "should be greater than or equal to 0"),
    ((*SHARE, "request"), 101, "should be less than or equal to 100"),
    ((*SHARE, "request"), "50", "must be of type integer"),
    ((*SHARE, "limit"), 101, "should be less than or equal to 100"),
    ((*SHARE, "memory"), -1, "should be greater than or equal to 0"),
    ((*SHARE, "memory"), None, "Required value"),
    ((*SHARE, "gpus"), [], "should have at least 1 items"),
    ((*SHARE, "gpus"), [""], "should be at least 1 chars long"),
    ((*SHARE, "gpus"), ["GPU"] * 65, "must have at most 64 items"),
    (("spec", "allocations", 0, "id"), None, "Required value"),
    (("spec", "allocations", 0, "pod", "namespace"), None, "Required value"),
    (("spec", "allocations", 0, "reservedUntil"), "tomorrow", "must be of type date-time"),
    (("spec", "allocations", 0, "labels", "affinity"), "x" * 64, "may not be more than 63"),
    (("spec", "allocations", 0, "owner"), "me", 'unknown field "spec.allocations[0].owner"'),
    (("spec", "allocations"), {}, "must be of type array"),
]


@pytest.mark.apiserver
@pytest.mark.parametrize(("path", "value", "sentence"), NONSENSE, ids=lambda value: str(value)[:40])
def test_invalid_gpunodes_are_rejected(
    installed: Cluster, path: tuple[str | int, ...], value: object, sentence: str
) -> None:
    document = codec.to_document(full_node("config-test-nonsense"))
    installed.create(document, dry_run=True)
    place, key = at(*path)(document)
    place[key] = value
    assert sentence in installed.refused(document, dry_run=True)


def test_a_duplicate_allocation_quarantines_its_gpus() -> None:
    """A list map keyed by id would let the API server reject it, but make each write a third more expensive."""
    document = codec.to_document(full_node("config-test-twice"))
    document["spec"]["allocations"].append(copy.deepcopy(document["spec"]["allocations"][0]))
    node = codec.read(document)
    assert len(node.allocations) == len(document["spec"]["allocations"]) - 1
    assert len(node.problems) == 1
    assert not any(node.gpu_by_uuid()[uuid].healthy for share in node.allocations[0].shares for uuid in share.gpu_uuids)


@pytest.mark.apiserver
def test_an_invalid_status_is_rejected(installed: Cluster) -> None:
    document = codec.to_document(full_node("config-test-status"))
    path = f"{contract.GPUNODE_PATH}/config-test-status/status"
    installed.create(document)
    try:
        gpu = document["status"]["gpus"][0]
        for key, value in {"memory": -1, "mode": "shared", "computeCapability": "new", "uuid": "", "index": -1}.items():
            broken = {**document["status"], "gpus": [{**gpu, key: value}]}
            with pytest.raises(lab_errors.LabError, match=rf"status\.gpus\[0\]\.{key}"):
                installed.administrator.patch(path, {"status": broken})
    finally:
        delete(installed, "config-test-status")


@pytest.mark.apiserver
def test_kubectl_get_shows_gpus_and_shares(installed: Cluster) -> None:
    try:
        stored_with_status(installed, codec.to_document(full_node("config-test-columns")))
        header, row = installed.kubectl("get", "gpunode", "config-test-columns").splitlines()
        assert header.split() == ["NAME", "MODEL", "CONFIG", "READY", "AGE"]
        assert "NVIDIA A100-SXM4-80GB" in row
        assert " default " in row
        assert " True " in row
    finally:
        delete(installed, "config-test-columns")
