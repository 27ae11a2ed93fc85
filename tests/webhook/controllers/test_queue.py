"""The order of the queue, and which pods have equal kinds."""

from __future__ import annotations

from typing import Any

from gpushare import contract
from tests import builders
from webhook.controllers import queue
from webhook.pods.stored_pod import Pod


def waits(name: str, *, priority: int = 0, created: str = "2026-01-01T00:00:00Z", **asked: str) -> dict[str, Any]:
    made = builders.pod(name, **(asked or {"request": "0.5"}))
    made["metadata"]["creationTimestamp"] = created
    made["spec"].update(priority=priority, schedulingGates=[{"name": contract.SCHEDULING_GATE}])
    return made


def names(pods: list[Any]) -> list[str]:
    """Return the names of the waiting pods in their order."""
    waiting = [pod for pod in map(Pod.from_manifest, pods) if pod.waits]
    return [pod.ref.name for pod in sorted(waiting, key=queue.order)]


def kind(pod: dict[str, Any]) -> str:
    return queue.kind(Pod.from_manifest(pod))


def test_priority_then_age_then_name() -> None:
    pods = [
        waits("b", created="2026-01-02T00:00:00Z"),
        waits("a", created="2026-01-02T00:00:00Z"),
        waits("old", created="2026-01-01T00:00:00Z"),
        waits("urgent", priority=10, created="2026-01-03T00:00:00Z"),
    ]
    assert names(pods) == ["urgent", "old", "a", "b"]


def test_only_pods_that_wait_for_gpushare_are_queued() -> None:
    leaving, ended, others = waits("leaving"), waits("ended"), waits("others")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ended["status"] = {"phase": "Failed"}
    others["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    assert names([leaving, ended, others, waits("ours")]) == ["ours"]


def test_pods_with_equal_needs_have_equal_kinds() -> None:
    pod = waits("one")
    same = waits("two", priority=7)
    same["metadata"]["annotations"][contract.REASON] = "full"
    same["metadata"]["annotations"]["example.com/note"] = "x"
    assert kind(pod) == kind(same)
    picky = waits("picky")
    picky["spec"]["nodeSelector"] = {"pool": "gpu"}
    for other in (picky, waits("more", request="0.6"), waits("other", request="0.5", model="*H100*")):
        assert kind(pod) != kind(other)


def test_token_volumes_do_not_distinguish_pods_and_claims_do() -> None:
    def mounts(suffix: str, **source: Any) -> dict[str, Any]:
        made = waits(suffix)
        made["spec"]["volumes"] = [{"name": f"kube-api-access-{suffix}", "projected": {}}, {"name": "data", **source}]
        return made

    assert kind(mounts("x7b2p", emptyDir={})) == kind(mounts("k9d4c", emptyDir={}))
    claims = [mounts("x7b2p", persistentVolumeClaim={"claimName": name}) for name in ("a", "b")]
    assert kind(claims[0]) != kind(claims[1])
