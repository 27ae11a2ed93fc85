"""Rehearses the run on a GPU machine: the same commands, in an environment that has only what such a machine has.

    python -m bench.gpu.rehearsal [RESULTS]

Such a machine has a Python with other projects' packages and without this project's, root, a C compiler, and neither
network nor Kubernetes. Here only the GPU is simulated, so a missing dependency fails here first. Prints both pages and
the duration of each command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "build" / "rehearsal"
PYTORCH = ROOT / "tests" / "frameworks" / "pytorch.lock"
PACKAGES = ("aiohttp", "grpcio", "nvidia-ml-py", "prometheus-client", "pytest", "pyyaml", "numpy")
# Installed one by one: a package that cannot be installed is left out, and its row says so.
FRAMEWORKS = ("transformers", "jax[cuda12]", "cupy-cuda12x", "numba-cuda", "cuda-bindings", "cuda-core")
LIMIT_SECONDS = {"first": 9.5 * 60, "second": 4 * 60}


def command(part: str, python: Path | str, results: Path, more: Sequence[str] = (), *, path: str = "") -> list[str]:
    """Return the command line of one run in an empty environment without a network. path: more package directories."""
    found = os.pathsep.join(entry for entry in os.environ["PATH"].split(os.pathsep) if ".venv" not in entry)
    variables = [f"PATH={found}", "HOME=/root", "PYTHONUNBUFFERED=1", *([f"PYTHONPATH={path}"] if path else [])]
    bench = [str(python), "-m", "bench.gpu", f"--{part}", "--simulated", "--results", str(results), *more]
    return ["unshare", "--net", "env", "-i", *variables, *bench]


def installed() -> Path:
    """Create the environment with all packages that can be installed, and return its Python."""
    python = ENVIRONMENT / "bin" / "python"
    complete = ENVIRONMENT / ".complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--require-hashes", "-r", str(PYTORCH)], check=True)
        subprocess.run([*install, *PACKAGES], check=True)
        pinned = ENVIRONMENT / "pinned.txt"  # prevents frameworks from replacing PyTorch's dependencies
        pinned.write_bytes(subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, check=True).stdout)
        for name in FRAMEWORKS:
            if subprocess.run([*install, "--constraint", str(pinned), name], check=False).returncode != 0:
                print(f"{name}: could not be installed here")
        complete.touch()
    return python


def main() -> None:
    results = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "rehearsed"
    python = installed()
    failed = False
    for part, most_seconds in LIMIT_SECONDS.items():
        begun = time.monotonic()
        ended = subprocess.run(command(part, python, results), cwd=ROOT, check=False)
        took = time.monotonic() - begun
        print(f"--{part}: exit code {ended.returncode} after {took:.0f} s of at most {most_seconds:.0f} s", flush=True)
        failed |= ended.returncode != 0 or took > most_seconds
    sys.exit(failed)


if __name__ == "__main__":
    main()
