"""Of a pod that asks for a share so much is kept as the placer looks at, whatever else is on it."""

from __future__ import annotations

from typing import Any

from gpushare import contract, pod
from gpushare import request as requests
from gpushare.nodefilters import PodInfo, node_info
from tests import builders
from webhook.pods import copies

MEBIBYTE = "x" * (1 << 20)


def test_of_annotations_of_others_little_is_kept() -> None:
    """Who has a namespace has a quarter of a megabyte of them on each pod: two thousand that wait filled a replica."""
    one = builders.pod(request="0.5")
    ours = dict(one["metadata"]["annotations"])
    one["metadata"]["annotations"] |= {"example.com/notes": MEBIBYTE, contract.MIRROR_ANNOTATION: MEBIBYTE}
    one["metadata"]["annotations"][pod.DEFAULT_CONTAINER] = MEBIBYTE
    assert len(repr(copies.trimmed(one))) < 2000
    one["metadata"]["annotations"][pod.DEFAULT_CONTAINER] = "main"
    found = copies.trimmed(one)["metadata"]["annotations"]
    assert {key: text for key, text in found.items() if key.startswith(contract.PREFIX)} == ours
    assert contract.MIRROR_ANNOTATION in found
    assert requests.parse(copies.trimmed(one)) == requests.parse(one)


def test_a_pod_that_has_gone_leaves_nothing_large_behind() -> None:
    """Equal parts of pods are one object, which is kept when the pods have gone: so it was with a megabyte of labels."""

    def pod_info(number: int, count: int) -> PodInfo:
        made: dict[str, Any] = builders.pod()
        made["metadata"]["labels"] = {f"{place}-{number}-{'x' * 40}": "y" * 60 for place in range(count)}
        return PodInfo.of(made, "node-a")

    before = node_info._same.cache_info().currsize
    for number in range(10):
        pod_info(number, 10_000)
    assert node_info._same.cache_info().currsize <= before + 1  # their amounts are equal
    assert pod_info(0, 5).labels is pod_info(0, 5).labels
