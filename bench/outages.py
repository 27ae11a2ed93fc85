"""Twenty admissions a second on a whole cluster, while webhook, certificates, API server or a node fail and return.

Counts failed admissions, and GPUs that any stored version of the ledger over-commits. The client retries only when the
API server's address does not answer, and counts these retries separately. The pods request shares of GPUs on hand-made
nodes, so no kubelet has to start them; one of these nodes is too small, so some pods wait.

Run: `python bench/outages.py [--only NAME,NAME] [--kills N] [--rate N] [--lab DIRECTORY]`; it takes some twenty
minutes. Prints a table, then one JSON object a scenario; exits with 1 if anything was counted.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from burst import calls
from steady import ground, ledger_watch, load, review_failures, troubles

from lab import access, cluster, gpushare, lab_layout

NODES = 32  # 256 GPUs: 248 for some 130 pods at a time, 8 for more pods than fit
BEFORE_SECONDS, AFTER_SECONDS = 3.0, 2.0
HEAD = (
    "scenario",
    "seconds",
    "admissions",
    "gated",
    "failed",
    "not reached",
    "median s",
    "longest s",
    "versions",
    "over-committed",
)


@dataclass(frozen=True)
class Row:
    name: str
    seconds: float
    counted: load.Counted
    versions: int
    broken: tuple[str, ...]
    notes: tuple[str, ...]

    def cells(self) -> tuple[str | float, ...]:
        counted = self.counted
        return (
            self.name,
            round(self.seconds),
            len(counted.sent),
            counted.gated,
            len(counted.failed),
            counted.unreached,
            round(counted.median_seconds, 3),
            round(counted.longest_seconds, 2),
            self.versions,
            len(self.broken),
        )

    def reasons(self) -> dict[str, int]:
        """Return the reasons of failed admissions, with their counts."""
        return collections.Counter(re.sub(r"[\d.]+:\d{4,5}", "#", creation.message) for creation in self.counted.failed)


def run(name: str, stage: troubles.Stage, rate: float) -> Row:
    trouble = troubles.TROUBLES[name]
    stage.notes.clear()
    trouble.before(stage)
    with (
        stage.administrator.namespace("steady") as namespace,
        ground.nodes(stage.server, f"{namespace}-gpu", NODES) as (crowded, roomy),
    ):
        seen = ledger_watch.LedgerWatch(stage.server, stage.lab.etcd / "client.sock")
        stream = load.Load(stage.server, namespace, crowded, roomy, shares=trouble.shares, rate=rate)
        logged = review_failures.ReviewLogs(stage.lab)
        began = time.monotonic()
        stage.seen = seen
        logged.start()
        seen.start()
        stream.start()
        try:
            time.sleep(BEFORE_SECONDS)
            trouble.act(stage)
            time.sleep(AFTER_SECONDS)
        finally:
            counted = stream.stop()
            seconds = time.monotonic() - began
            seen.stop()
            stage.notes += logged.stop()
    return Row(name, seconds, counted, seen.versions, tuple(seen.broken), tuple(stage.notes))


@contextlib.contextmanager
def installed(node_count: int) -> Iterator[access.Access]:
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:  # keeps socket paths short
        directory = Path(scratch) / "lab"
        try:
            administrator = cluster.up(directory, node_count=node_count, owner=os.getpid())
            assert administrator.lab is not None
            gpushare.install(administrator.lab, administrator)
            yield administrator
        finally:
            cluster.down(directory)


def stage_of(administrator: access.Access, kills: int) -> troubles.Stage:
    assert administrator.lab is not None
    keys = administrator.lab.certificates
    server = calls.Server(administrator.server, keys / "ca.crt", keys / "admin.crt", keys / "admin.key")
    return troubles.Stage(administrator.lab, administrator, server, kills)


def print_row(row: Row) -> None:
    print("| " + " | ".join(map(str, row.cells())) + " |", flush=True)
    for sentence, count in row.reasons().items():
        print(f"  {count} failed: {sentence}", flush=True)
    for sentence in (*row.notes, *row.broken[:5]):
        print(f"  {sentence}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(troubles.TROUBLES), help="which scenarios, separated by commas")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rate", type=float, default=load.RATE, help="pods a second (%(default)g)")
    parser.add_argument("--lab", type=Path, help="a running lab with gpushare installed")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in troubles.TROUBLES]
    if unknown:
        parser.error(f"invalid --only {', '.join(unknown)}: must be of {', '.join(troubles.TROUBLES)}")
    rows: list[Row] = []
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD), flush=True)
    for node_count in (1, 2):
        due = [name for name in names if troubles.TROUBLES[name].nodes == node_count]
        if not due:
            continue
        with contextlib.ExitStack() as stack:
            if options.lab is not None:
                administrator = cluster.access_to(lab_layout.load(options.lab))
            else:
                administrator = stack.enter_context(installed(node_count))
            stage = stage_of(administrator, options.kills)
            for name in due:
                rows.append(run(name, stage, options.rate))
                print_row(rows[-1])
    for row in rows:
        figures = dict(zip(HEAD, row.cells(), strict=True)) | {"reasons": row.reasons(), "notes": row.notes}
        print(json.dumps(figures))
    if any(row.counted.failed or row.broken for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
