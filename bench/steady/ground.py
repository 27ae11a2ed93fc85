"""The nodes for the load: hand-made, without a kubelet, so that no pod has to be started.

Most of them are roomy; the first node is crowded, so that pods have to wait for it.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from burst import calls, made

from gpushare import contract

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_SECONDS = 8.0  # a node without a renewal for 50 s is not ready
LABEL = "bench.gpushare.io/ground"


@contextmanager
def nodes(server: calls.Server, name: str, count: int) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Create `count` nodes of eight GPUs and renew their leases; yield the selectors of the crowded and the roomy
    ones.
    """
    names = [f"{name}-{number}" for number in range(count)]
    made.nodes(server, names)
    for node_name in names:
        label = {"metadata": {"labels": {LABEL: f"{name}-{'crowded' if node_name == names[0] else 'roomy'}"}}}
        calls.ask(server, calls.call("PATCH", f"/api/v1/nodes/{node_name}", label, calls.MERGE_PATCH))
        calls.ask(server, calls.call("POST", LEASES, _lease(node_name)))
    stopping = threading.Event()

    def renew() -> None:
        while not stopping.wait(RENEW_SECONDS):
            for node_name in names:
                try:
                    calls.ask(
                        server, calls.call("PATCH", f"{LEASES}/{node_name}", _lease(node_name), calls.MERGE_PATCH)
                    )
                except (OSError, SystemExit, EOFError):
                    break  # the API server is down or has just restarted: the next renewal is early enough

    thread = threading.Thread(target=renew, name="leases", daemon=True)
    thread.start()
    try:
        yield {LABEL: f"{name}-crowded"}, {LABEL: f"{name}-roomy"}
    finally:
        stopping.set()
        thread.join(60)
        for node_name in names:
            paths = (f"/api/v1/nodes/{node_name}", f"{contract.GPUNODE_PATH}/{node_name}", f"{LEASES}/{node_name}")
            calls.send(server, [calls.call("DELETE", path) for path in paths], at_once=1)


def _lease(name: str) -> dict[str, object]:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now},
    }
