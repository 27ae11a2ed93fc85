"""The page while reading a live cluster fails in part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpushare.gpunode import GpuNode
from kubectl_gpushare import following, kubectl, options, plugin_errors
from kubectl_gpushare.source import chosen_source, live_cluster
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.ui import cluster_follower


class QuietFeed:
    """A watch on which nothing happens."""

    nodes: Sequence[GpuNode] = ()
    trouble = ""

    def __init__(self, origin: live_cluster.LiveCluster) -> None:
        pass


def test_a_failed_read_of_the_pods_is_said_until_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [plugin_errors.KubectlError("pods: timed out")]

    def around(*_: object, **__: object) -> Snapshot:
        if answers:
            raise answers.pop()
        return Snapshot((), ())

    monkeypatch.setattr(following, "Feed", QuietFeed)
    monkeypatch.setattr(chosen_source, "around", around)
    origin = live_cluster.LiveCluster(kubectl.Kubectl((), "/bin/false"))
    follower = cluster_follower.ClusterFollower(origin, options.Options(), usage=False)
    assert follower.scene.trouble == "pods: timed out"
    follower._read(with_pods=False)
    assert follower.scene.trouble == "pods: timed out"
    follower._due = 0.0
    follower._read()
    assert follower.scene.trouble == ""
    assert follower.scene.pause_seconds == 10
