"""An agent's audit, as `audit` reads, evaluates and prints it."""

from __future__ import annotations

import contextlib
import io

from kubectl_gpushare import options
from kubectl_gpushare.commands import audit
from kubectl_gpushare.planning import auditing
from kubectl_gpushare.planning.auditing import parse_audit
from tests.kubectl_gpushare import sample

_OUTPUTS = ("", "wide", "json", "yaml", "csv", "name")


def run(data: bytes) -> None:
    try:
        report = parse_audit(data.decode("utf-8", "replace"))
    except ValueError as error:
        assert str(error)
        return
    nodes = sample.nodes()
    verdict = auditing.check(nodes, {nodes[0].name: report}, ready=frozenset({nodes[0].name}))
    chosen = options.Options(output=_OUTPUTS[len(data) % len(_OUTPUTS)])
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        audit.print_verdict(verdict, nodes, (), chosen)
    for line in (*out.getvalue().splitlines(), *err.getvalue().splitlines()):
        assert line.isprintable() or chosen.output == "csv", repr(line)
