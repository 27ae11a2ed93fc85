"""The number of a Deployment's pods under a load that grows and ends, with a real HorizontalPodAutoscaler.

A lab of one node with gpushare, the controller manager's autoscaler, a real Prometheus, and the lab's metrics adapter
with the rules of config/samples/scaling. Prints a table for people, then one JSON object a line per figure; `--plot`
draws the story.

Run (as root): python -m bench.scaling [--plot FILE.svg]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab import cluster as lab_cluster
from lab import gpushare, lab_layout
from tests.integrations import metrics_adapter, scaling_story
from tests.integrations.scaling_story import Moment, Service
from tests.monitoring import prometheus, test_story

GROWN = 5  # pods: the load over what a pod has at the target


def story(scratch: Path) -> tuple[dict[str, float], list[Moment]]:
    """Return the end of each part in seconds, and all moments."""
    directory = scratch / "lab"
    try:
        administrator = lab_cluster.up(directory, node_count=1, owner=os.getpid())
        gpushare.install(lab_layout.load(directory), administrator)
        load = scratch / "load"
        load.mkdir()
        with (
            prometheus.running(scratch / "prometheus", test_story.scrapes(administrator)) as seen,
            metrics_adapter.running(administrator, scratch / "adapter", seen.url),
            administrator.namespace("team") as namespace,
        ):
            service = Service(administrator, namespace, seen, load)
            ends = {}
            for part in scaling_story.tell(service, grown=GROWN):
                ends[part] = service.moments[-1].seconds
            return ends, service.moments
    finally:
        lab_cluster.down(directory)


def changes(moments: Sequence[Moment]) -> Iterator[Moment]:
    """Yield the moments at which the load or the number of pods changed."""
    before = None
    for moment in moments:
        now = moment.load_percent, moment.desired, moment.ready
        if now != before:
            yield moment
        before = now


def plot(moments: Sequence[Moment], target: Path) -> None:
    """Draw load and pods above, the busy ratio below."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "gpushare"
    seconds = [moment.seconds for moment in moments]
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 4.6), layout="constrained")
    above.step(seconds, [moment.desired for moment in moments], where="post", label="pods wanted", linestyle="--")
    above.step(seconds, [moment.ready for moment in moments], where="post", label="pods ready")
    above.set_ylabel("pods")
    above.set_ylim(0)
    right = above.twinx()
    right.fill_between(seconds, [moment.load_percent for moment in moments], step="post", alpha=0.15, color="gray")
    right.set_ylabel("load, % of a GPU (gray)")
    right.set_ylim(0)
    above.legend(loc="upper left")
    measured = [(moment.seconds, moment.busy_ratio) for moment in moments if moment.busy_ratio is not None]
    below.plot(*zip(*measured, strict=True), color="tab:green", label="used over requested")
    below.axhline(0.8, linestyle=":", color="black", label="target")
    below.set_ylabel("busy ratio")
    below.set_xlabel("seconds")
    below.set_ylim(0)
    below.legend(loc="upper right")
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    """Run the scenario and print its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        Path(scratch).chmod(0o755)
        ends, moments = story(Path(scratch))
    print(f"{'seconds':>8} {'load %':>7} {'wanted':>7} {'ready':>6} {'busy':>6}")
    for moment in changes(moments):
        busy = "" if moment.busy_ratio is None else f"{moment.busy_ratio:.2f}"
        print(f"{moment.seconds:8.0f} {moment.load_percent:7.0f} {moment.desired:7} {moment.ready:6} {busy:>6}")
    if arguments.plot:
        plot(moments, arguments.plot)
    for name, first, last in (("grow", "quiet", "grown"), ("shrink", "grown", "shrunk")):
        row = {"figure": f"scaling.{name}.seconds", "value": round(ends[last] - ends[first], 1), "unit": "s"}
        print(json.dumps({**row, "against": "limit", "ratio": None}))


if __name__ == "__main__":
    main()
