"""A node whose GPUs another device plugin gives: shares and whole-GPU pods side by side, on a real kubelet."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import contract
from lab import access, api_audit, cluster, gpushare, lab_layout
from tests import rights
from tests.e2e import borrowed_node
from tests.e2e.observation import Observer, annotation, eventually
from tests.e2e.test_life_of_a_pod import sleeper

pytestmark = pytest.mark.lab(own=True)

SLOWLY = 120.0


@pytest.fixture(scope="module")
def lender() -> Iterator[tuple[access.Access, lab_layout.Layout]]:
    """A lab of its own, whose node another plugin serves."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            administrator = cluster.up(directory, node_count=1, owner=os.getpid())
            layout = lab_layout.load(directory)
            gpushare.install(layout, administrator)
            with borrowed_node.lent(administrator, layout, "--borrow-idle-seconds=5"):
                yield administrator, layout
                beyond = rights.beyond(api_audit.calls(layout.audit_log))
                assert not beyond, f"gpushare asked for what it has no right to: {beyond}"
        finally:
            cluster.down(directory)


@pytest.fixture
def user(lender: tuple[access.Access, lab_layout.Layout]) -> Iterator[Observer]:
    with lender[0].namespace("e2e") as namespace:
        yield Observer(lender[0], namespace)


def test_gpus_are_borrowed_shared_reclaimed_and_given_back(
    lender: tuple[access.Access, lab_layout.Layout], user: Observer
) -> None:
    lab, installed = lender

    def whole_pods() -> dict[str, str]:
        return borrowed_node.gpus_of_whole_pods(lab, installed)

    node = user.gpunode()
    count = len(node.gpus)
    eventually(lambda: all(gpu.unowned for gpu in user.gpunode().gpus), seconds=SLOWLY, what="the other plugin's GPUs")

    # Two shares need one GPU.
    user.apply(sleeper("a", request="0.5"))
    made = user.pod("a")
    assert made is not None
    assert "belongs to another device plugin" in annotation(made, contract.REASON)
    user.apply(sleeper("b", request="0.5"))
    for name in ("a", "b"):
        user.running(name, seconds=SLOWLY)
    (shared,) = borrowed_node.shared_gpus(user)
    (placeholder,) = borrowed_node.placeholders(lab)
    borrowed = user.gpunode().borrowed
    assert borrowed[shared] == placeholder["metadata"]["uid"]

    # Whole-GPU pods get the others, and the one more that preempts the placeholder waits for the end of the shares.
    names = [f"whole-{number}" for number in range(count)]
    for name in names:
        user.apply(borrowed_node.whole(name))
    eventually(lambda: len(whole_pods()) == count - 1, seconds=SLOWLY, what="running whole-GPU pods")
    eventually(
        lambda: borrowed_node.placeholders(lab)[0]["metadata"].get("deletionTimestamp"),
        seconds=SLOWLY,
        what="preempted",
    )
    reclaimed = f"reason={contract.EVENT_GPU_RECLAIMED}"
    eventually(
        lambda: lab.kubectl("get", "events", "--all-namespaces", f"--field-selector={reclaimed}", "--no-headers"),
        seconds=SLOWLY,
        what="reported",
    )
    assert shared not in whole_pods()
    user.running("a")
    user.apply(sleeper("late", request="0.1"))
    eventually(
        lambda: (
            "waits for a GPU: 1 asked for" in annotation(user.pod("late") or {}, contract.REASON)
            or "borrows no GPU of" in annotation(user.pod("late") or {}, contract.REASON)
        ),
        seconds=SLOWLY,
        what="told why it waits",
    )
    user.delete("pod", "late")
    user.delete("pods", "a", "b")
    eventually(lambda: len(whole_pods()) == count, seconds=SLOWLY, what="given to the pod that waited")
    assert not borrowed_node.shared_gpus(user)

    # Everything is given back in the end, also what was asked for last.
    user.delete("pods", "--all")
    user.apply(sleeper("c", request="1"))
    user.running("c", seconds=SLOWLY)
    user.delete("pods", "--all")
    eventually(lambda: borrowed_node.placeholders(lab) == [], seconds=SLOWLY, what="given back")
    eventually(lambda: all(gpu.unowned for gpu in user.gpunode().gpus), what="the other plugin's again")
