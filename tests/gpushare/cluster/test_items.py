"""A list is parsed as it arrives, in pieces of any size, and never held as a whole."""

from __future__ import annotations

import gc
import itertools
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cluster import items

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
objects = st.dictionaries(st.text(max_size=5), values, max_size=3)
lists = st.fixed_dictionaries(
    {"items": st.none() | st.lists(objects, max_size=5)},
    optional={"kind": st.text(), "metadata": objects, "more": scalars},
)


def parse(content: bytes, sizes: list[int]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Parse the content in pieces of these sizes, cyclically; return the items and the other fields."""
    reader, objects, at, turn = items.Items(), [], 0, 0
    while at < len(content):
        size = sizes[turn % len(sizes)]
        objects += reader.feed(content[at : at + size])
        at, turn = at + size, turn + 1
    objects += reader.feed(b"", is_last=True)
    return objects, reader.fields


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "PORTION_BYTES", 7)


@pytest.mark.slow
@given(
    whole=lists,
    order=st.randoms(use_true_random=False),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    indent=st.none() | st.integers(0, 3),
    ascii_only=st.booleans(),
)
def test_a_streamed_list_equals_the_parsed_whole(
    whole: dict[str, Any], order: Any, sizes: list[int], indent: int | None, ascii_only: bool
) -> None:
    fields = list(whole.items())
    order.shuffle(fields)
    content = json.dumps(dict(fields), indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    objects, beside = parse(content, sizes)
    assert objects == (whole["items"] or [])
    assert beside == {name: value for name, value in whole.items() if name != "items"}


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
    ],
)
def test_content_that_is_not_a_list_is_rejected(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is not a list|its items are|one of its items|codec"):
        parse(content, [3])


def test_an_item_longer_than_the_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="longer than 1000 bytes"):
        parse(b'{"items":[{"a":"' + b"x" * 5000 + b'"}]}', [100])


def test_a_long_item_is_not_parsed_again_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0
    decode = json.JSONDecoder.raw_decode

    def counting(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
        nonlocal tries
        tries += 1
        return decode(decoder, text, at)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", counting)
    objects, _ = parse(b'{"items":[{"a":"' + b"x" * 100_000 + b'"}]}', [10])
    assert len(objects[0]["a"]) == 100_000
    assert 0 < tries < 40  # not 10,000


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "PORTION_BYTES", 1 << 16)
    pod = json.dumps({"metadata": {"name": "a"}, "spec": {f"key-{number}": "x" * 20 for number in range(200)}}).encode()

    def peak_bytes(count: int) -> int:
        reader, seen = items.Items(), 0
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
