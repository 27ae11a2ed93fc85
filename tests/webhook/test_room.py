"""A pod that fits nowhere borrows a GPU if one is lent, before another pod is evicted for it."""

from __future__ import annotations

from gpushare import contract
from gpushare.nodefilters import NodeSpec
from gpushare.refusal import Refusal
from tests import builders
from tests.webhook.controllers import lending_cluster
from tests.webhook.controllers.preempting_cluster import Preempting
from tests.webhook.controllers.test_demand_controller import NOW
from webhook.controllers.borrow import borrow_controller
from webhook.controllers.borrow.borrow_controller import BorrowController, BorrowSettings
from webhook.placer import RoomMaker


async def test_no_pod_is_evicted_while_a_gpu_is_lent_unless_that_takes_long() -> None:
    lender = builders.node("lender", gpus=1, owner=contract.OTHER_OWNER)
    cluster = Preempting(builders.node("node-a", gpus=1), lender)
    made = builders.node_object("lender", labels={contract.BORROW_LABEL: "1"})
    made["status"]["allocatable"][contract.BORROWED_RESOURCE] = "1"
    cluster.store.chooser.cache.put_node_spec("lender", NodeSpec.from_manifest(made))
    api = lending_cluster.Cluster()  # no scheduler binds its placeholders
    borrow = BorrowController(
        api, cluster.store, cluster.reservation, BorrowSettings(16), wall_clock=lambda: NOW + api.now
    )
    room = RoomMaker(borrow, cluster.preemptor, None)
    await cluster.run("low", request="1")

    async def reason() -> str:
        await borrow.tend()
        await cluster.step()
        told = await room.reconcile([(cluster.stored()["high"], Refusal(cluster.told["high"]))])
        return told[0][1].reason

    cluster.ask("high", request="1")
    assert "; waits for a GPU: 1 asked for" in await reason()
    assert (len(api.pods), cluster.evicted) == (1, [])
    api.now += borrow_controller.LATE_SECONDS
    assert "; takes the place of other pods on node-a: default/low" in await reason()
    assert cluster.evicted == ["low"]
    assert (await reason()).endswith("; takes the place of other pods on node-a, which are ending")
    assert api.pods == {}  # its placeholder is withdrawn
