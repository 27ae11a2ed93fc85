"""All rules, in the order in which they are printed, and the function that asks them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from gpushare.preflight import cluster, devices, health, images, nodes, sharers
from gpushare.preflight.facts import Facts, Unread
from gpushare.preflight.finding import Finding, Phase, Rule, Severity

RULES: Final[tuple[Rule, ...]] = (
    *cluster.RULES,
    *images.RULES,
    *nodes.RULES,
    *devices.RULES,
    *sharers.RULES,
    *health.RULES,
)


def check(facts: Facts, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """What each rule says; at least one finding each, so that nothing is silent."""
    asked = {Phase.ANY, Phase.BEFORE if facts.installing else Phase.AFTER}
    if not facts.installing and health.is_installed(facts):
        asked.add(Phase.INSTALLED)
    return tuple(finding for rule in rules if rule.phase in asked for finding in _ask(rule, facts))


def _ask(rule: Rule, facts: Facts) -> Iterator[Finding]:
    said = False
    try:
        for finding in rule.judge(facts):
            said = True
            yield dataclasses.replace(finding, rule=rule.id, why=rule.why)
    except Unread as error:
        yield Finding(Severity.UNKNOWN, f"not known: {error}", rule=rule.id, why=rule.why)
        return
    if not said:
        yield Finding(Severity.OK, rule.wanted, rule=rule.id, why=rule.why)
