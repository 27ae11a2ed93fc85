"""The plan of a GPU's MIG devices, carried out on a GPU in memory by agents that may die after any step."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.hardware.partitioner import Create, CreatePart, Destroy, DestroyPart, Present, SetMode, Step
from deviceplugin.mig import plan
from deviceplugin.mig.plan import CutDevice
from deviceplugin.mig.shares import MAX_ROUNDS
from deviceplugin.state.node_state import ComputeInstance, GpuInstance, MigMode
from gpushare import mig_shares
from gpushare.allocation import MigInstance
from gpushare.mig import catalogue
from tests import builders

MODEL = catalogue.MODELS["H100-80GB"]
GPU = builders.gpu(mig_geometry=builders.mig_geometry())


@dataclasses.dataclass
class Simulated:
    """A GPU, and the record of its agent."""

    is_on: bool = False
    instances: dict[int, GpuInstance] = dataclasses.field(default_factory=dict)
    busy: set[int] = dataclasses.field(default_factory=set)
    record: tuple[CutDevice, ...] | None = None
    made: int = 0

    def present(self) -> Present:
        listed = (
            dataclasses.replace(
                made, parts=tuple(dataclasses.replace(part, busy=made.id in self.busy) for part in made.parts)
            )
            for made in self.instances.values()
        )
        return Present("GPU-x", MigMode(self.is_on, self.is_on), MODEL, tuple(listed), busy=bool(self.busy))

    def do(self, step: Step) -> None:
        match step:
            case SetMode(enabled):
                assert not self.instances
                self.is_on = enabled
            case Create(kind, start, _):
                taken = {place for made in self.instances.values() for place in made.placed.places}
                self.made += 1
                self.instances[self.made] = GpuInstance(self.made, kind, start)
                assert taken.isdisjoint(self.instances[self.made].placed.places)
                self.do(CreatePart(self.made, kind.gpu_slices))
            case CreatePart(number, slices):
                part = ComputeInstance(0, slices, f"MIG-{number}")
                self.instances[number] = dataclasses.replace(self.instances[number], parts=(part,))
            case DestroyPart(number, _):
                assert number not in self.busy
                self.instances[number] = dataclasses.replace(self.instances[number], parts=())
            case Destroy(number):
                assert not self.instances[number].parts
                del self.instances[number]

    def agent(self, wanted: tuple[MigInstance, ...], *, steps: int, may_merge: bool) -> str:
        """Plan and act until nothing more can be done or the agent dies after so many steps; return what waits."""
        for _ in range(MAX_ROUNDS):
            proposed = plan.make_plan(self.present(), wanted, self.record, may_merge=may_merge)
            known = proposed.record
            self.record = None if known is None else plan.proven(self.present(), known)
            if not proposed.steps:
                return proposed.waits
            for step in proposed.steps:
                if not steps:
                    return "dead"
                self.do(step)
                steps -= 1
        raise AssertionError("the plan has no end")


def place(taken: list[MigInstance], position: int) -> MigInstance | None:
    kinds = GPU.mig_geometry
    return mig_shares.place(GPU, kinds[position % len(kinds)], sorted(taken, key=lambda device: device.start))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_law_wanted_devices_come_whatever_happens_and_nothing_else_is_destroyed(data: st.DataObject) -> None:
    gpu, wanted = Simulated(), list[MigInstance]()
    foreign: set[int] = set()
    for _ in range(data.draw(st.integers(1, 6))):
        if wanted and data.draw(st.booleans()):
            wanted.remove(data.draw(st.sampled_from(wanted)))
        if (device := place(wanted, data.draw(st.integers(0, 5)))) is not None:
            wanted.append(device)
        if gpu.is_on and not foreign and data.draw(st.integers(0, 4)) == 0:
            free = set(range(8)) - {place_ for made in gpu.instances.values() for place_ in made.placed.places}
            free -= {cut.start for cut in gpu.record or ()}  # where the agent is about to create its own
            if start := next(iter(sorted(free & {4, 5, 6})), None):
                gpu.do(Create(MODEL.kinds[0], start, (1,)))
                foreign = {gpu.made}
        gpu.agent(tuple(wanted), steps=data.draw(st.integers(0, 6)), may_merge=False)
        gpu.busy = set(data.draw(st.lists(st.sampled_from([*gpu.instances, 0]), max_size=2))) - {0} - foreign
        assert foreign <= gpu.instances.keys()
        ours = {(cut.profile, cut.start) for cut in gpu.record or ()}
        there = {
            (str(made.kind.profile), made.start) for number, made in gpu.instances.items() if number not in foreign
        }
        assert there <= ours, "a device that is not in the record would never be destroyed"
    gpu.busy = set()
    waits = gpu.agent(tuple(wanted), steps=99, may_merge=False)
    assert bool(waits) == any(
        not set(device.places).isdisjoint(gpu.instances[number].placed.places)
        for device in wanted
        for number in foreign
    )
    if not waits:
        assert {(cut.profile, cut.start) for cut in gpu.record or () if cut.uuid} >= {
            (device.profile, device.start) for device in wanted
        }
    gpu.agent((), steps=99, may_merge=True)
    assert gpu.instances.keys() == foreign
    assert gpu.is_on == bool(foreign)
