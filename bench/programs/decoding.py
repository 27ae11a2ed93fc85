"""Two language models that decode on one GPU: published figures, and the parameters that simulate them.

`bench/simulated_time.py` and `tests/simgpu/test_published_figures.py` compare the two; simgpu/README.md explains the
parameters.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "simgpu"
SAMPLE = ROOT / "simgpu" / "samples" / "two-models.ini"

STEP_MS = 5.85
REQUEST_PART = 0.11
KERNEL_PERCENT = 92
SWITCH = "400us"

REQUESTS = (2, 4, 8, 16, 32)
SLICED = (44.5, 45.0, 51.2, 61.6, 72.8)
MPS = (63.5, 60.4, 68.0, 77.8, 87.9)


def create(directory: Path) -> Path:
    """Create GPUs whose processes take turns as the published ones, with a driver that has SM partitions."""
    description, text = directory / "node.ini", SAMPLE.read_text()
    for old, new in (("550.54.15", "620.10"), ("= 12.4", "= 13.6"), ("[gpu 2]", f"context-switch = {SWITCH}\n[gpu 2]")):
        text = text.replace(old, new)
    description.write_text(text)
    subprocess.run([BUILT / "simgpu", "create", description, directory / "gpus"], check=True)
    return directory / "gpus"


def step_ns(requests: float) -> int:
    """Return the length of a step when a model runs alone."""
    return round(STEP_MS * (1 + REQUEST_PART * requests) * 1e6)


def kernel(requests: float) -> str:
    """Return the name of the kernel that a model runs in each step."""
    return f"k_{KERNEL_PERCENT}pct_{step_ns(requests)}ns"
