"""The plan for other amounts of a placed pod equals the placer's later decision."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpushare import contract, errors, resizing
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode
from gpushare.resizing import ResizeCause
from kubectl_gpushare.views import resize
from tests import builders
from tests.builders import GIB
from tests.gpushare.defragmentation import clusters


def placed(*neighbours: str) -> tuple[dict[str, Any], GpuNode, Allocation]:
    """Return a pod with half a GPU as the webhook has patched it, its node and its share; the neighbours have these
    requests.
    """
    trainer = clusters.owned("trainer", request="0.5", memory="8Gi")
    beside = [(clusters.owned(f"p{request}", request=request, memory="8Gi"), "n1/0") for request in neighbours]
    node = clusters.cluster((trainer, "n1/0"), *beside, nodes=3, gpus=1).views["n1"].node
    return trainer, node, node.allocations[0]


@pytest.mark.parametrize(
    ("amounts", "cause"),
    [
        ({contract.REQUEST: "0.7"}, ResizeCause.NOTHING),
        ({contract.REQUEST: "0.8"}, ResizeCause.ROOM),
        ({contract.MEMORY: "73Gi"}, ResizeCause.ROOM),
        ({contract.MEMORY: "4Gi"}, ResizeCause.AGENT),
        ({contract.MEMORY_LIMIT: "20Gi"}, ResizeCause.NOTHING),
        ({contract.REQUEST: "0.8", contract.MEMORY: "4Gi"}, ResizeCause.ROOM),
    ],
)
def test_plan_equals_the_placers_decision(amounts: dict[str, str], cause: ResizeCause) -> None:
    plan = resize.plan(*placed("0.25"), amounts)
    assert plan.cause is cause
    assert bool(plan.waits_for) == (cause is not ResizeCause.NOTHING)
    assert plan.changes == amounts
    known = {contract.REQUEST: "0.5", contract.MEMORY: "8Gi"}
    assert plan.before == {key: known.get(key) for key in amounts}


def test_plan_without_changes_says_so() -> None:
    plan = resize.plan(*placed(), {contract.MEMORY: "8192Mi"})
    assert plan.desired == plan.entry.shares
    assert plan.cause is ResizeCause.NOTHING


@pytest.mark.parametrize(
    ("annotations", "container", "key"),
    [
        ({"request": "0.5"}, "", "gpushare.io/request"),
        ({"request": "0.5"}, "main", "gpushare.io/request"),
        ({"request.main": "0.5"}, "", "gpushare.io/request.main"),
        ({"request.main": "0.5"}, "main", "gpushare.io/request.main"),
    ],
)
def test_plan_changes_the_keys_that_the_pod_uses(annotations: dict[str, str], container: str, key: str) -> None:
    manifest = builders.pod(containers=("main", "side"), **annotations)
    plan = resize.plan(manifest, *placed()[1:], {contract.REQUEST: "0.6"}, container)
    assert plan.changes == {key: "0.6"}


@pytest.mark.parametrize(
    ("annotations", "container", "said"),
    [
        ({"request": "0.5"}, "side", 'container "side" of default/trainer has no share: those that have are main'),
        ({"request": "0.5", "request.side": "0.1"}, "", "several shares: say with --container whose, main or side"),
        ({"request": "0.5"}, "", 'gpushare.io/request "2" is more than one GPU'),
    ],
)
def test_impossible_plan_is_an_error(annotations: dict[str, str], container: str, said: str) -> None:
    manifest = builders.pod(containers=("main", "side"), **annotations)
    with pytest.raises(errors.GpushareError, match=said):
        resize.plan(manifest, *placed()[1:], {contract.REQUEST: "2"}, container)


def test_pending_resize_is_explained_in_the_placers_words() -> None:
    manifest, node, entry = placed("0.25")
    assert resize.pending(manifest, node, entry) is None
    for asked, said in (
        ({"request": "0.8", "memory": "8Gi"}, "n1/0 has 0.25 of its compute free, 0.3 more is requested"),
        ({"request": "0.6", "memory": "8Gi"}, "the placer has not written it yet"),
        ({"request": "0.5", "limit": "0.4"}, 'gpushare.io/limit "0.4" is less than the request'),
    ):
        answer = resize.pending(builders.pod(**asked), node, entry)
        assert answer is not None
        assert said in answer[1]


def test_pod_with_amounts_other_than_its_environment_was_resized() -> None:
    manifest, _, entry = placed()
    (share,) = entry.shares
    assert not resizing.was_resized(manifest, entry)
    assert not resizing.was_resized(builders.pod(request="0.5"), entry)
    for other in ({"request_percent": 40}, {"limit_percent": 60}, {"memory_bytes": GIB}):
        assert resizing.was_resized(manifest, dataclasses.replace(entry, shares=(dataclasses.replace(share, **other),)))
    limited = dataclasses.replace(entry, shares=(dataclasses.replace(share, memory_limit_bytes=80 * GIB),))
    assert resizing.was_resized(manifest, limited)
    manifest["spec"]["containers"][0]["env"].append({"name": contract.ENV_MEMORY_LIMIT, "value": str(80 * GIB)})
    assert not resizing.was_resized(manifest, limited)
    assert resizing.was_resized(manifest, entry)
    manifest["spec"]["containers"][0]["env"].pop()
    assert resizing.was_resized(builders.pod(request="0.9", held="[]"), entry)
    parts = (share, dataclasses.replace(share, gpu_uuids=("GPU-x",), memory_bytes=9 * GIB))
    assert not resizing.was_resized(manifest, dataclasses.replace(entry, shares=parts))
