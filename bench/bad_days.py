"""Failures of the control plane: visible errors, losses, and the time of the recovery.

A real API server and two webhook replicas, which reach it only through a proxy that can fail. Before, during and after
each failure pods with shares are created and deleted. Users reach the API server directly, so the webhooks see every
pod. The benchmark counts pods that were rejected or admitted late, shares that exist only in the ledger or only on a
pod, and GPUs that any version of the ledger in etcd over-commits. It measures the time from the end of the failure
until a new pod is placed at admission, until every waiting pod is placed, until the ledger matches the pods, and until
both replicas are ready.

Run: `python bench/bad_days.py [--only DAY,DAY] [--seconds 60] [--cut-seconds 600] [--pods 5000]`. Prints a table, then
one JSON object a day; exits with 1 if anything was lost or over-committed, or did not recover by itself.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import admission
from burst import webhooks
from days import proxy, table
from days.stage import Row, Stage
from steady import ground

from lab import cluster

HEAD = ("day", "seconds", "admitted", "refused", "late", "slowest s", "lost", "over-committed")
TIMES = ("placed at once", "all placed", "in order", "ready")


def cells(row: Row) -> list[str]:
    counted = [row.name, f"{row.seconds:.0f}", row.admitted, len(row.refused), row.gated, f"{row.slowest_seconds:.1f}"]
    times = [f"{row.after[name]:.0f}" if name in row.after else "never" for name in TIMES]
    return [str(cell) for cell in (*counted, len(row.lost), len(row.broken), *times)]


def print_row(row: Row) -> None:
    print("| " + " | ".join(cells(row)) + " |", flush=True)
    for sentence, count in collections.Counter(
        re.sub(r"[a-z2-7]{26}|[\d.]+:\d{4,5}", "#", refusal) for refusal in row.refused
    ).items():
        print(f"  {count} refused: {sentence}", flush=True)
    for sentence in (*row.notes, *row.lost[:5], *row.broken[:5]):
        print(f"  {sentence}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(table.DAYS), help="which days, separated by commas")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each lasts")
    parser.add_argument("--cut-seconds", type=float, default=600.0, help="how long the API server is cut off")
    parser.add_argument("--pods", type=int, default=5000, help="pods to delete at once")
    parser.add_argument("--logs", type=Path, help="copy the webhooks' logs to this directory")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in table.DAYS]
    if unknown:
        parser.error(f"invalid --only {', '.join(unknown)}: must be of {', '.join(table.DAYS)}")
    rows: list[Row] = []
    print("| " + " | ".join((*HEAD, *TIMES)) + " |\n|" + "---|" * len((*HEAD, *TIMES)), flush=True)
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:  # keeps socket paths short
        directory = Path(scratch) / "lab"
        try:
            administrator = cluster.up(directory, node_count=0, owner=os.getpid())
            bench = admission.Bench(administrator, Path(scratch), SimpleNamespace(nodes=0, profile=None))  # type: ignore[arg-type]
            bench.prepare()
            for name in names:
                bench.install_admission()
                with proxy.running(bench.server) as api_proxy:
                    kubeconfig = api_proxy.kubeconfig(bench.kubeconfig, Path(scratch) / "through")
                    environment = table.DAYS[name].environment(Path(scratch))
                    with (
                        administrator.namespace("bad-day") as namespace,
                        ground.nodes(bench.server, f"{namespace}-gpu", table.DAYS[name].nodes) as (_, roomy),
                        webhooks.running(
                            2, Path(scratch) / name.replace(" ", "-"), kubeconfig, environment=environment
                        ) as (replicas, _),
                    ):
                        stage = Stage(bench.server, bench.lab, namespace, roomy, replicas, api_proxy, options)
                        rows.append(stage.run(name, table.DAYS[name]))
                        print_row(rows[-1])
        finally:
            cluster.down(directory)
            if options.logs:
                shutil.copytree(scratch, options.logs, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lab"))
    for row in rows:
        print(json.dumps(dataclasses.asdict(row)))
    if any(row.lost or row.broken or set(TIMES) - row.after.keys() for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
