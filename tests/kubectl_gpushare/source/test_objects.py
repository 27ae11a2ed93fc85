from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_gpushare.source import objects

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
items = st.lists(st.dictionaries(st.sampled_from(["metadata", "spec", "größe"]), values, max_size=3), max_size=5)


def read(text: str, size: int = 1 << 20) -> list[tuple[str, objects.Json]]:
    return list(objects.Reader(chunks(text, size)))


def chunks(text: str, size: int) -> Iterator[bytes]:
    data = text.encode()
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.slow
@given(items, st.integers(1, 40), st.booleans(), st.booleans())
def test_a_list_reads_the_same_however_it_arrives(
    listed: list[objects.Json], size: int, indented: bool, kind_first: bool
) -> None:
    envelope = {"kind": "PodList", "metadata": {"resourceVersion": "7"}}
    whole = {**envelope, "items": listed} if kind_first else {"items": listed, **envelope}
    text = json.dumps(whole, indent=2 if indented else None, ensure_ascii=False)
    reader = objects.Reader(chunks(text, size))
    assert list(reader) == [("Pod", item) for item in listed]
    assert reader.version == "7"


def test_a_single_object_is_given_itself() -> None:
    assert read('{"kind": "GPUNode", "metadata": {"name": "a"}}') == [
        ("GPUNode", {"kind": "GPUNode", "metadata": {"name": "a"}})
    ]


def test_objects_may_follow_each_other() -> None:
    assert [kind for kind, _ in read('{"kind": "A"}\n\n {"kind": "B"}\n', 3)] == ["A", "B"]


def test_the_items_of_a_list_of_everything_name_their_own_kind() -> None:
    assert read('{"kind": "List", "items": [{"kind": "Pod"}, {"x": 1}]}') == [("Pod", {"kind": "Pod"}), ("", {"x": 1})]


def test_nothing_is_no_objects() -> None:
    assert read("") == []
    assert read(" \n") == []


@pytest.mark.parametrize("text", ["{", '{"a" 1}', '{"items": [1,', "[]", '{"items": [{}] x}', "nonsense"])
def test_what_is_not_json_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        read(text, 2)
