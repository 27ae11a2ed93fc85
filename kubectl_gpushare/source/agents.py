"""The agents of the nodes, asked for their metrics through the API server's proxy, some at a time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpushare import contract
from kubectl_gpushare import errors, kubectl
from kubectl_gpushare.source import usage

ASKED_UNASKED = 16  # nodes: of more, the agents are asked only if the user says so
_AT_ONCE = 8
_PORT = 8081  # of the agent's probes and metrics: config/base/deviceplugin
_AGENTS = (
    f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/pods"
    "?labelSelector=app.kubernetes.io%2Fname%3Dgpushare%2Capp.kubernetes.io%2Fcomponent%3Dagent"
)


def ask(program: kubectl.Kubectl, nodes: Sequence[str]) -> tuple[usage.Usage, tuple[str, ...]]:
    """What shares on these nodes use, and in a sentence each what is not known and why."""
    if not nodes:
        return usage.NOTHING_KNOWN, ()
    try:
        pods = dict(_pods(program))
    except errors.ClusterError as error:
        return usage.NOTHING_KNOWN, (f"used figures: {error}",)
    answers: dict[str, str] = {}
    failures: dict[str, list[str]] = {}
    silent = [node for node in nodes if node not in pods]
    if silent:
        failures["no agent runs there"] = silent
    wanted = iter([node for node in nodes if node in pods])
    while some := list(itertools.islice(wanted, _AT_ONCE)):
        for node, running in [(node, program.raw(_path(pods[node]))) for node in some]:
            try:
                answers[node] = running.text()
            except (errors.ClusterError, UnicodeDecodeError) as error:
                failures.setdefault(str(error), []).append(node)
    return usage.of(answers), tuple(_sentences(failures, len(nodes)))


def _pods(program: kubectl.Kubectl) -> Iterator[tuple[str, str]]:
    """Node and name of each agent that is ready to answer."""
    for item in json.loads(program.raw(_AGENTS).text()).get("items") or []:
        node = (item.get("spec") or {}).get("nodeName")
        if node and (item.get("status") or {}).get("phase") == "Running":
            yield str(node), str(item["metadata"]["name"])


def _path(pod: str) -> str:
    return f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/pods/{pod}:{_PORT}/proxy/metrics"


def _sentences(failures: Mapping[str, Iterable[str]], asked: int) -> Iterator[str]:
    for reason, nodes in failures.items():
        names = list(nodes)
        where = "" if len(names) == asked > 1 else f" of {names[0]}" if len(names) == 1 else f" of {len(names)} nodes"
        yield f"used figures{where}: {reason}"
