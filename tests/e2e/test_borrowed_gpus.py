"""A node whose GPUs another device plugin gives: shares and whole-GPU pods side by side, on a real kubelet."""

from __future__ import annotations

import pytest

from gpushare import contract
from lab import access, lab_layout
from tests.e2e import borrowed_node
from tests.e2e.observation import Observer, annotation, eventually
from tests.e2e.test_life_of_a_pod import sleeper
from webhook.store import node_ledger

pytestmark = pytest.mark.lab(own=True)

SLOWLY = 120.0


def test_gpus_are_borrowed_shared_reclaimed_and_given_back() -> None:
    with borrowed_node.lab_of_its_own() as (lab, layout), lab.namespace("e2e") as namespace:
        story(lab, layout, Observer(lab, namespace))


def story(lab: access.Access, installed: lab_layout.Layout, user: Observer) -> None:
    """Borrow a GPU, share it, lose it to a pod with a whole GPU, and give everything back."""

    def whole_pods() -> dict[str, str]:
        return borrowed_node.gpus_of_whole_pods(lab, installed)

    node = user.gpunode()
    count = len(node.gpus)
    eventually(lambda: all(gpu.unowned for gpu in user.gpunode().gpus), seconds=SLOWLY, what="the other plugin's GPUs")

    def is_open() -> bool:
        return all(map(node_ledger.is_open, lab.read(contract.GPUNODE_PATH)["items"]))

    eventually(is_open, seconds=SLOWLY, what="a ledger with the node's pods, which the placer has listed")

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
