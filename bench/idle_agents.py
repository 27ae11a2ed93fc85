"""Count the agents' API requests, when their nodes are idle and when they start.

The counts come from the audit log of a real API server, for the real agents of a lab (`make lab`) that does nothing
else. An idle agent only renews its watches, so 5,000 agents send 5,000 times as many requests.

Run: `python -m bench.idle_agents [--lab DIRECTORY] [--seconds N]`. It waits until the agents have run for that time,
then restarts them. Prints a table, then one JSON object a figure; exits with 1 if an idle agent sends more requests
than the goal.
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
GOAL_A_SECOND = 0.01  # by one agent: one request a second for a hundred nodes
SETTLING_SECONDS = 60.0  # after an agent's start
WATCH = "watch"


@dataclass(frozen=True)
class Request:
    """at: Unix time of arrival; seconds: duration, None while the request is still open."""

    at: float
    what: str
    seconds: float | None


def asked(log: Path) -> Iterator[Request]:
    """Yield each request of an agent once: the log reports a finished watch twice."""
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
    """Return the start time of the youngest agent's container."""
    containers = [pod["status"]["containerStatuses"] for pod in gpushare.pods(administrator, "agent")]
    return max(unix(status["state"]["running"]["startedAt"]) for statuses in containers for status in statuses)


def table(requests: list[Request]) -> str:
    count = collections.Counter(request.what for request in requests)
    return tabulate(sorted(count.items()), headers=("request", "times"), tablefmt="github")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", type=Path, default=lab_layout.default_directory(), help="directory (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1200.0, help="minimum idle time (%(default)s)")
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
        print(f"watches stay open for {min(watches):.0f} to {max(watches):.0f} s, at random\n")

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
