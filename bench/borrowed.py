"""Whole-GPU pods and shares at random on a node of another device plugin: does a GPU ever have both?

A node of the lab, whose GPUs a stand-in for NVIDIA's device plugin gives. Pods of both kinds come and end at random;
placeholders are deleted, as a drain or a preemption would, and the agent and the webhook's replicas are killed. All the
time, the GPUs that the kubelet has given to whole-GPU pods are compared with the shares in the ledger. At the end all
pods are deleted, and every GPU must go back.

Run: `python bench/borrowed.py [--minutes M] [--seed S]`. Prints a table, then one JSON object a figure; exits with 1 if
a GPU had both, or a GPU did not go back.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tabulate

from deviceplugin.state import pod_resources
from gpushare import contract
from lab import access, cluster, gpushare, lab_errors, lab_layout
from tests.e2e import borrowed_node
from tests.e2e.observation import Observer, annotation
from tests.e2e.test_life_of_a_pod import sleeper

PAUSE_SECONDS = (0.5, 3.0)
BACK_SECONDS = 180.0
MAX_PODS = 10
KINDS = ("share", "share", "share", "whole", "end", "end", "end", "placeholder", "agent", "webhook")
RARE = {"placeholder": 0.5, "agent": 0.3, "webhook": 0.3}  # how often such a step is done at all


class Watch(threading.Thread):
    """Compares kubelet and ledger until stopped."""

    def __init__(self, user: Observer, lab: access.Access, layout: lab_layout.Layout) -> None:
        super().__init__(name="watch", daemon=True)
        self._user, self._lab, self._layout = user, lab, layout
        self._stopped = threading.Event()
        self.comparisons = self.both_kinds = self.most_borrowed = 0
        self.found: set[str] = set()

    def run(self) -> None:
        while not self._stopped.wait(0.2):
            with contextlib.suppress(lab_errors.LabError, OSError, pod_resources.PodResourcesError):
                self._compare()

    def _compare(self) -> None:
        # A share that is there before and after the kubelet's answer was there with it.
        before = borrowed_node.shared_gpus(self._user)
        whole = borrowed_node.gpus_of_whole_pods(self._lab, self._layout)
        after = borrowed_node.shared_gpus(self._user)
        shared = {uuid for uuid, ids in before.items() if ids & after.get(uuid, frozenset())}
        self.comparisons += 1
        self.both_kinds += bool(shared and whole)
        self.most_borrowed = max(self.most_borrowed, len(shared))
        self.found |= {f"{uuid} has shares and the pod {whole[uuid]}" for uuid in shared & whole.keys()}

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class World:
    """Pods at random."""

    def __init__(self, user: Observer, lab: access.Access, layout: lab_layout.Layout, seed: int) -> None:
        self._user, self._lab, self._layout = user, lab, layout
        self._random = random.Random(seed)
        self._pods: list[str] = []
        self.created = 0
        self.waited: set[str] = set()

    def step(self) -> str:
        kind = self._random.choice(KINDS)
        if kind in {"share", "whole"} and len(self._pods) >= MAX_PODS:
            kind = "end"
        if self._random.random() > RARE.get(kind, 1.0):
            return "nothing"
        with contextlib.suppress(lab_errors.LabError):  # a replica was just killed, or the pod has gone
            getattr(self, f"_{kind}")()
        for made in self._user.pods():
            if "waits for a GPU" in annotation(made, contract.REASON):
                self.waited.add(made["metadata"]["name"])
        return kind

    def pause_seconds(self) -> float:
        return self._random.uniform(*PAUSE_SECONDS)

    def _share(self) -> None:
        self.created += 1
        name = f"share-{self.created}"
        self._pods.append(name)
        self._user.apply(sleeper(name, request=self._random.choice(("0.25", "0.5", "1"))))

    def _whole(self) -> None:
        self.created += 1
        name = f"whole-{self.created}"
        self._pods.append(name)
        self._user.apply(borrowed_node.whole(name))

    def _end(self) -> None:
        if self._pods:
            name = self._pods.pop(self._random.randrange(len(self._pods)))
            self._user.kubectl("delete", "pod", name, "--wait=false", "--ignore-not-found")

    def _placeholder(self) -> None:
        if there := borrowed_node.placeholders(self._lab):
            name = self._random.choice(there)["metadata"]["name"]
            self._lab.kubectl("delete", "pod", name, f"--namespace={contract.BORROW_NAMESPACE}", "--wait=false")

    def _agent(self) -> None:
        gpushare.kill(self._layout, self._random.choice(gpushare.pods(self._lab, "agent")))

    def _webhook(self) -> None:
        gpushare.kill(self._layout, self._random.choice(gpushare.pods(self._lab, "webhook")))


def given_back(user: Observer, lab: access.Access) -> float | None:
    """Delete all pods; return the seconds until every GPU is the other plugin's again, or None if one stays."""
    user.kubectl("delete", "pods", "--all", "--wait=false")
    began = time.monotonic()
    while time.monotonic() < began + BACK_SECONDS:
        with contextlib.suppress(lab_errors.LabError):
            if not borrowed_node.placeholders(lab) and all(gpu.unowned for gpu in user.gpunode().gpus):
                return time.monotonic() - began
        time.sleep(0.5)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        try:
            lab = cluster.up(Path(scratch) / "lab", node_count=1, owner=os.getpid())
            layout = lab_layout.load(Path(scratch) / "lab")
            with borrowed_node.lent(lab, layout, idle_seconds=10), lab.namespace("borrowed") as namespace:
                user = Observer(lab, namespace)
                watch, world = Watch(user, lab, layout), World(user, lab, layout, options.seed)
                watch.start()
                end = time.monotonic() + 60 * options.minutes
                while time.monotonic() < end:
                    counts[world.step()] += 1
                    time.sleep(world.pause_seconds())
                back = given_back(user, lab)
                watch.stop()
        finally:
            cluster.down(Path(scratch) / "lab")
    figures = {
        "pods": world.created,
        "pods.waited-for-a-gpu": len(world.waited),
        "comparisons": watch.comparisons,
        "comparisons.with-both-kinds": watch.both_kinds,
        "gpus.shared-at-most": watch.most_borrowed,
        "over-commitments": len(watch.found),
        "seconds-until-given-back": round(back, 1) if back is not None else None,
    }
    print(tabulate.tabulate(sorted(counts.items()), headers=("step", "times"), tablefmt="github"), end="\n\n")
    print(tabulate.tabulate(figures.items(), headers=("figure", "value"), tablefmt="github"))
    print(*sorted(watch.found), sep="\n")
    for name, value in figures.items():
        print(json.dumps({"figure": f"borrowed.{name}", "value": value, "unit": "s" if "seconds" in name else ""}))
    sys.exit(1 if watch.found or back is None else 0)


if __name__ == "__main__":
    main()
