"""Objects are read one at a time from JSON that arrives in pieces of any size."""

from __future__ import annotations

import gc
import itertools
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import object_parsers

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
objects = st.dictionaries(st.text(max_size=5), values, max_size=3)
lists = st.fixed_dictionaries(
    {"items": st.none() | st.lists(objects, max_size=5)},
    optional={"kind": st.text(), "metadata": objects, "more": scalars},
)


def read_list(content: bytes, sizes: list[int]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The items and the other fields of a list that arrives in pieces of these sizes, in turns."""
    reader, read, at, turn = object_parsers.ObjectReader(list_only=True), [], 0, 0
    while at < len(content):
        size = sizes[turn % len(sizes)]
        read += reader.feed(content[at : at + size])
        at, turn = at + size, turn + 1
    read += reader.feed(b"", is_last=True)
    return [item for _, item in read], reader.fields


def read_all(text: str, size: int = 1 << 20) -> list[tuple[str, dict[str, Any]]]:
    """Kind and object of everything in a text that arrives in pieces of this size."""
    content, reader = text.encode(), object_parsers.ObjectReader()
    read = [pair for at in range(0, len(content), size) for pair in reader.feed(content[at : at + size])]
    return [*read, *reader.feed(b"", is_last=True)]


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_parsers, "PORTION_BYTES", 7)


@pytest.mark.slow
@given(
    whole=lists,
    order=st.randoms(use_true_random=False),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    indent=st.none() | st.integers(0, 3),
    ascii_only=st.booleans(),
)
def test_list_reads_the_same_in_pieces_of_any_size(
    whole: dict[str, Any], order: Any, sizes: list[int], indent: int | None, ascii_only: bool
) -> None:
    fields = list(whole.items())
    order.shuffle(fields)
    content = json.dumps(dict(fields), indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    objects, others = read_list(content, sizes)
    assert objects == (whole["items"] or [])
    assert others == {name: value for name, value in whole.items() if name != "items"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"items":[{}',
        b'{"items":[{},',
        b'{"items":[{}]',
        b'{"items":[{},]}',
        b'{"items":[5]}',
        b'{"items":{}}',
        b'{"items":[{"a":\xff}]}',
        b'{"items":[{} {}]}',
        b'{"kind":"PodList"',
        b'{"kind":nothing}',
        b'{"kind":"Status"}',
        b"{}",
        b'{"items":[]} {"items":[]}',
        b'{"items":[]} x',
        b'{"a": ' + b"[" * 100_000,
        b'{"a": 1' + b"0" * 5000 + b"}",
    ],
)
def test_anything_but_one_whole_list_is_an_error(content: bytes) -> None:
    with pytest.raises(object_parsers.NotJson):
        read_list(content, [3])


def test_error_shows_the_unexpected_text() -> None:
    with pytest.raises(object_parsers.NotJson, match=r"expected \{ and found <html>proxy$"):
        read_list(b"<html>proxy\nerror", [100])


def test_single_object_is_read_whole() -> None:
    assert read_all('{"kind": "GPUNode", "metadata": {"name": "a"}}', 3) == [
        ("GPUNode", {"kind": "GPUNode", "metadata": {"name": "a"}})
    ]


def test_documents_may_follow_each_other() -> None:
    assert [kind for kind, _ in read_all('{"kind": "A"}\n\n {"kind": "B"}\n', 3)] == ["A", "B"]


def test_items_have_their_own_kind_or_that_of_the_list() -> None:
    item = {"x": 1}
    assert read_all('{"kind": "List", "items": [{"kind": "Pod"}, {"x": 1}]}') == [("Pod", {"kind": "Pod"}), ("", item)]
    assert read_all('{"kind": "PodList", "items": [{"x": 1}]}') == [("Pod", item)]
    assert read_all('{"items": [{"x": 1}, {"x": 1}], "kind": "PodList"}', 5) == [("Pod", item)] * 2


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_input_has_no_objects(text: str) -> None:
    assert read_all(text) == []


@pytest.mark.parametrize("text", ["{", '{"a" 1}', '{"a": 1,}', '{"items": [1,', "[]", '{"items": [{}] x}', "nonsense"])
def test_invalid_json_is_an_error(text: str) -> None:
    with pytest.raises(object_parsers.NotJson):
        read_all(text, 2)


def test_too_long_item_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_parsers, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="longer than 1000 bytes"):
        read_list(b'{"items":[{"a":"' + b"x" * 5000 + b'"}]}', [100])


def test_long_item_in_small_pieces_is_decoded_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0
    decode = json.JSONDecoder.raw_decode

    def counting(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
        nonlocal tries
        tries += 1
        return decode(decoder, text, at)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", counting)
    objects, _ = read_list(b'{"items":[{"a":"' + b"x" * 100_000 + b'"}]}', [10])
    assert len(objects[0]["a"]) == 100_000
    assert 0 < tries < 40  # and not 10,000


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_parsers, "PORTION_BYTES", 1 << 16)
    pod = json.dumps({"metadata": {"name": "a"}, "spec": {f"key-{number}": "x" * 20 for number in range(200)}}).encode()

    def peak_bytes(count: int) -> int:
        reader, seen = object_parsers.ObjectReader(list_only=True), 0
        gc.collect()
        tracemalloc.start()
        try:
            pieces = itertools.chain([b'{"items":['], itertools.repeat(pod + b",", count - 1), [pod, b"]}"])
            for piece in pieces:
                seen += sum(1 for _ in reader.feed(piece))
            seen += sum(1 for _ in reader.feed(b"", is_last=True))
            assert seen == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak_bytes(50), peak_bytes(1000)
    assert many < few * 1.5
