"""Preflight: checks whether a cluster meets gpushare's preconditions, from facts that the caller has gathered.

facts_of_cluster  the objects of a cluster, why some could not be read, and what the installation's manifests say
finding           one result of a rule, with its remedy; a rule; versions
cluster_rules     rules about the cluster as a whole, and images
node_rules        rules about nodes
devices           rules about a node's GPUs
software_rules    rules about other GPU software
health_rules      rules about an installed gpushare

Facts in, findings out: `kubectl gpushare check` and `install.sh` gather and print.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from gpushare.preflight import cluster_rules, devices, health_rules, node_rules, software_rules
from gpushare.preflight.facts_of_cluster import ClusterFacts, Unread
from gpushare.preflight.finding import Finding, Rule, RulePhase, Severity

RULES: Final[tuple[Rule, ...]] = (  # in the order in which findings are printed
    *cluster_rules.RULES,
    *node_rules.RULES,
    *devices.RULES,
    *software_rules.RULES,
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
