"""Asks the agents of the nodes through the API server's proxy, _AT_ONCE at a time, each with a timeout."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence

from gpushare import contract
from kubectl_gpushare import kubectl, plugin_errors
from kubectl_gpushare.source import live_usage

ASKED_UNASKED = 16  # nodes: beyond this many, agents are asked only with --usage
METRICS, AUDIT = "metrics", "audit"  # pages that an agent serves
_AT_ONCE = 8
_MAX_BYTES = 16 << 20  # of one agent's answer: its node may have been taken over
_PATIENCE = "--request-timeout=10s"  # before the user's flags, so that the user's own wins
PORT = 8081  # of the agent's probes and metrics: config/base/deviceplugin
_PODS = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/pods"
AGENTS = f"{_PODS}?labelSelector=app.kubernetes.io%2Fname%3Dgpushare%2Capp.kubernetes.io%2Fcomponent%3Dagent"


@dataclasses.dataclass(frozen=True, slots=True)
class AgentAnswers:
    """Agents' answers by node."""

    texts: Mapping[str, str]
    failures: Mapping[str, Sequence[str]]  # the nodes without an answer, by the reason
    ready: frozenset[str] = frozenset()  # nodes whose kubelet reports the agent as ready, even if it cannot be reached

    def notes(self, what: str) -> tuple[str, ...]:
        asked = {*self.texts, *(node for nodes in self.failures.values() for node in nodes)}
        notes = []
        for reason, nodes in self.failures.items():
            where = f" of {nodes[0]}" if len(nodes) == 1 else f" of {len(nodes)} nodes"
            notes.append(f"{what}{'' if len(nodes) == len(asked) else where}: {reason}")
        return tuple(notes)


def ask(program: kubectl.Kubectl, nodes: Sequence[str]) -> tuple[live_usage.Usage, tuple[str, ...]]:
    answers = fetch(program, nodes, METRICS)
    return live_usage.parse(answers.texts), answers.notes("used figures")


def fetch(program: kubectl.Kubectl, nodes: Sequence[str], page: str) -> AgentAnswers:
    if not nodes:
        return AgentAnswers({}, {})
    program = dataclasses.replace(program, flags=(_PATIENCE, *program.flags))
    try:
        running_pods = list(_pods(program))
    except plugin_errors.KubectlError as error:
        return AgentAnswers({}, {str(error): list(nodes)})
    pods = {node: name for node, name, _ in running_pods}
    texts: dict[str, str] = {}
    failures: dict[str, list[str]] = {}
    silent = [node for node in nodes if node not in pods]
    if silent:
        failures["no agent runs there"] = silent
    wanted = iter([node for node in nodes if node in pods])
    while batch := list(itertools.islice(wanted, _AT_ONCE)):
        for node, running in [(node, program.raw(f"{_PODS}/{pods[node]}:{PORT}/proxy/{page}")) for node in batch]:
            try:
                texts[node] = running.text(_MAX_BYTES)
            except plugin_errors.NotInstalled:  # kubectl's error for any unknown path
                failures.setdefault(f"the agent has no /{page}, so it is older than this plugin", []).append(node)
            except (plugin_errors.KubectlError, UnicodeDecodeError) as error:
                failures.setdefault(str(error), []).append(node)
    return AgentAnswers(texts, failures, frozenset(node for node, _, well in running_pods if well))


def _pods(program: kubectl.Kubectl) -> Iterator[tuple[str, str, bool]]:
    """Yield node and pod name of each running agent, and whether its kubelet reports it as ready."""
    for item in json.loads(program.raw(AGENTS).text()).get("items") or []:
        node, status = (item.get("spec") or {}).get("nodeName"), item.get("status") or {}
        if node and status.get("phase") == "Running":
            conditions = {each.get("type"): each.get("status") for each in status.get("conditions") or []}
            yield str(node), str(item["metadata"]["name"]), conditions.get("Ready") == "True"
