"""A watch ends, fails and recovers. A script in kubectl's place does what an API server rarely does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare import codec
from gpushare.gpunode import GpuNode
from kubectl_gpushare import following, kubectl, plugin_errors
from kubectl_gpushare.source import live_cluster
from tests import builders

pytestmark = pytest.mark.slow

SECONDS = 20.0


def event(kind: str, node: GpuNode) -> str:
    return json.dumps({"type": kind, "object": codec.to_document(node)})


def answer(*nodes: GpuNode) -> str:
    items = [codec.to_document(node) for node in nodes]
    return json.dumps({"kind": "GPUNodeList", "items": items, "metadata": {"resourceVersion": "1"}})


@pytest.fixture
def feed(fake_kubectl: Callable[[str], str], tmp_path: Path) -> Callable[..., object]:
    """Make a feed whose n-th list is the n-th of `lists` (then the last one); `watches` likewise: lines, then silence.

    labelled: likewise the names of the Nodes with the requested label; empty: no label is requested.
    """

    @contextmanager
    def make(*, lists: list[str], watches: list[str], labelled: tuple[str, ...] = ()) -> Iterator[following.Feed]:
        nodes = [json.dumps({"items": [{"metadata": {"name": node}} for node in some.split()]}) for some in labelled]
        for name, texts in (("list", lists), ("watch", watches), ("nodes", nodes)):
            for number, text in enumerate(texts):
                (tmp_path / f"{name}-{number}").write_text(text)
            (tmp_path / f"{name}-last").write_text(str(len(texts) - 1))
        program = fake_kubectl(f"""
            cd {tmp_path}
            case "$3" in *watch=true*) what=watch;; */v1/nodes*) what=nodes;; *) what=list;; esac
            number=$(cat $what-count 2>/dev/null || echo 0)
            echo $((number + 1)) > $what-count
            last=$(cat $what-last)
            [ "$number" -lt "$last" ] || number=$last
            text=$(cat $what-$number)
            case "$text" in fail*) echo "error: $text" >&2; exit 1;; esac
            [ -z "$text" ] || printf '%s\\n' "$text"
            if [ $what = watch ]; then case "$text" in *'"END"'*) ;; *) exec sleep 60;; esac; fi
        """)
        watcher = following.Feed(
            live_cluster.LiveCluster(kubectl.Kubectl((), program)), label_selector="a=b" if labelled else ""
        )
        try:
            yield watcher
        finally:
            watcher.close()

    return make


def wait_until(feed: following.Feed, true: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < until, "nothing came"
        feed.wait(1.0)


def names(feed: following.Feed) -> list[str]:
    return sorted(node.name for node in feed.nodes)


def test_feed_follows_added_changed_and_deleted_nodes(feed: Callable[..., object]) -> None:
    a, b = builders.node("a"), builders.node("b")
    changed = builders.node("a", gpus=1)
    lines = "\n".join([event("ADDED", b), event("MODIFIED", changed), event("DELETED", b)])
    with feed(lists=[answer(a)], watches=[lines]) as watcher:  # type: ignore[attr-defined]
        assert names(watcher) == ["a"]
        wait_until(watcher, lambda: watcher.nodes == [changed])


def test_feed_with_a_selector_follows_only_labelled_nodes(feed: Callable[..., object]) -> None:
    a, b, c = (builders.node(name) for name in "abc")
    lines = "\n".join([event("MODIFIED", builders.node("b", gpus=1)), event("ADDED", c)])
    with feed(lists=[answer(a, b), answer(a, b, c)], watches=[lines, ""], labelled=("a", "a c")) as watcher:  # type: ignore[attr-defined]
        assert names(watcher) == ["a"]
        wait_until(watcher, lambda: names(watcher) == ["a", "c"])


def test_invisible_change_is_not_reported(feed: Callable[..., object]) -> None:
    a = builders.node("a")
    bookmark = json.dumps({"type": "BOOKMARK", "object": {"kind": "GPUNode", "metadata": {"resourceVersion": "9"}}})
    with feed(lists=[answer(a)], watches=[f"{event('MODIFIED', a)}\n{bookmark}"]) as watcher:  # type: ignore[attr-defined]
        assert not watcher.wait(SECONDS)
        assert watcher.nodes == [a]


@pytest.mark.parametrize(
    "watch",
    ['{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}', '{"type": "END"}', "<html>", "[]"],
    ids=["410", "end", "of a proxy", "no event"],
)
def test_feed_lists_again_after_a_watch_ends(feed: Callable[..., object], watch: str) -> None:
    lists = [answer(builders.node("a")), answer(builders.node("b"))]
    with feed(lists=lists, watches=[watch, ""]) as watcher:  # type: ignore[attr-defined]
        wait_until(watcher, lambda: names(watcher) == ["b"])
        assert watcher.trouble == ""


def test_relisting_without_changes_reports_none(feed: Callable[..., object], tmp_path: Path) -> None:
    with feed(lists=[answer(builders.node("a"))], watches=['{"type": "END"}', ""]) as watcher:  # type: ignore[attr-defined]
        until = time.monotonic() + SECONDS
        count = tmp_path / "watch-count"
        while not count.exists() or count.read_text().strip() != "2":
            assert time.monotonic() < until
            assert not watcher.wait(1.0)


def test_feed_keeps_the_last_state_and_reports_trouble_during_an_outage(feed: Callable[..., object]) -> None:
    lists = [answer(builders.node("a")), "fail away", answer(builders.node("b"))]
    with feed(lists=lists, watches=["fail gone", ""]) as watcher:  # type: ignore[attr-defined]
        wait_until(watcher, lambda: watcher.trouble == "fail gone")
        assert names(watcher) == ["a"]
        wait_until(watcher, lambda: watcher.trouble == "fail away")
        assert names(watcher) == ["a"]
        wait_until(watcher, lambda: names(watcher) == ["b"])
        assert watcher.trouble == ""


def test_failing_first_list_is_an_error(feed: Callable[..., object]) -> None:
    with pytest.raises(plugin_errors.KubectlError, match="fail now"), feed(lists=["fail now"], watches=[""]):  # type: ignore[attr-defined]
        pass
