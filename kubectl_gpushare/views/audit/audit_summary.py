"""The summary of all limits as a sentence, and notes on what is unknown."""

from __future__ import annotations

from collections.abc import Sequence

from kubectl_gpushare.planning.auditing import AuditState, AuditVerdict
from kubectl_gpushare.source.audits import UNLIMITED


def sentence(verdict: AuditVerdict) -> str:
    """As `41 of 41 containers limited on 12 nodes; 1 process is unlimited`."""
    limited, parts = verdict.containers(AuditState.IN_FORCE), []
    if proven := sum(node.checked_at is not None for node in verdict.nodes):
        there = limited + verdict.containers(AuditState.BROKEN)
        parts.append(f"{limited} of {_count(there, 'container')} limited on {_count(proven, 'node')}")
    if idle := verdict.containers(AuditState.IDLE):
        parts.append(f"{_count(idle, 'container')} with nothing on a GPU")
    if containers := verdict.containers(AuditState.CONDITION):
        nodes = sum(node.state is AuditState.CONDITION for node in verdict.nodes)
        parts.append(f"{_count(containers, 'container')} on {_count(nodes, 'node')} by the GPUNode's condition alone")
    unlimited = sum(stray.process.state == UNLIMITED for stray in verdict.strays)
    if unlimited:
        parts.append(f"{_processes(unlimited)} of shares without a limit")
    if foreign := len(verdict.strays) - unlimited:
        parts.append(f"{_processes(foreign)} of no share")
    if broken := sum(node.state is AuditState.BROKEN for node in verdict.nodes):
        parts.append(f"something is not in force on {_count(broken, 'node')}")
    if unknown := sum(node.state is AuditState.UNKNOWN for node in verdict.nodes):
        parts.append(f"not certain of {_count(unknown, 'node')}")
    return "; ".join(parts) or "no node has GPUs that are shared by annotation"


def notes(verdict: AuditVerdict) -> list[str]:
    """Sentences about what is unknown."""
    by_reason: dict[str, list[str]] = {}
    for node in verdict.nodes:
        if node.state is AuditState.UNKNOWN:
            by_reason.setdefault(node.reason, []).append(node.name)
    sentences = [f"not certain of {_named(names)}: {reason}" for reason, names in by_reason.items()]
    sentences += [
        f"{node.name}: {node.reason}" for node in verdict.nodes if node.state is AuditState.IN_FORCE and node.reason
    ]
    named = [node.name for node in verdict.nodes if node.checked_at is None and node.state is not AuditState.UNKNOWN]
    if named:
        sentences.append(f"of {_named(named)} only the condition of the GPUNode is known, which names no container")
    return sentences


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _named(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"


def _processes(number: int) -> str:
    return f"{number} process" if number == 1 else f"{number} processes"
