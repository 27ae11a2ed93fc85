"""A node for the benches: the shipped library and, in this process, the shipped arbiter; containers; simulated GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from unittest import mock

from deviceplugin.arbiter.scheduling import lease_scheduler, leases
from deviceplugin.arbiter.scheduling.coscheduled_gpu import CoscheduledGpu
from deviceplugin.mps import sm_partitions
from deviceplugin.mps.daemons import Daemons
from deviceplugin.mps.shares import STARTING_SECONDS, MpsShares
from gpushare.allocation import GivenShare, Isolation
from gpushare.gpunode import Gpu, GpuNode
from gpushare.refusal import Refusal
from tests.deviceplugin import arbiter_node, simulated
from tests.interposer import container
from tests.simgpu.programs import mig

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "bench" / "launches"
BUILT = ROOT / "build" / "bench"
MEMORY_BYTES = 1 << 28
WARM_MS = 1500


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """A share and the program that uses it: request and limit in percent, `load`'s mode, microseconds a kernel.

    after_ms: how much later than the others it begins. kernel: another kernel of the simulated GPU.
    """

    request: int
    limit: int
    mode: str
    kernel_us: int
    latency: bool = False
    after_ms: int = 0
    kernel: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """A tenant's completed work: percent of the GPU's time, duration of its first launch, latencies of requests."""

    percent: float
    first_ms: float
    latencies_ms: tuple[float, ...]

    def quantile(self, part: float) -> float:
        """Return a quantile of the latencies."""
        return sorted(self.latencies_ms)[min(len(self.latencies_ms) - 1, int(part * len(self.latencies_ms)))]


def build() -> None:
    """Build the library, the simulated driver and the measuring programs."""
    flags = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    null = BUILT / "null" / "libcuda.so.1"
    null.parent.mkdir(parents=True, exist_ok=True)
    for part in ("simgpu", "interposer"):
        subprocess.run(["make", "-s", "-C", ROOT / part], check=True)
    driver = [f"-L{ROOT / 'build' / 'simgpu'}", "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined"]
    subprocess.run([*flags, "-o", BUILT / "load", SOURCES / "load.c", *driver], check=True)
    subprocess.run([*flags, "-o", BUILT / "rate", SOURCES / "rate.c", "-ldl", "-pthread"], check=True)
    subprocess.run([*flags, "-o", BUILT / "calls", ROOT / "bench" / "gpu" / "calls.c", "-ldl"], check=True)
    shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*flags, *shared, "-o", null, SOURCES / "null_driver.c"], check=True)


@dataclasses.dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device for a tenant."""

    uuid: str
    memory_bytes: int


class Node:
    """A node; most benches use only its first GPU."""

    def __init__(self, arbiter: arbiter_node.ArbiterNode, gpus: Path) -> None:
        self.arbiter = arbiter
        self.gpus = gpus
        self.uuids = simulated.uuids(gpus)
        self.uuid = self.uuids[0]
        self.box = container.Container(arbiter.socket.parent, gpus)
        self._count = 0
        self.devices: list[MigDevice] = []  # that `cut` has made of the first GPU, by tenant
        self.partitions = 0  # SM partitions of the first GPU, for shares with the isolation mps
        self._ahead_seconds = 0.0
        program = arbiter.directory / "control"  # a real daemon finds its GPUs without a variable
        program.write_text(f'#!/bin/sh\nSIMGPU_DIR={gpus} exec {ROOT}/build/simgpu/nvidia-cuda-mps-control "$@"\n')
        program.chmod(0o755)
        self._mps = MpsShares(
            Daemons(root=arbiter.directory / "mps", program=program, set_exclusive=_no_change),
            node=self._gpunode,
            fractional=lambda: frozenset(self.uuids),
            clock=lambda: time.monotonic() + self._ahead_seconds,
        )

    def _gpunode(self) -> GpuNode:
        cut = self.partitions
        gpus = tuple(Gpu(uuid, index, "", 0, sm_partitions=cut) for index, uuid in enumerate(self.uuids))
        return dataclasses.replace(self.arbiter.gpunode(), gpus=gpus)

    @property
    def gpu_count(self) -> int:
        """Return the number of GPUs."""
        return len(self.uuids)

    def give(
        self,
        request: int,
        limit: int,
        *,
        latency: bool = False,
        memory: int = MEMORY_BYTES,
        gpu: int = 0,
        isolation: Isolation = Isolation.ARBITER,
    ) -> dict[str, str]:
        """Add a pod with a share; return the environment that identifies its processes to this bench's arbiter."""
        self._count += 1
        name = f"t{self._count}"
        share = GivenShare(("main",), (self.uuids[gpu],), request, limit, memory)
        environment = {**identity(name), "CUDA_VISIBLE_DEVICES": str(gpu)}
        if isolation is Isolation.MIG:  # as `cut_plan.as_devices` describes it to the arbiter
            device = self.devices[self._count - 1]
            share = GivenShare(("main",), (device.uuid,), 100, 100, device.memory_bytes)
            environment |= {"NVIDIA_VISIBLE_DEVICES": device.uuid}
        self.arbiter.add_pod(name, share, isolation=isolation)
        if latency:
            self.arbiter.allocations[-1] = dataclasses.replace(self.arbiter.allocations[-1], latency=True)
        return environment

    def cut(self, *, first_is_larger: bool) -> None:
        """Cut the first GPU into a 4g and a 3g for its first two tenants."""
        made = [MigDevice(*device) for device in simulated.printed(self.gpus, mig.unequal_halves)]
        self.devices = made if first_is_larger else made[::-1]

    @contextlib.asynccontextmanager
    async def mps(self, partitions: int = 0) -> AsyncIterator[None]:
        """Run the MPS daemon of the first GPU, as the agent does. partitions: into how many it cuts the GPU."""
        self.partitions = partitions
        try:
            yield
        finally:
            self.arbiter.allocations.clear()
            self._ahead_seconds += STARTING_SECONDS  # until then, a container may still be starting
            await self._mps.step()

    async def mps_box(self, pod: str) -> container.Container:
        """Return the container of a pod with the isolation mps."""
        files = await self._mps.ready(self.uuid, sm_partitions.key(f"of-{pod}/0"))
        assert not isinstance(files, Refusal), files
        return dataclasses.replace(self.box, mps_pipe=files.daemon.pipe, mps_partition=files.partition)

    @contextlib.asynccontextmanager
    async def neighbour(self) -> AsyncIterator[None]:
        """Run another share's process that has used the GPU and now sleeps."""
        probe = self.box.start([container.PROBE, "--kernels", "1", "--hold", "300"], self.give(70, 100))
        try:
            await asyncio.to_thread(until_holding, probe)
            yield
        finally:
            probe.kill()
            await asyncio.to_thread(probe.communicate)

    @contextlib.asynccontextmanager
    async def info(self, count: int, *, working: int) -> AsyncIterator[None]:
        """Run containers that have used all GPUs; `working` of them serve requests, the others sleep."""
        processes = []
        try:
            for number in range(count):
                mode = ("requests", "200") if number < working else ("idle", "100")
                environment = self.give(1, 100, gpu=number % self.gpu_count)
                processes.append(self.box.start([BUILT / "load", *mode], environment))
                await asyncio.to_thread(until_ready, processes[-1])
            now = int(time.monotonic() * 1000)
            for process in processes[:working]:
                assert process.stdin is not None
                process.stdin.write(f"{now} {now} {now + 3_600_000}\n")
                process.stdin.flush()
            yield
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                await asyncio.to_thread(process.communicate)

    async def run(
        self,
        tenants: Sequence[Tenant],
        seconds: float,
        *,
        native: bool = False,
        isolation: Isolation = Isolation.ARBITER,
    ) -> list[Done]:
        """Let tenants compete for this time, after a warm-up. native: without the library."""
        processes = []
        box = dataclasses.replace(self.box, preload=()) if native else self.box
        for tenant in tenants:
            environment = self.give(tenant.request, tenant.limit, latency=tenant.latency, isolation=isolation)
            if isolation is Isolation.MPS:
                box = await self.mps_box(environment["TEST_POD"])
            environment |= {"KERNEL": tenant.kernel} if tenant.kernel else {}
            processes.append(box.start([BUILT / "load", tenant.mode, str(tenant.kernel_us)], environment))
        try:
            for process in processes:
                await asyncio.to_thread(until_ready, process)
            begin = int(time.monotonic() * 1000) + 100
            answers = []
            for tenant, process in zip(tenants, processes, strict=True):
                moments = (begin + tenant.after_ms, begin + WARM_MS, begin + WARM_MS + int(seconds * 1000))
                text = " ".join(map(str, moments)) + "\n"
                answers.append(asyncio.to_thread(process.communicate, text, timeout=seconds + 30))
            said = [output for output, _ in await asyncio.gather(*answers)]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
        return [_done(tenant, line) for tenant, line in zip(tenants, said, strict=True)]


def identity(pod: str) -> dict[str, str]:
    """Return the environment by which the arbiter recognizes a pod's processes, which have the first GPU."""
    return {"TEST_POD": pod, "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0"}


def until_holding(process: subprocess.Popen[str]) -> None:
    """Wait until the probe has done its work and holds its memory."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("holding"):
            return
    raise AssertionError(process.communicate())


def until_ready(process: subprocess.Popen[str]) -> None:
    """Wait until `load` is ready."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()


def turns_of(length_ms: int) -> contextlib.AbstractContextManager[object]:
    """Set the length of contended leases in this process's arbiter, for GPUs whose first share joins in the block."""
    lengths = dataclasses.replace(lease_scheduler.DEFAULT, contended_ns=length_ms * 1_000_000)
    return mock.patch.object(leases, "CoscheduledGpu", functools.partial(CoscheduledGpu, lengths))


def _done(tenant: Tenant, line: str) -> Done:
    launches, counted_ms, first_ms, *latencies = line.split()
    percent = int(launches) * tenant.kernel_us / 10 / float(counted_ms)
    return Done(percent, float(first_ms), tuple(float(latency) / 1000 for latency in latencies))


async def _no_change(uuid: str, exclusive: bool) -> None:
    raise AssertionError(f"{uuid}: shares leave the compute mode as it is, exclusive={exclusive}")


@contextlib.asynccontextmanager
async def opened(create: Callable[[Path], Path] = simulated.create) -> AsyncIterator[Node]:
    """Run a node while the context lasts. create: makes its GPUs in a directory, and returns theirs."""
    with tempfile.TemporaryDirectory() as directory:
        gpus = create(Path(directory) / "gpus")
        async with arbiter_node.opened(Path(directory)) as arbiter:
            yield Node(arbiter, gpus)
