"""Programs that partition a GPU in every way."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pynvml

from deviceplugin.hardware import nvml, nvml_call, nvml_mig, partitioner
from gpushare.mig import catalogue, instance_layout
from gpushare.mig.instance_layout import ProfileGeometry

Wanted = Mapping[str, int] | None
CHANGES = (
    "set_mig_mode",
    "create_gpu_instance",
    "create_compute_instance",
    "destroy_compute_instance",
    "destroy_gpu_instance",
)


class FirstGpu:
    """The first GPU. by: the driver class to partition it with."""

    def __init__(self, by: type[nvml_mig.MigDriver] = nvml_mig.MigDriver) -> None:
        self.opened = nvml.Nvml()
        self.driver = by(self.opened)
        self.uuid = self.opened.snapshot().gpus[0].uuid

    def cut(self, names: Wanted, held: Iterable[str] = ()) -> Any:
        wanted = None if names is None else instance_layout.named(names)
        return partitioner.Partitioner(self.driver).apply(self.uuid, wanted, held=frozenset(held))

    def is_cut(self, names: Wanted) -> bool:
        return bool(self.cut(names).state.value == "as-wanted")

    def devices(self) -> list[tuple[str, int, str]]:
        return sorted((str(part.profile), part.gpu_instance, part.uuid) for part in self.driver.mig_devices(self.uuid))

    def kinds(self) -> tuple[ProfileGeometry, ...]:
        geometry = self.driver.mig_geometry(self.uuid)
        assert geometry is not None
        return geometry.kinds

    def profiles(self) -> list[str]:
        return [name for name, _, _ in self.devices()]


def again_and_again(layouts: list[Wanted]) -> None:
    gpu = FirstGpu()
    for names in layouts:
        first, second = gpu.cut(names), gpu.cut(names)
        print((first.state.value, first.changed, second.state.value, second.changed, gpu.profiles()))


class KilledDriver(nvml_mig.MigDriver):
    """A driver that kills its process at the change after the `left` next ones."""

    left = 0

    def __getattribute__(self, name: str) -> Any:
        if name in CHANGES:
            if KilledDriver.left == 0:
                os.kill(os.getpid(), 9)
            KilledDriver.left -= 1
        return super().__getattribute__(name)


def killed_at_every_step() -> None:
    gpu = FirstGpu()

    def killed_after(count: int, names: Wanted) -> bool:
        child = os.fork()
        if child == 0:
            KilledDriver.left = count
            gpu.driver = KilledDriver(gpu.opened)
            gpu.cut(names)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9

    before, after = {"3g.20gb": 1, "1g.5gb": 2, "1g.10gb": 1}, {"2g.10gb": 2, "1g.5gb": 1, "1c.2g.10gb": 2}
    recut, died = -1, True
    while died:
        recut += 1
        assert gpu.is_cut(None)
        assert gpu.is_cut(before)
        died = killed_after(recut, after)
        result = gpu.cut(after)
        assert result.state.value == "as-wanted", (recut, result)
        expected = ["1c.2g.10gb", "1c.2g.10gb", "1g.5gb", "2g.10gb", "2g.10gb"]
        assert gpu.profiles() == expected, (recut, gpu.profiles())
    first, died = -1, True
    while died:
        first += 1
        assert gpu.is_cut(None)
        died = killed_after(first, before)
        assert gpu.is_cut(before)
        assert len(gpu.devices()) == 4
        assert gpu.is_cut(None)
        assert gpu.devices() == []
    print((recut, first))


def use(uuid: str) -> Callable[[], None]:
    """Run a child that computes on a device until the returned function is called."""
    mine, its = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(mine[1])
        os.close(its[0])
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        assert cuda.cuInit(0) == 0
        assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
        os.write(its[1], b"x")
        os.read(mine[0], 1)
        os._exit(0)
    os.close(mine[0])
    assert os.read(its[0], 1) == b"x"

    def end() -> None:
        os.close(mine[1])
        os.waitpid(child, 0)

    return end


def beside_an_instance_in_use() -> None:
    gpu = FirstGpu()
    gpu.cut({"3g.20gb": 2})
    (_, _, used), _ = gpu.devices()
    end = use(used)
    waits = gpu.cut({"7g.40gb": 1})
    print((waits.state.value, waits.in_the_way == (used,), waits.changed, len(gpu.devices())))
    beside = gpu.cut({"3g.20gb": 1, "1g.5gb": 3})
    print((beside.state.value, used in [uuid for _, _, uuid in gpu.devices()], gpu.profiles()))
    print((gpu.cut(None).state.value,))
    end()
    print((gpu.cut({"7g.40gb": 1}).state.value, gpu.profiles()))


def on_a_gpu_in_use() -> None:
    gpu = FirstGpu()
    end = use(gpu.uuid)
    waits = gpu.cut({"1g.5gb": 7})
    mode = gpu.driver.mig_mode(gpu.uuid)
    print((waits.state.value, waits.in_the_way == (gpu.uuid,), mode and mode.pending))
    late = gpu.driver.set_mig_mode(gpu.uuid, enabled=True)
    end()
    print((late, gpu.cut({"1g.5gb": 7}).state.value, len(gpu.devices())))


def infeasible() -> None:
    gpu = FirstGpu()
    refused = gpu.cut({"1g.5gb": 5, "3g.20gb": 1})
    mode = gpu.driver.mig_mode(gpu.uuid)
    print((refused.state.value, refused.reason.partition(": ")[2], mode and mode.current))
    print(repr(gpu.cut({"1g.10gb": 1, "1g.12gb": 1}).reason.partition(": ")[2]))


class OldDriver(nvml_mig.MigDriver):
    """A driver that chooses the places of instances itself."""

    def create_gpu_instance(self, uuid: str, kind: Any, start: int | None) -> Any:
        if start is not None:
            raise nvml_call.NvmlError("there is no such function", nvml_mig.FUNCTION_NOT_FOUND)
        return super().create_gpu_instance(uuid, kind, None)


def by_an_old_driver() -> None:
    gpu = FirstGpu(OldDriver)
    print((gpu.cut({"3g.20gb": 1, "1g.5gb": 4}).state.value, gpu.profiles()))


def says_what_devices_are() -> None:
    gpu = FirstGpu()
    gpu.cut({"1g.10gb": 1, "3g.20gb": 1})
    for part in gpu.driver.mig_devices(gpu.uuid):
        of = (part.parent == gpu.uuid, part.compute_instance, part.engines["copy"])
        print((str(part.profile), part.index, part.memory_bytes >> 20, part.multiprocessors, *of))
    known = catalogue.of_gpu(*gpu.driver.model(gpu.uuid))
    assert known is not None
    kinds = [dataclasses.replace(kind, memory_bytes=0) for kind in gpu.kinds()]  # which the tables do not have
    print([str(kind.profile) for kind in known.kinds if kind not in kinds])


def says_how_it_can_be_cut() -> None:
    gpu = FirstGpu()
    nothing: tuple[Wanted, ...] = (None, {})
    for names in nothing:
        gpu.cut(names)
        print([str(kind.profile) for kind in gpu.kinds()])


def of_a_driver_that_says_no_places() -> None:
    gpu, asked = FirstGpu(), pynvml.nvmlDeviceGetGpuInstancePossiblePlacements

    def in_mig_mode_only(device: Any, *arguments: Any) -> Any:
        if not pynvml.nvmlDeviceGetMigMode(device)[0]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return asked(device, *arguments)

    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements = in_mig_mode_only
    known = gpu.driver.mig_geometry(gpu.uuid)
    print((known is not None, gpu.cut({"3g.135gb": 1}).state.value, gpu.profiles()))


def of_a_driver_that_counts_wrongly() -> None:
    gpu, asked = FirstGpu(), pynvml.nvmlDeviceGetGpuInstanceProfileInfo

    def wrongly(*arguments: Any) -> Any:
        info = asked(*arguments)
        info.instanceCount = 7
        return info

    pynvml.nvmlDeviceGetGpuInstanceProfileInfo = wrongly
    print([kind.most for kind in gpu.kinds()])
