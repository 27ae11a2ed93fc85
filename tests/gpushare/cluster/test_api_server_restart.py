"""An informer across a crash and restart of the API server. The test starts a separate API server."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.cluster import api_client, informer
from lab import cluster, daemon_process, lab_layout
from tests.gpushare.cluster import builders, waiting

pytestmark = pytest.mark.apiserver

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        yield directory
        cluster.down(directory)


def kill_api_server(directory: Path) -> None:
    pid = daemon_process.pid_of("kube-apiserver", lab_layout.load(directory).processes)
    assert pid is not None
    handle = os.pidfd_open(pid)
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    assert select.select([handle], [], [], 10.0)[0], "it did not end"
    os.close(handle)


async def test_an_informer_misses_no_change_across_an_api_server_restart(directory: Path) -> None:
    administrator = await asyncio.to_thread(cluster.up, directory, node_count=0, owner=os.getpid())
    async with api_client.connect(str(administrator.kubeconfig)) as api, asyncio.timeout(120):
        follower = informer.Informer(api, CONFIG_MAPS, label_selector="follow")
        changes: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        follower.subscribe(lambda change: changes.put_nowait((change.type.value, change.key.name)))
        following = asyncio.create_task(follower.run())
        await follower.synced.wait()
        for name in ("before", "deleted"):
            body = builders.config_map(name)
            body["metadata"]["labels"] = {"follow": "yes"}
            await api.create(CONFIG_MAPS, body)
            assert await changes.get() == ("ADDED", name)

        await asyncio.to_thread(kill_api_server, directory)
        await waiting.until(lambda: follower.age_seconds > 0.0)
        assert set(follower.objects) == {("default", "before"), ("default", "deleted")}
        assert follower.synced.is_set()

        await asyncio.to_thread(cluster.up, directory, node_count=0, owner=os.getpid())
        await api.delete(f"{CONFIG_MAPS}/deleted")
        assert await changes.get() == ("DELETED", "deleted")
        assert changes.empty()
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
