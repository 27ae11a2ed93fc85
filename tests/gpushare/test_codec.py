import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import codec, errors, ledger
from gpushare.allocation import Isolation
from gpushare.gpunode import Condition, GpuNode, Mode
from tests import builders
from tests.gpushare.laws import strategies


def test_objects_without_isolations_are_read_and_written_as_by_earlier_releases() -> None:
    node = ledger.reserve(builders.node(gpus=1), builders.allocation("a1", memory_gib=1))
    document = codec.to_document(node)
    (gpu,), (entry,) = document["status"]["gpus"], document["spec"]["allocations"]
    assert not {"isolations", "memoryEnforcement", "smPartitions"} & gpu.keys()
    assert "isolation" not in entry
    again = codec.read(document)
    assert again.gpus[0].isolations == (Isolation.ARBITER,)
    assert again.allocations[0].labels.isolation is Isolation.ARBITER
    assert (again.problems, again.unread) == ((), ())


def test_allocation_with_an_unknown_isolation_is_kept_as_it_is() -> None:
    node = ledger.reserve(builders.node(gpus=1), builders.allocation("a1", memory_gib=1))
    document = codec.to_document(node)
    document["spec"]["allocations"][0]["isolation"] = "wall"
    again = codec.read(document)
    assert again.allocations == ()
    assert [entry["isolation"] for entry in again.unread] == ["wall"]
    assert codec.to_spec(again)["allocations"] == document["spec"]["allocations"]


@pytest.mark.slow
@given(strategies.gpu_nodes())
def test_a_written_gpunode_is_read_back(node: GpuNode) -> None:
    assert codec.read(json.loads(json.dumps(codec.to_document(node)))) == node


def test_an_object_without_a_name_is_an_error() -> None:
    with pytest.raises(errors.CodecError, match=r"metadata\.name"):
        codec.read({"spec": {}})


def test_missing_parts_are_empty() -> None:
    assert codec.read({"metadata": {"name": "node-a"}}) == GpuNode("node-a")


def test_conditions_and_modes_are_kept() -> None:
    node = GpuNode(
        "node-a",
        gpus=(builders.gpu(mode=Mode.MPS, healthy=False, health_reason="XID 79"),),
        config="default",
        conditions=(Condition("Ready", "True", "Fine", "all is well", "2026-01-01T00:00:00Z"),),
    )
    assert codec.read(codec.to_document(node)) == node


SCALARS = ["x", 5, 0.5, True, [1], ["x"], {"x": 1}]


@pytest.mark.parametrize("scalar", SCALARS, ids=str)
@pytest.mark.parametrize(
    ("part", "key"),
    [
        *((None, key) for key in ("metadata", "spec", "status")),
        *(("metadata", key) for key in ("labels", "resourceVersion", "creationTimestamp")),
        *(("spec", key) for key in ("allocations", "cordoned")),
        *(("status", key) for key in ("gpus", "conditions", "resizes", "config")),
    ],
    ids=str,
)
def test_only_a_missing_name_makes_reading_a_gpunode_fail(part: str | None, key: str, scalar: object) -> None:
    document = codec.to_document(builders.node())
    (document if part is None else document[part])[key] = scalar
    if key == "metadata":
        with pytest.raises(errors.CodecError, match=r"metadata\.name"):
            codec.read(document)
        return
    node = codec.read(document)
    assert node.name == "node-a"
    expected = dict if key in {"spec", "status", "labels"} else list
    if key not in {"resourceVersion", "creationTimestamp", "config"} and not isinstance(scalar, expected):
        where = f"node-a: {part}" if part in {"spec", "status"} else "node-a"
        assert f'{where}: {key} is invalid and is ignored: it is "{scalar}"' in node.problems


def test_an_allocation_json_cannot_express_quarantines_its_gpu() -> None:
    document = codec.to_document(builders.node())
    document["spec"]["allocations"] = [{"reservedUntil": datetime.date(2026, 1, 1), "gpus": ["GPU-node-a-1"]}]
    assert [gpu.index for gpu in codec.read(document).gpus if not gpu.healthy] == [1]


@pytest.mark.parametrize(
    "nonsense",
    [
        {
            "id": "bad",
            "pod": {"namespace": "x"},
            "shares": [{"containers": ["m"], "gpus": ["GPU-node-a-1"], "memory": -5}],
        },
        {
            "id": "bad",
            "pod": {"namespace": "x"},
            "shares": [{"containers": ["m"], "gpus": ["GPU-node-a-1"], "memory": 5, "request": 900}],
        },
        {"id": "bad", "pod": None, "shares": [{"gpus": ["GPU-node-a-1"]}]},
        {"pod": {"namespace": "x"}, "shares": [{"gpus": ["GPU-node-a-1"], "memory": float("nan")}]},
    ],
)
def test_an_invalid_allocation_quarantines_its_gpu_and_is_written_back(nonsense: dict[str, object]) -> None:
    document = codec.to_document(builders.node())
    document["spec"]["allocations"] = [nonsense]
    node = codec.read(document)
    assert [gpu.index for gpu in node.gpus if not gpu.healthy] == [1]
    assert "spec.allocations[0] is invalid" in node.problems[0]
    assert codec.to_spec(node)["allocations"] == [nonsense]


@pytest.mark.parametrize("shrink_to", [5, 6, -1, "4", 4.0, True, [4]])
def test_an_invalid_shrink_to_is_reported_and_the_share_keeps_its_memory(shrink_to: object) -> None:
    document = codec.to_document(builders.node())
    share = {"containers": ["m"], "gpus": ["GPU-node-a-1"], "request": 30, "memory": 5}
    document["spec"]["allocations"] = [
        {"id": "a", "pod": {"namespace": "x"}, "shares": [share | {"shrinkTo": shrink_to}]}
    ]
    node = codec.read(document)
    (entry,) = node.allocations
    assert (entry.shares[0].memory_bytes, entry.shares[0].shrink_to_bytes) == (5, None)
    assert ledger.use(node)["GPU-node-a-1"].memory_bytes == 5
    assert all(gpu.healthy for gpu in node.gpus)
    assert node.problems == (
        f"node-a: spec.allocations, a: shrinkTo {shrink_to!r} is not less than the share's memory 5: it is ignored, "
        "and the share keeps its memory",
    )
    (written,) = codec.to_spec(node)["allocations"]
    assert written["shares"] == [share | {"limit": 100}]


@pytest.mark.parametrize(
    "steps", [{"lastStep": -1}, {"firstStep": 2, "lastStep": 1}, {"firstStep": "1"}, {"firstStep": 1 << 17}]
)
def test_a_share_with_invalid_steps_quarantines_its_gpu(steps: dict[str, object]) -> None:
    document = codec.to_document(builders.node())
    share = {"containers": ["m"], "gpus": ["GPU-node-a-1"], "request": 30, "memory": 5}
    document["spec"]["allocations"] = [{"id": "a", "pod": {"namespace": "x"}, "shares": [share | steps]}]
    node = codec.read(document)
    assert [gpu.index for gpu in node.gpus if not gpu.healthy] == [1]
    assert "spec.allocations[0] is invalid" in node.problems[0]


@pytest.mark.parametrize("nonsense", ["text", 5, None, [], {"id": "x"}])
def test_an_invalid_allocation_without_a_gpu_quarantines_all_gpus(nonsense: object) -> None:
    document = codec.to_document(builders.node())
    document["spec"]["allocations"] = [nonsense]
    assert not any(gpu.healthy for gpu in codec.read(document).gpus)


def test_a_second_allocation_of_the_same_id_is_not_lost() -> None:
    document = codec.to_document(builders.node())
    entry = codec.to_spec(GpuNode("x", allocations=(builders.allocation(),)))["allocations"][0]
    document["spec"]["allocations"] = [entry, entry]
    node = codec.read(document)
    assert len(codec.to_spec(node)["allocations"]) == 2
    assert not node.gpu_by_uuid()["GPU-node-a-0"].healthy


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "pod", "shares", "gpus", "uuid", "memory", "namespace", "containers"]), inner), max_leaves=12))  # fmt: skip
def test_any_json_in_the_lists_is_read_without_an_error(junk: object) -> None:
    codec.read({"metadata": {"name": "n"}, "spec": {"allocations": [junk]}, "status": {"gpus": [junk, junk]}})


@given(st.floats(0, 4e9))
def test_times_survive_a_round_trip(seconds: float) -> None:
    assert abs(codec.parse_time(codec.format_time(seconds)) - seconds) < 2e-6
