"""The nodes for the load: hand-made, without a kubelet, so that no pod has to be started.

Most of them are roomy; the first node is crowded, so that pods have to wait for it.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from burst import calls, made

from gpushare import contract

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_SECONDS = 8.0  # a node without a renewal for 50 s is not ready
AT_ONCE = 4
LABEL = "bench.gpushare.io/ground"


@contextmanager
def nodes(server: calls.Server, name: str, count: int) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Create `count` nodes of eight GPUs and renew their leases; yield the selectors of the crowded and the roomy
    ones.
    """
    names = [f"{name}-{number}" for number in range(count)]
    made.nodes(server, names)
    labelled = [
        calls.call("PATCH", f"/api/v1/nodes/{node_name}", _label(f"{name}-{kind}"), calls.MERGE_PATCH)
        for node_name, kind in zip(names, ("crowded", *("roomy",) * (count - 1)), strict=True)
    ]
    leased = [calls.call("POST", LEASES, _lease(node_name)) for node_name in names]
    calls.all_well(calls.send(server, [*labelled, *leased], at_once=AT_ONCE))
    stopping = threading.Event()

    def renew() -> None:
        while not stopping.wait(RENEW_SECONDS):
            renewed = [calls.call("PATCH", f"{LEASES}/{node}", _lease(node), calls.MERGE_PATCH) for node in names]
            # While the API server is down or has just restarted; the next renewal is early enough.
            with suppress(OSError, EOFError):
                calls.send(server, renewed, at_once=1)

    thread = threading.Thread(target=renew, name="leases", daemon=True)
    thread.start()
    try:
        yield {LABEL: f"{name}-crowded"}, {LABEL: f"{name}-roomy"}
    finally:
        stopping.set()
        thread.join(60)
        lists = ("/api/v1/nodes", contract.GPUNODE_PATH, LEASES)
        gone = [calls.call("DELETE", f"{path}/{node_name}") for node_name in names for path in lists]
        calls.send(server, gone, at_once=AT_ONCE)


def _label(value: str) -> dict[str, object]:
    return {"metadata": {"labels": {LABEL: value}}}


def _lease(name: str) -> dict[str, object]:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now},
    }
