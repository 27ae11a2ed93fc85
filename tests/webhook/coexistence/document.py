"""Writes docs/coexistence.md: `python -m tests.webhook.coexistence.document docs/coexistence.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.webhook.coexistence import software

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "coexistence.md"
HEAD = """\
# Running with other software

Other webhooks change pods before and after gpushare is called. The API server calls them in the
order of their configurations' names, and calls a webhook again if a later one has changed the pod.

* gpushare chooses the container that has the share in its first call. Containers that are added
  later do not change it.
* Each call evaluates the pod's current state. If the pod no longer fits its node, gpushare releases
  the share and places the pod again. A pod with another scheduling gate gets no share.
* A webhook that adds the annotation itself must be called before gpushare.

Except for [Kueue](kueue.md), the tests do not run the products themselves: a webhook makes the same
change to a pod with a share, in the order of the default names.

"""
COLUMNS = ("software", "what it does to the pod", "called", "result", "what to do")
TAIL = """
## Autoscalers

Cluster Autoscaler and Karpenter ignore pods with a scheduling gate. With the component `demand`,
gpushare asks them for nodes: [autoscaling.md](autoscaling.md).

## Jobs and workflows

gpushare never evicts pods of Jobs and workflows that the scheduler cannot bind, because a Job
counts an evicted pod as a failure, and a workflow may not recreate it. They get an Event that says
what to do.

## Gangs of a StatefulSet

Set `podManagementPolicy: Parallel`. With `OrderedReady` the first pod waits for its group, but the
second is created only once the first is ready. The API server warns you about it.

## After `kubectl delete --force`

The pod object is gone at once, but its processes may still run. The next pod's processes on that
GPU wait up to 15 seconds until its memory is free. After that they are refused, and the message
names the deleted pod.
"""


def row(product: software.Software) -> tuple[str, ...]:
    """Return a line of the table."""
    called = "before gpushare" if product.before else "after gpushare"
    return product.name, product.does, called, product.comes, product.advice


def page() -> str:
    """Return the whole page."""
    cells = [COLUMNS, ("---",) * len(COLUMNS), *map(row, software.SOFTWARE)]
    table = "".join(f"| {' | '.join(cell)} |\n".replace("|  |", "| |") for cell in cells)
    return HEAD + table + TAIL


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
