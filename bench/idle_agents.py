"""What agents ask of the API server: while nothing happens on their nodes, and when they start.

Counted in the audit log of a real API server, of the real agents of a lab (`make lab`) on which nothing else is done.
An agent that is idle renews its watches and does nothing else, so what 5,000 of them ask is 5,000 times as much.

Run: `python -m bench.idle_agents [--lab DIRECTORY] [--seconds N]`. It waits until the agents have run for so long, and
then starts them again. Prints a table, then one JSON object a figure; ends with 1 if an idle agent asks for more than
the goal.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from lab import access, cluster, gpushare, lab_layout

AGENTS = 5000
GOAL_A_SECOND = 0.01  # of one agent: a request a second for a hundred nodes
SETTLING_SECONDS = 60.0  # after its start
WATCH = "watch"


@dataclass(frozen=True)
class Request:
    """at, seconds: Unix time at which it came, and how long it took; None while it still goes on."""

    at: float
    what: str
    seconds: float | None


def asked(log: Path) -> Iterator[Request]:
    """Every request of an agent, once: a watch that has ended is told of twice."""
    requests: dict[str, Request] = {}
    for line in log.read_text().splitlines(keepends=True):
        event = json.loads(line) if line.endswith("\n") else {}
        if not event or not event["user"]["username"].endswith(f":{gpushare.AGENT}"):
            continue
        at, ended = map(unix, (event["requestReceivedTimestamp"], event["stageTimestamp"]))
        over = event["stage"] == "ResponseComplete"
        what = f"{event['verb']} {(event.get('objectRef') or {}).get('resource') or event['requestURI']}"
        requests[event["auditID"]] = Request(at, what, ended - at if over else None)
    yield from requests.values()


def unix(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def started(administrator: access.Access) -> float:
    """When the youngest agent's container was started."""
    containers = [pod["status"]["containerStatuses"] for pod in gpushare.pods(administrator, "agent")]
    return max(unix(status["state"]["running"]["startedAt"]) for statuses in containers for status in statuses)


def table(requests: list[Request]) -> str:
    count = collections.Counter(request.what for request in requests)
    return tabulate(sorted(count.items()), headers=("request", "times"), tablefmt="github")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", type=Path, default=lab_layout.default_directory(), help="directory (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1200.0, help="at least so long idle (%(default)s)")
    arguments = parser.parse_args()
    where = lab_layout.load(arguments.lab)
    administrator = cluster.access_to(where)
    agents = len(where.nodes)

    begin = started(administrator) + SETTLING_SECONDS
    time.sleep(max(0.0, begin + arguments.seconds - time.time()))
    seconds = time.time() - begin
    idle = [request for request in asked(where.audit_log) if request.at >= begin]
    rate = len(idle) / seconds / agents
    print(f"{agents} agents, idle for {seconds:.0f} s\n\n{table(idle)}\n")
    watches = [request.seconds for request in idle if request.what.startswith(WATCH) and request.seconds is not None]
    if watches:
        print(f"a watch is open for {min(watches):.0f} to {max(watches):.0f} s, drawn at random\n")

    before = time.time()
    administrator.kubectl("rollout", "restart", *gpushare.SCOPE, f"daemonset/{gpushare.AGENT}")
    gpushare.ready(where, administrator)
    time.sleep(SETTLING_SECONDS / 4)
    start = [request for request in asked(where.audit_log) if request.at >= before]
    print(f"the start of {agents} agents\n\n{table(start)}\n")

    lines = (
        ("agent.idle.requests", rate, "1/s", "goal", rate / GOAL_A_SECOND),
        ("agents.5000.idle.requests", rate * AGENTS, "1/s", "goal", rate / GOAL_A_SECOND),
        ("agent.start.requests", len(start) / agents, "", "", None),
    )
    for figure, value, unit, against, ratio in lines:
        print(
            json.dumps({"figure": figure, "value": round(value, 4), "unit": unit, "against": against, "ratio": ratio})
        )
    return int(rate > GOAL_A_SECOND)


if __name__ == "__main__":
    sys.exit(main())
