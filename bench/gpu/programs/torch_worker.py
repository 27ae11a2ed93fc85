"""Run several PyTorch workloads in one process, because importing PyTorch takes longer than measuring.

    python -m bench.gpu.programs.torch_worker [DEVICE]   in the root of a checkout; DEVICE is cuda, or cpu for a try

Print "ready" and a JSON object of facts. Then read one JSON object per line from stdin, and answer each with one line:
a word and a JSON object.

| command | answer |
|---|---|
| {"prepare": "decode", "requests": 8} | prepared, once the workload (`torch_workloads`) is built and warm |
| {"run": 3.0, "at": 1234.5, "warm": 0.3} | done, with the result of `measure` |
| {"drop": true} | dropped, once its memory is released |

A failing command is answered with "failed" and the error. The process exits at the end of stdin.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from typing import Any, TextIO

BEGUN = time.monotonic()

import torch  # noqa: E402

from bench.gpu.programs import marks, torch_workloads  # noqa: E402

WARM_PIECES = 3
WARM_SECONDS = 0.3
AFTER_SECONDS = 0.15  # keeps working for this time, so that no worker is alone while another still counts


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    # Only answers go to stdout: libraries' output goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    imported = time.monotonic()
    torch.zeros(1, device=device).add_(1).tolist()
    facts = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "import_seconds": round(imported - BEGUN, 3),
        "first_kernel_seconds": round(time.monotonic() - imported, 3),
    }
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        facts |= {"device": torch.cuda.get_device_name(), "free": free, "total": total}
    _answer(answers, "ready", facts)
    worker = Worker(device)
    for line in sys.stdin:
        try:
            word, facts = worker.obey(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            word, facts = "failed", {"error": f"{type(error).__name__}: {error}"}
        _answer(answers, word, facts)


class Worker:
    """The prepared workload, if there is one."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._workload: torch_workloads.Workload | None = None

    def obey(self, command: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Carry out a command and return the answer. Raises any exception of the workload."""
        begun = time.monotonic()
        if "run" in command and self._workload is not None:
            at, warm = command.get("at", begun), command.get("warm", WARM_SECONDS)
            return "done", measure(self._workload, command["run"], at, warm)
        self._drop()
        if "drop" in command:
            return "dropped", self._reserved()
        if "prepare" not in command:
            raise ValueError(f"write prepare, run (something that is prepared) or drop, not {command}")
        workload = torch_workloads.prepare(command["prepare"], command.get("requests", 1), self._device)
        for _ in range(WARM_PIECES):
            workload.run(lambda: None)
        torch_workloads.synchronize(self._device)
        self._workload = workload
        return "prepared", {"seconds": round(time.monotonic() - begun, 3), **self._reserved()}

    def _drop(self) -> None:
        self._workload = None
        gc.collect()
        if self._device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _reserved(self) -> dict[str, Any]:
        return {"reserved": torch.cuda.memory_reserved()} if self._device == "cuda" else {}


def _answer(answers: TextIO, word: str, facts: dict[str, Any]) -> None:
    answers.write(f"{word} {json.dumps(facts)}\n")
    answers.flush()


def measure(workload: torch_workloads.Workload, seconds: float, at: float, warm: float) -> dict[str, Any]:
    """Start at `at` (monotonic clock), start counting `warm` seconds later, and count for `seconds`.

    Return the result of `marks.figures`, with this process's cpu_seconds in the counted time, and the failures.
    """
    begin, end = at + warm, at + warm + seconds
    moments: list[float] = []
    used: list[float] = []
    failures = len(workload.failures)

    def mark() -> None:
        moments.append(time.monotonic())
        used.append(time.process_time())

    time.sleep(max(0.0, at - time.monotonic()))
    while not moments or moments[-1] < end + AFTER_SECONDS:
        workload.run(mark)
    first, last = marks.window(moments, begin, end)
    failed = workload.failures[failures:]
    return {
        **marks.figures(moments, at, begin, end, workload.amount),
        "cpu_seconds": used[last] - used[first],
        **({"failures": len(failed), "failure": failed[0]} if failed else {}),
    }


if __name__ == "__main__":
    main()
