"""GPUs that fail while a program has them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SIMGPU = Path(__file__).parents[3] / "build" / "simgpu" / "simgpu"


def simgpu(verb: str, *words: str) -> None:
    """Run the command on the GPUs that this process has."""
    subprocess.run([SIMGPU, verb, os.environ["SIMGPU_DIR"], *words], check=True)
