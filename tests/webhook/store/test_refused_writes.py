"""A share that the API server rejects is not stored, and keeps no other pod from its GPU."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare import request as requests
from gpushare.allocation import PodRef
from gpushare.cluster import api_client, api_errors
from gpushare.refusal import Cause, Refusal
from tests import builders
from tests.gpushare.cluster import waiting
from webhook import metrics
from webhook.pods.mutation import Placed
from webhook.store import api_store, avoided_nodes, gpunode_writer, reservation, reservation_limits
from webhook.store.api_store import ApiStore
from webhook.store.reservation import Reservation

IMPATIENT_SECONDS = 1.0
SAID = "denied by policy tidy-names"
Refuses = Callable[[dict[str, Any]], bool]


class Refusing(api_client.ApiClient):
    """An API server with GPUNodes of two GPUs, which rejects some writes."""

    def __init__(self, refuses: Refuses, *names: str) -> None:
        self.refuses = refuses
        self.documents: dict[str, dict[str, Any]] = {}
        for name in names:
            made = self.documents[name] = codec.to_document(builders.node(name, gpus=2))
            made["metadata"].update(uid=f"uid-{name}", resourceVersion="1")
        self.tried: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: api_errors.ClusterError = api_errors.Invalid(SAID, status=422)

    async def list(self, path: str, *_: Any, keep: Callable[[dict[str, Any]], Any]) -> api_client.ObjectList[Any]:
        items = {
            contract.GPUNODE_PATH: copy.deepcopy(self.documents).values(),
            api_store.NODES_PATH: [builders.node_object(name, uid=name) for name in self.documents],
        }.get(path, ())
        return api_client.ObjectList([keep(item) for item in items], "1")

    async def get(self, path: str, query: api_client.Query | None = None) -> dict[str, Any]:  # noqa: ARG002
        return copy.deepcopy(self.documents[path.rsplit("/", 1)[1]])

    async def replace(self, path: str, body: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        self.tried.append(name)
        await self.may_answer.wait()
        if self.refuses(dict(body)):
            raise self.error
        self.documents[name] = copy.deepcopy(dict(body))
        self.documents[name]["metadata"]["resourceVersion"] = str(1 + len(self.tried))
        return copy.deepcopy(self.documents[name])

    @contextlib.asynccontextmanager
    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        async def nothing() -> AsyncIterator[dict[str, Any]]:
            await asyncio.Event().wait()
            yield {}

        yield nothing()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Asking:
    """Reservations on the store, and its reports about nodes."""

    def __init__(self, api: Refusing, deadline_seconds: float) -> None:
        self.clock = Clock()
        self.told: list[tuple[str, str]] = []
        self.store = ApiStore(
            api,
            metrics.Metrics(),
            on_refused=lambda node, why: self.told.append((node["metadata"]["name"], why)),
            lifetime_seconds=reservation.LIFETIME_SECONDS,
            clock=self.clock,
        )
        self.wall_seconds = 1.7e9
        self._rules = Reservation(
            self.store,
            policy="spread",
            clock=self.clock,
            wall_clock=lambda: self.wall_seconds,
            deadline_seconds=deadline_seconds,
        )

    async def reserve(self, name: str, *, uid: str | None = None) -> Placed | Refusal:
        manifest = builders.pod(name, request="0.1")
        holder = PodRef("default", name, f"uid-{name}" if uid is None else uid)
        return await self._rules.reserve(manifest, requests.parse(manifest), holder)

    async def together(self, *names: str) -> dict[str, bool]:
        """Create pods at the same time; return which were placed."""
        outcomes = await asyncio.gather(*map(self.reserve, names))
        return {name: isinstance(outcome, Placed) for name, outcome in zip(names, outcomes, strict=True)}


@contextlib.asynccontextmanager
async def asking(api: Refusing, *, deadline_seconds: float = 60.0) -> AsyncIterator[Asking]:
    made = Asking(api, deadline_seconds)
    task = asyncio.create_task(made.store.run())
    try:
        async with asyncio.timeout(60):
            await made.store.synced()
            yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.store.close()


def holds(*names: str) -> Refuses:
    def refuses(document: dict[str, Any]) -> bool:
        return any(entry["pod"]["name"] in names for entry in document["spec"]["allocations"])

    return refuses


def is_node(name: str) -> Refuses:
    return lambda document: bool(document["metadata"]["name"] == name)


@pytest.mark.parametrize("status", [400, 403, 413, 422])
async def test_rejected_share_does_not_fail_other_pods(status: int) -> None:
    api = Refusing(holds("odd"), "node-a")
    api.error = api_errors.from_answer(status, SAID, doing="PUT")
    async with asking(api) as pods:
        assert await pods.together("odd", "good-0", "good-1", "good-2") == {
            "odd": False,
            "good-0": True,
            "good-1": True,
            "good-2": True,
        }
        refusal = await pods.reserve("odd")
        assert isinstance(refusal, Refusal)
        assert SAID in refusal.reason


async def test_a_pod_that_no_node_stores_is_not_tried_everywhere_nor_all_the_time() -> None:
    api = Refusing(holds("odd"), *(f"node-{number}" for number in range(9)))
    async with asking(api) as pods:
        refusal = await pods.reserve("odd")
        assert isinstance(refusal, Refusal)
        assert refusal.cause == Cause.LEDGER
        assert refusal.reason == f"the API server rejects its share on every node ({SAID})"
        assert len(set(api.tried)) == len(api.tried) == reservation.MAX_REFUSED
        assert await pods.reserve("odd") == refusal
        assert len(api.tried) == reservation.MAX_REFUSED
        assert isinstance(await pods.reserve("good"), Placed)
        pods.clock.now += reservation.REFUSED_SECONDS
        pods.wall_seconds -= 3600.0  # which affects no other pod
        api.refuses = holds()
        assert isinstance(await pods.reserve("odd"), Placed)


async def test_unwritable_node_is_used_last_and_reported() -> None:
    api = Refusing(is_node("node-a"), "node-a", "node-b")
    async with asking(api) as pods:
        assert await pods.together("one", "two", "three") == {"one": True, "two": True, "three": True}
        assert pods.told
        assert set(pods.told) == {("node-a", SAID)}
        tried = api.tried.count("node-a")
        assert tried <= 1 + gpunode_writer.MAX_REFUSED
        assert isinstance(await pods.reserve("four"), Placed)
        assert api.tried.count("node-a") == tried
        pods.clock.now += avoided_nodes.REFUSED_SECONDS
        assert isinstance(await pods.reserve("five"), Placed)
        assert api.tried.count("node-a") == tried + 1


async def test_a_pod_that_its_three_best_nodes_do_not_store_gets_to_the_fourth() -> None:
    """The pod pauses as long as those nodes are deprioritized, and the nodes' next pause is longer."""
    bad = {"node-a", "node-b", "node-c"}
    api = Refusing(lambda document: document["metadata"]["name"] in bad, *sorted(bad), "node-d")
    async with asking(api) as pods:
        outcome: Placed | Refusal | None = None
        for _ in range(3):
            outcome = await pods.reserve("one")
            if isinstance(outcome, Placed):
                break
            pods.clock.now += reservation.REFUSED_SECONDS
        assert isinstance(outcome, Placed)
        assert outcome.node == "node-d"


async def test_where_there_is_no_other_node_the_reason_is_the_api_servers() -> None:
    api = Refusing(is_node("node-a"), "node-a")
    async with asking(api) as pods:
        refusal = await pods.reserve("one")
        assert isinstance(refusal, Refusal)
        assert refusal.reason.endswith(f"cannot be written ({SAID})")
        api.refuses = holds()
        assert isinstance(await pods.reserve("one"), Placed)


async def test_few_of_many_changes_for_an_unwritable_node_are_tried_alone() -> None:
    api = Refusing(is_node("node-a"), "node-a")
    async with asking(api) as pods:
        names = [f"pod-{number}" for number in range(10)]
        assert not any((await pods.together(*names)).values())
        assert len(api.tried) <= 2 * (1 + gpunode_writer.MAX_REFUSED)


@pytest.mark.slow
async def test_late_write_is_released_without_blame() -> None:
    api = Refusing(holds(), "node-a")

    def held() -> list[str]:
        return [entry["pod"]["name"] for entry in api.documents["node-a"]["spec"]["allocations"]]

    async with asking(api, deadline_seconds=IMPATIENT_SECONDS) as pods:
        for number in range(reservation_limits.MAX_EXPIRED):
            api.may_answer.clear()
            refusal = await pods.reserve(f"impatient-{number}", uid="")
            assert isinstance(refusal, Refusal)
            assert refusal.cause == Cause.LEDGER
            api.may_answer.set()
            await waiting.until(lambda: len(api.tried) % 2 == 0 and not held())
        assert len(api.tried) == 2 * reservation_limits.MAX_EXPIRED, "written, and given back"
        asked = builders.pod("next", request="0.1")
        assert pods.store.premature("default", asked, requests.parse(asked)) is None


@pytest.mark.slow
async def test_late_write_for_a_stored_pod_is_kept() -> None:
    api = Refusing(holds(), "node-a")
    async with asking(api, deadline_seconds=IMPATIENT_SECONDS) as pods:
        api.may_answer.clear()
        assert isinstance(await pods.reserve("gated"), Refusal)
        api.may_answer.set()
        await waiting.until(lambda: bool(pods.store.stored()[0].allocations))
        assert [entry.pod.name for entry in pods.store.stored()[0].allocations] == ["gated"]
