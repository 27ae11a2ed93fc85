"""In sentences: how it is with all limits together, and what could not be told."""

from __future__ import annotations

from collections.abc import Sequence

from kubectl_gpushare.planning.auditing import AuditState, AuditVerdict
from kubectl_gpushare.source.audits import UNLIMITED


def sentence(verdict: AuditVerdict) -> str:
    """As `41 of 41 containers limited on 12 nodes; 1 process is unlimited`."""
    limited, parts = verdict.containers(AuditState.IN_FORCE), []
    if proven := sum(one.checked_at is not None for one in verdict.nodes):
        there = limited + verdict.containers(AuditState.BROKEN)
        parts.append(f"{limited} of {_count(there, 'container')} limited on {_count(proven, 'node')}")
    if idle := verdict.containers(AuditState.IDLE):
        parts.append(f"{_count(idle, 'container')} with nothing on a GPU")
    if taken := verdict.containers(AuditState.CONDITION):
        nodes = sum(one.state is AuditState.CONDITION for one in verdict.nodes)
        parts.append(f"{_count(taken, 'container')} on {_count(nodes, 'node')} by the GPUNode's condition alone")
    unlimited = sum(one.process.state == UNLIMITED for one in verdict.strays)
    if unlimited:
        parts.append(f"{_processes(unlimited)} of shares without a limit")
    if foreign := len(verdict.strays) - unlimited:
        parts.append(f"{_processes(foreign)} of no share")
    if broken := sum(one.state is AuditState.BROKEN for one in verdict.nodes):
        parts.append(f"something is not in force on {_count(broken, 'node')}")
    if unknown := sum(one.state is AuditState.UNKNOWN for one in verdict.nodes):
        parts.append(f"not certain of {_count(unknown, 'node')}")
    return "; ".join(parts) or "no node has GPUs that are shared by annotation"


def notes(verdict: AuditVerdict) -> list[str]:
    """What could not be told, in a sentence each."""
    found: dict[str, list[str]] = {}
    for one in verdict.nodes:
        if one.state is AuditState.UNKNOWN:
            found.setdefault(one.reason, []).append(one.name)
    told = [f"not certain of {_named(names)}: {reason}" for reason, names in found.items()]
    told += [f"{one.name}: {one.reason}" for one in verdict.nodes if one.state is AuditState.IN_FORCE and one.reason]
    named = [one.name for one in verdict.nodes if one.checked_at is None and one.state is not AuditState.UNKNOWN]
    if named:
        told.append(f"of {_named(named)} only the condition of the GPUNode is known, which names no container")
    return told


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _named(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"


def _processes(number: int) -> str:
    return f"{number} process" if number == 1 else f"{number} processes"
