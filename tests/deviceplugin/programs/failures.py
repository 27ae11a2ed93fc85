"""GPUs that fail while a program uses them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SIMGPU = Path(__file__).parents[3] / "build" / "simgpu" / "simgpu"


def simgpu(verb: str, *words: str) -> None:
    """Run `simgpu` on the GPUs of this process."""
    subprocess.run([SIMGPU, verb, os.environ["SIMGPU_DIR"], *words], check=True)
