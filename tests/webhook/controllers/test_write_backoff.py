"""Every writer retries rejected writes with growing pauses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare.cluster import api_errors
from gpushare.cluster import object_store as objects
from tests import builders
from webhook import metrics
from webhook.controllers import pacing
from webhook.controllers.evictor import Evictor
from webhook.controllers.resizer import Resizer
from webhook.controllers.touched_nodes import Touched
from webhook.pods.stored_pod import Pod
from webhook.store.memory_store import MemoryStore

NOTHING = Touched((), (), frozenset())
DENIED = api_errors.Forbidden("the policy of the team denies it", status=403)


class Refusing:
    """Stands for the API server and the recorder: the tests check how often the former is asked."""

    def __init__(self, said: Exception = DENIED) -> None:
        self.tried = 0
        self.said = said

    async def create(self, *_: Any, **__: Any) -> None:
        self.tried += 1
        raise self.said

    patch = create

    def record(self, *_: Any, **__: Any) -> None:
        pass


def test_each_pause_is_twice_as_long_until_a_try_works() -> None:
    backoff, now, pauses = pacing.WriteBackoff(max_seconds=30.0), 0.0, []
    for _ in range(6):
        pauses.append(backoff.failed("u", now=now))
        assert backoff.wait_seconds("other", now=now) == 0.0
        now += backoff.wait_seconds("u", now=now)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    backoff.succeeded("u")
    assert backoff.failed("u", now=now) == 2.0


def test_pods_without_attempts_are_forgotten() -> None:
    backoff = pacing.WriteBackoff(max_seconds=30.0)
    backoff.failed("gone", now=0.0)
    backoff.failed("u", now=100.0)
    assert "gone" not in backoff
    assert "u" in backoff


async def test_refused_eviction_is_not_retried_in_each_round() -> None:
    api, now = Refusing(), [0.0]
    evictor: Any = Evictor(api, api, metrics.Metrics(), after_seconds=60.0, clock=lambda: now[0])  # type: ignore[arg-type]
    while now[0] < 660.0:
        await evictor.reconcile([stuck("u")], NOTHING)
        now[0] += 0.5
    assert 5 <= api.tried <= 10


def stuck(uid: str) -> Pod:
    manifest = builders.pod(request="0.5", allocation="a1", node="node-a")
    manifest["metadata"].update(
        uid=uid, ownerReferences=[{"kind": "ReplicaSet", "name": uid, "uid": uid, "controller": True}]
    )
    manifest["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    return Pod.from_manifest(manifest)


@pytest.mark.parametrize(
    ("said", "tried"),
    [
        (TimeoutError(), 1),
        (api_errors.Unavailable("no answer"), 1),
        (api_errors.Unavailable("the webhook of the team is down", status=500), 1),
        (api_errors.Unavailable("a budget does not allow it", status=429), 5),
        (DENIED, 5),
    ],
    ids=["too late", "no answer", "a webhook is down", "a budget", "a policy"],
)
async def test_unanswered_eviction_ends_the_round(said: Exception, tried: int) -> None:
    """Each would take as long, and all gated pods wait for the end of the round."""
    api, now = Refusing(said), [0.0]
    evictor: Any = Evictor(api, api, metrics.Metrics(), after_seconds=60.0, clock=lambda: now[0])  # type: ignore[arg-type]
    pods = [stuck(f"u{number}") for number in range(5)]
    await evictor.reconcile(pods, NOTHING)
    now[0] += 61.0
    again = await evictor.reconcile(pods, NOTHING)
    assert api.tried == tried
    assert 0 < again <= 60.0


@pytest.mark.slow
async def test_failed_removal_of_annotations_is_not_retried_each_round() -> None:
    api, now = Refusing(), [0.0]
    entry = builders.allocation("a1", "GPU-node-a-0", request=50, memory_gib=40, uid="u")
    node = dataclasses.replace(builders.node(), allocations=(entry,))
    store = MemoryStore([codec.to_document(node)])
    manifest = builders.pod(request="0.5", memory="40Gi", allocation="a1", node="node-a", reason="is not resized yet")
    manifest["metadata"].update(uid="u", resourceVersion="1")
    resizer = Resizer(api, store, api, metrics.Metrics(), clock=lambda: now[0])  # type: ignore[arg-type]
    pod = Pod.from_manifest(manifest)
    touched = Touched((node,), (pod,), frozenset({node.name}))
    while now[0] < 600.0:
        await resizer.reconcile(touched, {objects.key_of(manifest): pod})
        touched, now[0] = NOTHING, now[0] + 0.5
    assert contract.REASON in manifest["metadata"]["annotations"]
    assert 5 <= api.tried <= 10
