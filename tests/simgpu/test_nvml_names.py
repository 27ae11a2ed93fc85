"""The simulated NVML exports every function that a real one exports, simulated or not."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pynvml
import pytest

from tests.interposer import cuda_headers
from tests.simgpu.conftest import DRIVERS, ROOT, Node
from tests.simgpu.programs import nvml_names

UNSUPPORTED = ROOT / "simgpu" / "nvml" / "unsupported.def"
# The first returns no nvmlReturn_t in nvml.h; nvidia-smi looks up the second, which is in no header.
BESIDES = {"nvmlErrorString", "nvmlInternalGetExportTable"}


def exported() -> set[str]:
    library = DRIVERS / "libnvidia-ml.so.1"
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines()}


def unsupported() -> list[str]:
    return re.findall(r"^UNSUPPORTED\((\w+)\)$", UNSUPPORTED.read_text(), re.MULTILINE)


def test_every_function_that_pynvml_calls_is_exported() -> None:
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', Path(pynvml.__file__).read_text()))
    assert len(called) > 400
    assert called - exported() == set()


@pytest.mark.slow
def test_exports_match_the_headers() -> None:
    try:
        declared = set[str]().union(*map(cuda_headers.nvml_functions, cuda_headers.NVML_PACKAGES))
    except cuda_headers.UnavailableError as error:
        if cuda_headers.in_ci():
            raise
        pytest.skip(f"{error}: connect to a package index and run again, for this is the check of NVML's names")
    assert exported() == declared | BESIDES


def test_unsimulated_function_returns_not_supported_after_init(node: Node) -> None:
    names = unsupported()
    assert len(names) == len(set(names)) > 200
    printed = node.program(nvml_names.results_of_all, names)
    assert printed.splitlines() == [f"{{{pynvml.NVML_ERROR_NOT_SUPPORTED}}}", f"{{{pynvml.NVML_ERROR_UNINITIALIZED}}}"]
