"""All rules, in the order in which they are printed, and the function that runs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from gpushare.preflight import cluster_rules, devices, health_rules, images, node_rules, sharers
from gpushare.preflight.facts_of_cluster import ClusterFacts, Unread
from gpushare.preflight.finding import Finding, Rule, RulePhase, Severity

RULES: Final[tuple[Rule, ...]] = (
    *cluster_rules.RULES,
    *images.RULES,
    *node_rules.RULES,
    *devices.RULES,
    *sharers.RULES,
    *health_rules.RULES,
)


def check(facts: ClusterFacts, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """Run the rules. Each yields at least one finding, so that no rule is silent."""
    asked = {RulePhase.ANY, RulePhase.BEFORE if facts.installing else RulePhase.AFTER}
    if not facts.installing and health_rules.is_installed(facts):
        asked.add(RulePhase.INSTALLED)
    return tuple(finding for rule in rules if rule.phase in asked for finding in _run(rule, facts))


def _run(rule: Rule, facts: ClusterFacts) -> Iterator[Finding]:
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
