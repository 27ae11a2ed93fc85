from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.cluster import api_client, election
from lab import access
from tests.gpushare.cluster import tcp_proxy, waiting

pytestmark = pytest.mark.apiserver

# CALM tolerates a busy machine; FAST is for tests in which the leader must change.
CALM = election.LeaseTiming(duration_seconds=20, renew_deadline_seconds=15.0, retry_seconds=0.1)
FAST = election.LeaseTiming(duration_seconds=4, renew_deadline_seconds=3.0, retry_seconds=0.1)


class Candidate:
    """A candidate that records when it starts and stops leading, in its diary and in a common list of leaders."""

    def __init__(
        self,
        api: api_client.ApiClient,
        namespace: str,
        name: str,
        me: str,
        leading: list[str],
        timing: election.LeaseTiming = CALM,
    ) -> None:
        self.diary: list[str] = []
        self.leading = leading
        self.me = me
        self.election = election.Election(
            api, namespace=namespace, name=name, me=me, started=self._started, stopped=self._stopped, timing=timing
        )

    def _started(self) -> None:
        self.diary.append("started")
        self.leading.append(self.me)
        assert self.leading == [self.me], "two lead at once"

    def _stopped(self) -> None:
        self.diary.append("stopped")
        self.leading.remove(self.me)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.timeout(60):
            task = asyncio.create_task(self.election.run())
            try:
                yield
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def stored(api: api_client.ApiClient, namespace: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = (await api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"))["spec"]
    return spec


async def test_one_candidate_leads_and_hands_over_when_it_stops(api: api_client.ApiClient, namespace: str) -> None:
    leading: list[str] = []
    candidates = {me: Candidate(api, namespace, "many", me, leading) for me in ("a", "b", "c")}
    async with contextlib.AsyncExitStack() as stack:
        standing = {me: await stack.enter_async_context(contextlib.AsyncExitStack()) for me in candidates}
        for me, candidate in candidates.items():
            await standing[me].enter_async_context(candidate.running())
        for _ in range(2):
            await waiting.until(lambda: bool(leading))
            leader = candidates[leading[0]]
            assert leader.election.is_leader
            assert (await stored(api, namespace, "many"))["holderIdentity"] == leader.me
            await standing[leader.me].aclose()
            assert leader.diary == ["started", "stopped"]
            assert not leader.election.is_leader
        await waiting.until(lambda: bool(leading))
    assert [candidate.diary for candidate in candidates.values()] == [["started", "stopped"]] * 3
    spec = await stored(api, namespace, "many")
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("", 3)


async def test_a_disconnected_leader_stops_before_another_starts(
    api_server: access.Access, api: api_client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    leading: list[str] = []
    async with tcp_proxy.before(api_server.server) as proxy:
        kubeconfig = tcp_proxy.kubeconfig_through(api_server.kubeconfig, proxy.port, tmp_path / "kubeconfig")
        async with api_client.connect(kubeconfig) as unlucky:
            lost = Candidate(unlucky, namespace, "cut-off", "lost", leading, FAST)
            heir = Candidate(api, namespace, "cut-off", "heir", leading, FAST)
            async with lost.running():
                await waiting.until(lambda: lost.election.is_leader)
                async with heir.running():
                    await waiting.until(lambda: heir.election.leader == "lost")
                    proxy.hold()  # calls neither fail nor return: the worst case
                    await waiting.until(lambda: heir.election.is_leader)
                    assert lost.diary == ["started", "stopped"]


async def test_a_leader_renews_its_lease_with_one_call(
    api_server: access.Access, api: api_client.ApiClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api_client.connect(str(api_server.kubeconfig)) as own:
        candidate = Candidate(own, namespace, "one-call", "me", [])
        async with candidate.running():
            await waiting.until(lambda: candidate.election.is_leader)
            read: list[str] = []
            get = own.get
            monkeypatch.setattr(own, "get", lambda path, *more: read.append(path) or get(path, *more))
            renewed = {(await stored(api, namespace, "one-call"))["renewTime"]}

            async def is_renewed_thrice() -> bool:
                renewed.add((await stored(api, namespace, "one-call"))["renewTime"])
                return len(renewed) > 3

            await waiting.until(is_renewed_thrice)
            assert read == []
            assert candidate.diary == ["started"]


async def test_a_leader_stops_when_another_takes_its_lease(api: api_client.ApiClient, namespace: str) -> None:
    leading: list[str] = []
    candidate = Candidate(api, namespace, "taken", "me", leading)
    async with candidate.running():
        await waiting.until(lambda: candidate.election.is_leader)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/taken"
        await api.patch(path, {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 60}})
        await waiting.until(lambda: candidate.diary == ["started", "stopped"])
        assert candidate.election.leader == "thief"


async def test_a_leader_stops_and_recreates_a_deleted_lease(api: api_client.ApiClient, namespace: str) -> None:
    leading: list[str] = []
    candidate = Candidate(api, namespace, "deleted", "me", leading)
    async with candidate.running():
        await waiting.until(lambda: candidate.election.is_leader)
        await api.delete(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/deleted")
        await waiting.until(lambda: candidate.diary == ["started", "stopped", "started"])


async def test_the_leader_of_a_recreated_lease_is_not_the_first(api: api_client.ApiClient, namespace: str) -> None:
    leading: list[str] = []
    first, second = (Candidate(api, namespace, "recreated", me, leading) for me in ("first", "second"))
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/recreated"
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(first.running())
        await waiting.until(lambda: first.election.is_leader)
        assert first.election.is_first
        await api.delete(path)
        await waiting.until(lambda: first.diary == ["started", "stopped", "started"])
        assert (await stored(api, namespace, "recreated"))["leaseTransitions"] == 1
        assert not first.election.is_first
        async with second.running():
            await waiting.until(lambda: second.election.leader == "first")
            await stack.aclose()
            await waiting.until(lambda: second.election.is_leader)
            assert not second.election.is_first


async def test_an_error_in_a_callback_ends_the_election_and_releases_the_lease(
    api: api_client.ApiClient, namespace: str
) -> None:
    def fail() -> None:
        raise OSError("no")

    standing = election.Election(
        api, namespace=namespace, name="raises", me="me", started=fail, stopped=lambda: None, timing=CALM
    )
    with pytest.raises(OSError, match="no"):
        await asyncio.wait_for(standing.run(), 30)
    assert (await stored(api, namespace, "raises"))["holderIdentity"] == ""
