"""Whether devices arrived in a container, checked on real processes in their own mount namespaces."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.host.kernel_process import Container
from deviceplugin.injection import arrival, decision
from deviceplugin.injection.decision import InjectionFacts
from gpushare import contract
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import GpuNode
from gpushare.refusal import Refusal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make mount namespaces")

GPU = "GPU-00000000-0000-0000-0000-000000000001"


@contextlib.contextmanager
def container(
    directory: Path, *, driver: bool = False, device: bool = False, files: int = 0, hung: bool = False
) -> Iterator[int]:
    """Run a process as in a container, with its own /dev and a runtime's mounts; yield its pid.

    files: the number of other files in its /dev, with names that are not UTF-8. hung: its /dev is a file system that
    never answers.
    """
    directory.mkdir()
    library, node = directory / "libcuda.so.1", directory / "nvidia0"
    library.touch()
    node.touch()
    (directory / "dev").mkdir()
    (directory / "lib").mkdir()
    (directory / "lib/libcuda.so.1").touch()
    steps = [f"mount -t tmpfs tmpfs {directory / 'dev'}"]
    if device:
        steps.append(f"touch {directory / 'dev/nvidia0'}")
    if driver:
        steps.append(f"mount --bind {library} {directory / 'lib/libcuda.so.1'}")
    if files:
        steps.append(f"cd {directory / 'dev'}; seq -f %0240.0f {files} | tr 0 '\\377' | xargs touch; cd /")
    steps += [f"mount --bind {directory / 'dev'} /dev"]
    if hung:
        steps.insert(0, "exec 9<>/dev/fuse")
        steps.append("mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 hung /dev")
    steps += ["echo there", "exec cat"]
    process = subprocess.Popen(
        ["unshare", "--mount", "/bin/sh", "-e", "-c", "; ".join(steps)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"there\n":
            pytest.skip("mount namespaces cannot be made here")
        yield process.pid
    finally:
        process.communicate()


class Node:
    """Pods whose containers are these processes."""

    def __init__(self, **pids: int) -> None:
        self.pids = pids
        self.events: list[tuple[str, tuple[str, str] | None]] = []
        self.changes = self.asked = 0
        self.arrivals = arrival.Arrivals(
            pods=lambda: [self.pod(name) for name in self.pids],
            node=lambda: GpuNode("node-a", allocations=tuple(map(self.allocation, self.pids))),
            identify=self.identify,
            warn=self.warn,
            changed=self.change,
        )

    def change(self) -> None:
        self.changes += 1

    def warn(self, reason: str, _: str, of: tuple[str, str] | None) -> None:
        self.events.append((reason, of))

    def identify(self, pid: int) -> Container | Refusal:
        self.asked += 1
        return next((Container(name, name) for name, its in self.pids.items() if its == pid), Refusal("nobody's"))

    def allocation(self, name: str) -> Allocation:
        return Allocation(f"of-{name}", PodRef("ml", name, name), (GivenShare(("main",), (GPU,), 50, 100, 1),))

    def pod(self, name: str) -> dict[str, Any]:
        main = {"name": "main", "containerID": f"containerd://{name}", "state": {"running": {}}}
        side = {"name": "side", "containerID": "containerd://other", "state": {"running": {}}}
        metadata = {"namespace": "ml", "name": name, "uid": name, "annotations": {contract.ALLOCATION: f"of-{name}"}}
        return {"metadata": metadata, "status": {"containerStatuses": [main, side]}}


async def test_container_without_device_or_driver_is_reported_once(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        bare = stack.enter_context(container(tmp_path / "bare"))
        driver = stack.enter_context(container(tmp_path / "driver", driver=True))
        device = stack.enter_context(container(tmp_path / "device", device=True))
        node = Node(bare=bare, driver=driver, device=device)
        for _ in range(2):
            await node.arrivals.step()
            assert node.arrivals.missing == ("ml/bare/main",)
            assert node.events == [(contract.EVENT_NO_DEVICES, ("ml", "bare"))]
            assert node.changes == 1
        del node.pids["bare"]
        await node.arrivals.step()
        assert node.arrivals.missing == ()
        assert (len(node.events), node.changes) == (1, 2)


async def test_reports_nothing_about_an_invisible_container(tmp_path: Path) -> None:
    node = Node(gone=2**22 + 1)
    for _ in range(arrival.MAX_CHECKS):
        await node.arrivals.step()
    looked = node.asked
    await node.arrivals.step()
    assert 0 < looked == node.asked  # checks stop eventually
    assert (node.arrivals.missing, node.events) == ((), [])
    assert arrival.has_devices(tmp_path) is None


async def test_huge_dev_directory_needs_no_memory(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(container(tmp_path / "full", files=20_000))
        device = stack.enter_context(container(tmp_path / "device", device=True, files=20_000))
        node = Node(full=full, device=device)
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        await node.arrivals.step()
        assert tracemalloc.get_traced_memory()[1] < 2 << 20  # the names alone take twice as much
        assert node.arrivals.missing == ("ml/full/main",)


async def test_does_not_follow_a_link_in_place_of_dev(tmp_path: Path) -> None:
    """An absolute link would lead to the agent's own /dev, which has all GPUs."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "real/nvidia0").touch()
    (tmp_path / "mountinfo").touch()
    (root / "dev").symlink_to(tmp_path / "real")
    assert arrival.has_devices(tmp_path) is None
    (root / "dev").unlink()
    (tmp_path / "real").rename(root / "dev")
    assert arrival.has_devices(tmp_path) is True


async def test_hung_file_system_blocks_neither_other_checks_nor_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival, "CHECK_SECONDS", 2.0)
    with contextlib.ExitStack() as stack:
        hung = stack.enter_context(container(tmp_path / "hung", hung=True))
        bare = stack.enter_context(container(tmp_path / "bare"))
        node = Node(hung=hung, bare=bare)
        await node.arrivals.step()
        assert node.arrivals.missing == ("ml/bare/main",)
        (held,) = (thread for thread in threading.enumerate() if thread.name == "devices-hung")
        assert held.daemon
        looked = node.asked
        await node.arrivals.step()
        assert node.asked == looked  # no second thread is started
    held.join(30.0)
    assert not held.is_alive()


def test_missing_devices_override_the_condition() -> None:
    injection = decision.decide(
        InjectionFacts(True, "containerd://1.6.20", "", driver_requested=True, driver_mounted=True), ()
    )
    assert injection.condition_with(()) == injection.condition
    shown = injection.condition_with([f"ml/pod-{number}/main" for number in range(25)])
    assert (shown.status, shown.reason) == ("False", "DevicesMissing")
    assert shown.message.startswith("running without any GPU: ml/pod-0/main, ")
    assert "ml/pod-19/main and 5 more; envvar: the node's default runtime gave" in shown.message
