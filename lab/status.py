"""The output of `python -m lab status` and `env`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import tabulate

from lab import build, cluster, daemon_process, lab_layout, lab_nodes


@dataclass(frozen=True, slots=True)
class Row:
    """A component, with its pid and resident memory if it runs."""

    name: str
    pid: int | None
    memory_bytes: int
    log: Path

    @property
    def running(self) -> bool:
        """Whether the component runs."""
        return self.pid is not None


def rows(lab: lab_layout.Layout) -> list[Row]:
    """Return a row for each expected component, and for each other recorded process."""
    expected = [name for member in lab.nodes for name in lab_nodes.process_names(member)]
    expected += cluster.CONTROL_PLANE if lab.nodes else cluster.CONTROL_PLANE[2:]
    recorded = [record.name for record in lab.processes.iterdir() if not record.name.endswith(".new")]
    names = [*reversed(expected), *sorted(set(recorded) - set(expected))]
    return [_row(lab, name) for name in names]


def table(components: list[Row]) -> str:
    """Return the rows as a table with the total memory."""
    cells: list[tuple[object, ...]] = [
        (row.name, row.pid or "not running", f"{row.memory_bytes / 2**20:.0f} MiB", row.log) for row in components
    ]
    total = sum(row.memory_bytes for row in components)
    cells.append(("", "", f"{total / 2**20:.0f} MiB", ""))
    return tabulate.tabulate(cells, headers=("COMPONENT", "PID", "MEMORY", "LOG"), tablefmt="plain")


def shell_environment(lab: lab_layout.Layout) -> str:
    """Return the shell commands that point kubectl at the lab, put kubectl on PATH and name the simulated GPUs."""
    lines = [f"export KUBECONFIG={shlex.quote(str(lab.admin_kubeconfig))}"]
    # contains a directory for each node, for `simgpu fail`
    lines.append(f"export LAB_GPUS={shlex.quote(str(lab.simgpu))}")
    lines.append(f"export PATH={shlex.quote(str(build.kubectl().parent))}:$PATH")
    return "\n".join(lines)


def _row(lab: lab_layout.Layout, name: str) -> Row:
    pid = daemon_process.pid_of(name, lab.processes)
    return Row(name, pid, _resident_bytes(pid) if pid else 0, lab.logs / name)


def _resident_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0
    lines = [line.split() for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(lines[0][1]) * 1024 if lines else 0
