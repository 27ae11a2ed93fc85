"""A program sees a GPU as large as its share, by whichever library it asks."""

from __future__ import annotations

from pathlib import Path

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import PROBE, Container, finishing


def test_cuda_and_nvml_show_the_share(container: Container, make_arbiter: ArbiterMaker) -> None:
    limit = 100 * MIB + 1
    make_arbiter(limit)
    with finishing(container.start([PROBE, "--allocate", "30MiB", "--hold", "60"])) as holder:
        assert holder.stdout is not None
        while not holder.stdout.readline().startswith("holding"):
            assert holder.poll() is None
        output = container.run([PROBE, "--nvml"]).stdout
    free = limit - 30 * MIB
    device, nvml = (
        next(line for line in output.splitlines() if line.startswith(kind)) for kind in ("device 0", "nvml 0")
    )
    assert device.endswith(f" total {limit} free {free}")
    assert nvml.endswith(f" total {limit} free {free} used {30 * MIB}")


def test_a_share_larger_than_the_gpu_shows_the_gpu(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(100 << 30)
    assert f" total {4 << 30} free {4 << 30}" in container.run([PROBE]).stdout


def test_forms_of_32_bits_say_the_most_they_can(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(4 << 30)
    container.python("""
c = Cuda()
free_bytes, total_bytes = ctypes.c_uint32(), ctypes.c_uint32()
c.check("cuMemGetInfo", ctypes.byref(free_bytes), ctypes.byref(total_bytes))
assert (free_bytes.value, total_bytes.value) == (2**32 - 1, 2**32 - 1)
c.check("cuDeviceTotalMem", ctypes.byref(total_bytes), 0)
assert total_bytes.value == 2**32 - 1
""")


def test_pynvml_shows_the_share_in_both_forms(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(50 * MIB)
    packages = Path(__import__("pynvml").__file__).parent
    printed = container.python(
        f"""
import sys
sys.path.append({str(packages)!r})
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
for version in (None, pynvml.nvmlMemory_v2):
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version)
    print(memory.total, memory.free, memory.used)
print(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(1)).total)
"""
    )
    assert printed.splitlines() == [f"{50 * MIB} {50 * MIB} 0"] * 2 + [str(4 << 30)]
