"""A program that launches kernels through the library or around it."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from tests.deviceplugin.audit.programs.asked import answer
from tests.interposer.cuda_client import Cuda


class Launcher(Cuda):
    """A client that launches in its own thread."""

    def launch_for_ever(self, launch: Callable[..., int]) -> None:
        function = self.kernel("spin_5000us")

        def work() -> None:
            self.use(0)
            while launch(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0:
                self.check("cuCtxSynchronize")

        threading.Thread(target=work, daemon=True).start()

    def by_the_library(self) -> Callable[..., int]:
        return ctypes.CDLL("libcuda.so.1").cuLaunchKernel

    def past_it(self) -> Callable[..., int]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        path, begin = next((line.split()[-1], int(line.split("-")[0], 16)) for line in lines if "libcuda.so" in line)
        names = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True).stdout
        offset = next(int(line.split()[0], 16) for line in names.splitlines() if line.endswith(" cuLaunchKernel"))
        kinds = (ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(begin + offset)


def answers() -> None:
    answer(Launcher())
