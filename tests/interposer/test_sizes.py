"""Tests that CUDA and NVML report the share's size as the GPU's."""

from __future__ import annotations

from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import PROBE, Container, finishing
from tests.interposer.launching import lines_until
from tests.interposer.programs import sizes


def test_cuda_and_nvml_report_the_share(container: Container, make_arbiter: ArbiterMaker) -> None:
    limit = 100 * MIB + 1
    make_arbiter(limit)
    with finishing(container.start([PROBE, "--allocate", "30MiB", "--hold", "60"])) as holder:
        lines_until(holder, "holding")
        output = container.run([PROBE, "--nvml"]).stdout
    free = limit - 30 * MIB
    device, nvml = (
        next(line for line in output.splitlines() if line.startswith(kind)) for kind in ("device 0", "nvml 0")
    )
    assert device.endswith(f" total {limit} free {free}")
    assert nvml.endswith(f" total {limit} free {free} used {30 * MIB}")


def test_share_larger_than_the_gpu_reports_the_gpu(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(100 << 30)
    assert f" total {4 << 30} free {4 << 30}" in container.run([PROBE]).stdout


def test_32_bit_variants_return_their_maximum(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(4 << 30)
    container.program(sizes.forms_of_32_bits)


def test_pynvml_reports_the_share_in_both_variants(container: Container, make_arbiter: ArbiterMaker) -> None:
    make_arbiter(50 * MIB)
    printed = container.program(sizes.both_forms_of_nvml)
    assert printed.splitlines() == [f"{50 * MIB} {50 * MIB} 0"] * 2 + [str(4 << 30)]
