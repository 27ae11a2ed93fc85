"""The partitioner on simulated GPUs, through the real pynvml."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from tests.deviceplugin import simulated

PRELUDE = """
import os
from deviceplugin.hardware import nvml_mig
from deviceplugin.mig import partitioner
from gpushare.mig import feasibility
opened = nvml.Nvml()
driver = nvml_mig.MigDriver(opened)
card = opened.snapshot().gpus[0].uuid
def cut(names, by=driver, held=()):
    wanted = None if names is None else feasibility.named(names)
    return partitioner.Partitioner(by).apply(card, wanted, held=frozenset(held))
def devices():
    return sorted((str(one.profile), one.gpu_instance, one.uuid) for one in driver.mig_devices(card))
def profiles():
    return [name for name, _, _ in devices()]
"""


def run(gpus: Path, program: str) -> list[Any]:
    """The values that the program printed, one a line."""
    result = simulated.run(gpus, "\n".join(["", PRELUDE.replace("\n", "\n    "), program.replace("\n", "\n    ")]))
    assert result.returncode == 0, result.stderr
    return [ast.literal_eval(line) for line in result.stdout.splitlines()]


def test_a_gpu_is_cut_as_wanted_again_and_again(gpus: Path) -> None:
    found = run(
        gpus,
        """
for names in ({"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}, {"1c.3g.20gb": 3, "1g.5gb+me": 1}, {}, {"7g.40gb": 1}, None):
    first, second = cut(names), cut(names)
    print((first.state.value, first.changed, second.state.value, second.changed, profiles()))
""",
    )
    done = ("as-wanted", True, "as-wanted", False)
    assert found == [
        (*done, ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]),
        (*done, ["1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb", "1g.5gb+me"]),
        (*done, []),
        (*done, ["7g.40gb"]),
        (*done, []),
    ]


def test_killed_at_any_step_the_next_run_completes_it(gpus: Path) -> None:
    """Every call that changes the GPU is the last one of some process; the GPU is the only thing that remembers."""
    found = run(
        gpus,
        """
changes = ("set_mig_mode", "create_gpu_instance", "create_compute_instance", "destroy_compute_instance",
           "destroy_gpu_instance")
class Mortal(nvml_mig.MigDriver):
    left = 0
    def __getattribute__(self, name):
        if name in changes:
            if Mortal.left == 0:
                os.kill(os.getpid(), 9)
            Mortal.left -= 1
        return super().__getattribute__(name)
def killed_after(count, names):
    child = os.fork()
    if child == 0:
        Mortal.left = count
        cut(names, by=Mortal(opened))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
before, after = {"3g.20gb": 1, "1g.5gb": 2, "1g.10gb": 1}, {"2g.10gb": 2, "1g.5gb": 1, "1c.2g.10gb": 2}
count = 0
while True:
    assert cut(None).state.value == "as-wanted" and cut(before).state.value == "as-wanted"
    died = killed_after(count, after)
    result = cut(after)
    assert result.state.value == "as-wanted", (count, result)
    assert profiles() == ["1c.2g.10gb", "1c.2g.10gb", "1g.5gb", "2g.10gb", "2g.10gb"], (count, profiles())
    if not died:
        break
    count += 1
steps = count
count = 0
while True:
    assert cut(None).state.value == "as-wanted"
    died = killed_after(count, before)
    assert cut(before).state.value == "as-wanted" and len(devices()) == 4
    assert cut(None).state.value == "as-wanted" and devices() == []
    if not died:
        break
    count += 1
print((steps, count))
""",
    )
    ((recut, first),) = found
    assert recut >= 8
    assert first == 9, "the mode, four GPU instances and four compute instances"


PROGRAM_ON = """
import ctypes
def use(uuid):
    \"\"\"A child that computes there until its pipe is closed.\"\"\"
    mine, its = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(mine[1]); os.close(its[0])
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
        os.write(its[1], b"x")
        os.read(mine[0], 1)
        os._exit(0)
    os.close(mine[0])
    assert os.read(its[0], 1) == b"x"
    def end():
        os.close(mine[1])
        os.waitpid(child, 0)
    return end
"""


def test_an_instance_in_use_is_never_touched(gpus: Path) -> None:
    found = run(
        gpus,
        PROGRAM_ON
        + """
cut({"3g.20gb": 2})
(_, first, used), (_, second, idle) = devices()
end = use(used)
waits = cut({"7g.40gb": 1})
print((waits.state.value, waits.in_the_way == (used,), waits.changed, len(devices())))
beside = cut({"3g.20gb": 1, "1g.5gb": 3})
print((beside.state.value, used in [uuid for _, _, uuid in devices()], profiles()))
print((cut(None).state.value,))
end()
print((cut({"7g.40gb": 1}).state.value, profiles()))
""",
    )
    assert found[0] == ("waiting", True, False, 2)
    assert found[1] == ("as-wanted", True, ["1g.5gb", "1g.5gb", "1g.5gb", "3g.20gb"])
    assert found[2:] == [("waiting",), ("as-wanted", ["7g.40gb"])]


def test_a_gpu_in_use_keeps_its_mode(gpus: Path) -> None:
    found = run(
        gpus,
        PROGRAM_ON
        + """
end = use(card)
waits = cut({"1g.5gb": 7})
print((waits.state.value, waits.in_the_way == (card,), driver.mig_mode(card).pending))
late = driver.set_mig_mode(card, enabled=True)
end()
print((late, cut({"1g.5gb": 7}).state.value, len(devices())))
""",
    )
    assert found == [("waiting", True, False), ("In use by another client", "as-wanted", 7)]


def test_what_is_infeasible_is_refused_before_anything_is_touched(gpus: Path) -> None:
    found = run(
        gpus,
        """
refused = cut({"1g.5gb": 5, "3g.20gb": 1})
print((refused.state.value, refused.reason.partition(": ")[2], driver.mig_mode(card).current))
print(repr(cut({"1g.10gb": 1, "1g.12gb": 1}).reason.partition(": ")[2]))
""",
    )
    assert found[0][0] == "refused"
    assert found[0][1].endswith("of this, 4 × 1g.5gb + 1 × 3g.20gb fits")
    assert found[0][2] is False
    assert found[1].startswith("A100-40GB has no profile 1g.12gb")


def test_a_driver_that_chooses_the_places_is_tried_in_other_orders(gpus: Path) -> None:
    found = run(
        gpus,
        """
class Old(nvml_mig.MigDriver):
    def create_gpu_instance(self, uuid, kind, start):
        if start is not None:
            raise nvml_call.NvmlError("there is no such function", nvml_mig.FUNCTION_NOT_FOUND)
        return super().create_gpu_instance(uuid, kind, None)
result = cut({"3g.20gb": 1, "1g.5gb": 4}, by=Old(opened))
print((result.state.value, profiles()))
""",
    )
    # It puts the 3g at 0 if that comes first, and then there is no place for the last 1g.
    assert found == [("as-wanted", ["1g.5gb"] * 4 + ["3g.20gb"])]


def test_what_is_said_of_a_device_is_what_nvml_says(gpus: Path) -> None:
    found = run(
        gpus,
        """
cut({"1g.10gb": 1, "3g.20gb": 1})
for one in driver.mig_devices(card):
    print((str(one.profile), one.index, one.memory_bytes >> 20, one.multiprocessors, one.parent == card,
           one.compute_instance, one.engines["copy"]))
geometry = driver.mig_geometry(card)
from gpushare.mig import catalogue
known = catalogue.of_gpu(*driver.model(card))
print([str(kind.profile) for kind in known.kinds if kind not in geometry.kinds])
""",
    )
    assert found[:2] == [
        ("1g.10gb", 0, 9856, 14, True, 0, 1),
        ("3g.20gb", 1, 19968, 42, True, 0, 3),
    ]
    assert found[2] == [], "the simulated GPU can be cut as the published tables say"
