"""An honest pod's programs. They print their observations, one JSON object per line.

`work` runs kernels of one millisecond one after another and prints, by the machine's clock, when each completed and how
much longer than a millisecond it took. `fill` repeatedly starts a process that allocates all available memory to the
byte. `both` is the pod's main program.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time

from tests.hostile.cuda import CudaError, Gpu

KERNEL_US = 1000
TELL_SECONDS = 0.25
FILL_SECONDS = 0.5


def tell(**said: object) -> None:
    sys.stdout.write(json.dumps(said, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def work() -> None:
    gpu = Gpu()
    kernel = gpu.kernel(KERNEL_US)
    tell(total_bytes=gpu.total_bytes())
    reported_at, late_us = time.monotonic(), list[int]()
    while True:
        began = time.monotonic()
        gpu.launch(kernel)
        gpu.wait()
        now = time.monotonic()
        late_us.append(round(1e6 * (now - began)) - KERNEL_US)
        if now > reported_at + TELL_SECONDS:
            tell(at=round(now, 4), late_us=late_us)
            reported_at, late_us = now, []


def fill() -> None:
    while True:
        began = time.monotonic()
        done = subprocess.run([*sys.orig_argv[:-1], "once"], capture_output=True, text=True, check=False)
        said = json.loads(done.stdout) if done.stdout else {"failed": done.stderr[-300:]}
        tell(filling=round(began, 4), filled=round(time.monotonic(), 4), **said)
        time.sleep(FILL_SECONDS)


def once() -> None:
    try:
        tell(filled_bytes=Gpu().fill())
    except CudaError as error:
        tell(failed=str(error))


def both() -> None:
    for what in ("work", "fill"):
        subprocess.Popen([*sys.orig_argv[:-1], what])
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    {"work": work, "fill": fill, "once": once, "both": both}[sys.argv[1]]()
