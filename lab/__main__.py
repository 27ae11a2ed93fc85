"""The lab's command line: `python -m lab up | install | api | down | status | env`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from lab import cluster, gpushare, lab_errors, lab_layout, status

directory_option = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=lab_layout.default_directory,
    help="Directory of all files of the lab.  [default: $GPUSHARE_LAB or ~/.local/state/gpushare/lab]",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def main() -> None:
    """Run a real Kubernetes on this machine, with simulated GPUs."""


@main.command()
@directory_option
@click.option(
    "--nodes",
    type=int,
    help="Nodes, each with its own kubelet and containerd.  [default: as many as the lab already has, or 1]",
)
def up(directory: Path, nodes: int | None) -> None:
    """Start a cluster, or the missing components of a cluster that was started before."""
    _up(directory, nodes)


@main.command()
@directory_option
def install(directory: Path) -> None:
    """Install gpushare into the cluster, or start its missing parts."""
    began = time.monotonic()
    lab = lab_layout.load(directory)
    gpushare.install(lab, cluster.access_to(lab))
    print(f"lab: gpushare is ready after {time.monotonic() - began:.1f} s", file=sys.stderr)
    fail = f"build/simgpu/simgpu fail {lab.simgpu}/{lab.nodes[0].name} 0 xid=48"
    print(f"lab: the simulated GPUs of each node are in {lab.simgpu}; to have one fail: {fail}", file=sys.stderr)


@main.command()
@directory_option
def api(directory: Path) -> None:
    """Start only an API server with its etcd."""
    _up(directory, 0)


@main.command()
@directory_option
@click.option("--keep-logs", type=click.Path(path_type=Path, file_okay=False), help="Copy the logs there first.")
def down(directory: Path, keep_logs: Path | None) -> None:
    """Stop the cluster and remove everything that it created."""
    began = time.monotonic()
    removed = cluster.down(directory, keep_logs=keep_logs)
    message = f"lab: removed in {time.monotonic() - began:.1f} s" if removed else f"lab: there is no lab in {directory}"
    print(message, file=sys.stderr)


@main.command("status")
@directory_option
def show_status(directory: Path) -> None:
    """List the components with their pids, memory and log files."""
    rows = status.rows(lab_layout.load(directory))
    print(status.table(rows))
    sys.exit(0 if all(row.running for row in rows) else 1)


@main.command()
@directory_option
def env(directory: Path) -> None:
    """Print shell commands that select this cluster, for eval "$(...)"."""
    print(status.shell_environment(lab_layout.load(directory)))


def _up(directory: Path, nodes: int | None) -> None:
    began = time.monotonic()
    access = cluster.up(directory, node_count=nodes)
    print(f"lab: {access.server} serves after {time.monotonic() - began:.1f} s", file=sys.stderr)
    print(f'lab: use it by: eval "$(python -m lab env --directory {directory})"', file=sys.stderr)


if __name__ == "__main__":
    try:
        main(prog_name="python -m lab")
    except lab_errors.LabError as error:
        sys.exit(f"lab: {error}")
