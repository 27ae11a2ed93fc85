"""Random GPUs, nodes and requests for the laws."""

from __future__ import annotations

import dataclasses
import operator

from hypothesis import strategies as st

from gpushare import mig_shares, policies
from gpushare.allocation import (
    ALL_STEPS,
    Allocation,
    GivenShare,
    Isolation,
    Labels,
    Memory,
    MigInstance,
    PodRef,
    Share,
    Steps,
)
from gpushare.gpunode import Gpu, GpuNode, Mode, Resize
from gpushare.mig import catalogue
from gpushare.request import Constraints, Demand, Request

GIB = 2**30
label = st.sampled_from(["", "", "red", "blue"])
kind = st.sampled_from([Isolation.ARBITER, Isolation.ARBITER, Isolation.ARBITER, Isolation.MPS, Isolation.MIG])
kinds = st.sampled_from(
    [(Isolation.ARBITER,), (Isolation.ARBITER, Isolation.MPS), (Isolation.MPS,), (), tuple(Isolation)]
)
# Mostly all at once; else two init containers in sequence, a sidecar that starts with the second, and an app.
steps = st.sampled_from([ALL_STEPS, ALL_STEPS, ALL_STEPS, Steps(0, 0), Steps(1, 1), Steps(1), Steps(2)])


MIG_PROFILES = {
    gib: mig_shares.profiles(catalogue.MODELS[model], gib * GIB)
    for gib, model in {24: "A30-24GB", 40: "A100-40GB", 80: "A100-80GB"}.items()
}


@st.composite
def gpus(draw: st.DrawFn, node: str, index: int) -> Gpu:
    """Draw a GPU of a node."""
    memory_gib, isolations = draw(st.sampled_from([24, 40, 80])), draw(kinds)
    return Gpu(
        uuid=f"GPU-{node}-{index}",
        index=index,
        model=draw(st.sampled_from(["NVIDIA A100", "NVIDIA L4"])),
        memory_bytes=memory_gib * GIB,
        compute_capability=draw(st.sampled_from([(8, 0), (8, 9)])),
        numa_node=draw(st.none() | st.integers(0, 1)),
        link_group=draw(st.none() | st.none() | st.integers(0, 1)),
        mode=draw(st.sampled_from([Mode.FRACTIONAL, Mode.FRACTIONAL, Mode.FRACTIONAL, Mode.EXCLUSIVE])),
        isolations=isolations,
        mig_geometry=MIG_PROFILES[memory_gib] if Isolation.MIG in isolations else (),
        sm_partitions=draw(st.sampled_from([0, 0, 2, 4])),
        healthy=draw(st.integers(0, 9)) > 0,
    )


@st.composite
def given_shares(draw: st.DrawFn, container: str, uuids: list[str]) -> GivenShare:
    """Draw a share of one container on some of these GPUs."""
    request_percent = draw(st.integers(0, 100))
    return GivenShare(
        containers=(container,),
        gpu_uuids=tuple(draw(st.lists(st.sampled_from(uuids), min_size=1, max_size=2, unique=True))),
        request_percent=request_percent,
        limit_percent=draw(st.integers(request_percent, 100)),
        memory_bytes=(memory := draw(st.integers(0, 80 * GIB))),
        shrink_to_bytes=draw(st.none() | st.integers(0, memory - 1)) if memory else None,
        steps=draw(steps),
    )


@st.composite
def devices(draw: st.DrawFn, gpu: Gpu) -> MigInstance | None:
    """Draw a MIG device at any of its places on the GPU, or none, as in an entry of the ledger that is invalid."""
    made = draw(st.sampled_from([None, *gpu.mig_geometry]))
    if made is None:
        return None
    return mig_shares.read_device(gpu, f"{made.profile}@{draw(st.sampled_from(made.starts))}")


@st.composite
def gpu_nodes(draw: st.DrawFn, name: str = "node-a") -> GpuNode:
    """Draw a node with random allocations, which may be overcommitted."""
    built = tuple(draw(gpus(name, index)) for index in range(draw(st.integers(1, 4))))
    uuids = [gpu.uuid for gpu in built]
    entries = []
    for position in range(draw(st.integers(0, 3))):
        containers = ("main", "other")[: draw(st.sampled_from([1, 1, 2]))]
        shares = tuple(draw(given_shares(container, uuids)) for container in containers)
        labels = Labels(draw(label), draw(label), draw(label), draw(kind))
        if labels.isolation is Isolation.MIG:
            gpu = draw(st.sampled_from(built))
            one = dataclasses.replace(shares[0], gpu_uuids=(gpu.uuid,), shrink_to_bytes=None)
            shares = (dataclasses.replace(one, mig=draw(devices(gpu))),)
        entries.append(
            Allocation(
                id=f"a{position}",
                pod=PodRef("default", draw(st.sampled_from(["", "p"])), draw(st.sampled_from(["", "u"]))),
                shares=shares,
                reserved_until=draw(st.none() | st.integers(0, 10**9).map(float)),
                labels=labels,
                latency=draw(st.booleans()),
            )
        )
    resizes = st.builds(Resize, st.just("a0"), st.integers(0, 3), st.integers(0, GIB), st.integers(0, GIB))
    drawn_resizes = draw(st.lists(resizes, max_size=2, unique_by=operator.attrgetter("share")))
    in_order = tuple(sorted(drawn_resizes, key=operator.attrgetter("share")))
    return GpuNode(name, gpus=built, allocations=tuple(entries), resizes=in_order, version="7")


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Draw a request with one to three demands."""
    demands = []
    for container in ("a", "b", "c")[: draw(st.sampled_from([1, 1, 2, 2, 3]))]:
        request_percent = draw(st.sampled_from([0, 10, 25, 33, 50, 75, 100]))
        memory = draw(
            st.builds(Memory, percent=st.sampled_from([10, 33, 50, 100]))
            | st.builds(Memory, bytes=st.integers(1, 90 * GIB))
        )
        demands.append(
            Demand(
                (container,), Share(request_percent, 100, memory), draw(st.sampled_from([1, 1, 1, 2, 3])), draw(steps)
            )
        )
    constraints = Constraints(
        models=draw(st.sampled_from([(), (), ("*A100*",)])),
        affinity=draw(label),
        anti_affinity=draw(label),
        exclusion=draw(label),
        isolation=draw(kind),
    )
    if constraints.isolation is Isolation.MIG:  # a pod gets one MIG device
        demands = [dataclasses.replace(demands[0], gpus=1)]
    return Request(tuple(demands), constraints, policy=draw(st.sampled_from(["", *policies.POLICIES])))
