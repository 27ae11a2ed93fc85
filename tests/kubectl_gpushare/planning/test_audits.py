"""The plugin reads exactly what an agent writes: the two share no code."""

from __future__ import annotations

import json

from deviceplugin.arbiter.pages import LimitsRecord
from deviceplugin.audit import node_audit
from kubectl_gpushare.planning.auditing import (
    FOREIGN,
    MEMORY_LIMITED,
    UNLIMITED,
    Amounts,
    ReportedProcess,
    ReportedShare,
    parse_audit,
)
from tests import builders

GIB = 2**30


def test_agents_audit_is_read_completely() -> None:
    gpu = builders.gpu()
    process = node_audit.SeenProcess(gpu.uuid, 7, 1, "python3", None, None, with_library=False)
    held = node_audit.AuditedShare(
        "ml",
        "p",
        ("a", "b"),
        gpu.uuid,
        50,
        80,
        8 * GIB,
        LimitsRecord(b"", 8 * GIB, 50, 80, GIB, 0),
        charged_bytes=2 * GIB,
        processes=2,
        with_library=1,
        in_force=False,
        reason="why",
        memory_enforcement=node_audit.MemoryEnforcement.DRIVER,
        driver_bytes=9 * GIB,
    )
    idle = node_audit.AuditedShare("ml", "q", ("a",), gpu.uuid, 0, 100, GIB)
    written = node_audit.NodeAudit(
        (gpu,),
        (node_audit.AuditedProcess(process, node_audit.LimitState.FOREIGN, reason="nobody's"),),
        (held, idle),
        (node_audit.Problem("one", blind=False), node_audit.Problem("two")),
    )
    audit = parse_audit(json.dumps(node_audit.to_json(written, node_name="n", checked_at=5.25)))
    assert (audit.node, audit.checked_at, audit.problem, audit.blind) == ("n", 5.25, "one; two", True)
    assert audit.processes == (ReportedProcess(gpu.uuid, 7, "python3", "", "", "", None, 0, FOREIGN, "nobody's"),)
    amounts = Amounts(50, 80, 8 * GIB)
    assert audit.shares == (
        ReportedShare(
            "ml", "p", ("a", "b"), gpu.uuid, amounts, amounts, 2 * GIB, GIB, 2, 1, False, "why", "driver", 9 * GIB
        ),
        ReportedShare("ml", "q", ("a",), gpu.uuid, Amounts(0, 100, GIB), None, 0, 0, 0, 0, True, "", "library"),
    )


def test_state_names_equal_the_agents() -> None:
    states = (node_audit.LimitState.UNLIMITED, node_audit.LimitState.FOREIGN, node_audit.LimitState.MEMORY_LIMITED)
    assert states == (UNLIMITED, FOREIGN, MEMORY_LIMITED)
