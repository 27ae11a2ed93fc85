"""Neighbours: the relations of one pod → which nodes they rule out, and why.

Made anew for each pod that has any, as every pod that comes or goes anywhere may change the answer. Of what cannot be
known, the answer that rules out more is taken: where a term chooses namespaces by their labels, a pod to keep away from
may be in any of them, and one to be near to in none.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Mapping

from gpushare.fitness import relations, selectors, taints
from gpushare.fitness.crowd import Occupant
from gpushare.fitness.machine import Machine
from gpushare.fitness.relations import Relations, Spread, Term
from gpushare.fitness.shape import Shape

Rule = Callable[[Machine], str | None]
Volumes = Mapping[tuple[str, str], tuple[selectors.NodeTerm, ...]]
# Anti-affinity of those who are there -> on which nodes, and how many of them.
Repelling = Mapping[tuple[Term, ...], Mapping[str, int]]

_Place = tuple[str, str]  # a topology key and its value


def rules(
    asked: Relations,
    shape: Shape,
    *,
    machines: Mapping[str, Machine],
    occupants: Callable[[], Iterable[Occupant]],
    repelling: Repelling,
    itself: Occupant | None,
    volumes: Volumes,
) -> list[Rule]:
    """What there is to ask of each node; nothing for most pods.

    `occupants` are all but the pod itself, which may be one of `repelling`: `itself`. `volumes`: from where the volume
    of a bound claim can be reached.
    """
    found = [
        rule
        for claim in asked.claims
        if (terms := volumes.get((asked.namespace, claim))) is not None
        for rule in [_reach(claim, terms)]
    ]
    found += [_spread(one, asked, shape, machines, occupants) for one in asked.spread]
    if asked.affinity:
        found.append(_near(asked, machines, occupants()))
    if asked.anti_affinity:
        found.append(_far(asked, machines, occupants()))
    closed = _repelled(asked, machines, repelling, itself)
    if closed:
        found.append(lambda machine: _first(closed, machine, "a pod there keeps pods like it away"))
    return found


def _reach(claim: str, terms: tuple[selectors.NodeTerm, ...]) -> Rule:
    def judge(machine: Machine) -> str | None:
        if any(term.matches(machine.name, machine.labels) for term in terms):
            return None
        return f"cannot reach the volume of the pod's claim {claim}"

    return judge


def _near(asked: Relations, machines: Mapping[str, Machine], everyone: Iterable[Occupant]) -> Rule:
    """All terms' pods must be near; the first of a group that wants to be together may go anywhere."""

    def meant(namespace: str, labels: selectors.Labels) -> tuple[Term, ...]:
        fits = all(term.means(namespace, labels, when_vague=False) for term in asked.affinity)
        return asked.affinity if fits else ()

    places = _places_of(everyone, machines, meant)
    is_first = not places and all(
        term.means(asked.namespace, asked.labels, when_vague=False) for term in asked.affinity
    )

    def judge(machine: Machine) -> str | None:
        for term in asked.affinity:
            value = machine.labels.get(term.topology_key)
            if value is None:
                return f"has no label {term.topology_key}, which the pod's affinity to other pods is about"
            if (term.topology_key, value) not in places and not is_first:
                return f"has none of the pods in its {term.topology_key} that the pod's affinity wants near"
        return None

    return judge


def _far(asked: Relations, machines: Mapping[str, Machine], everyone: Iterable[Occupant]) -> Rule:
    def meant(namespace: str, labels: selectors.Labels) -> tuple[Term, ...]:
        return tuple(term for term in asked.anti_affinity if term.means(namespace, labels, when_vague=True))

    places = _places_of(everyone, machines, meant)
    return lambda machine: _first(places, machine, "the pod's anti-affinity keeps it away from a pod there")


def _repelled(
    asked: Relations, machines: Mapping[str, Machine], repelling: Repelling, itself: Occupant | None
) -> set[_Place]:
    places: set[_Place] = set()
    for terms, nodes in repelling.items():
        meant = [term for term in terms if term.means(asked.namespace, asked.labels, when_vague=True)]
        for name in nodes if meant else ():
            is_own = itself is not None and itself.node == name and itself.repels == terms
            if nodes[name] > is_own:
                places.update(_places(meant, machines.get(name)))
    return places


def _places_of(
    everyone: Iterable[Occupant],
    machines: Mapping[str, Machine],
    meant: Callable[[str, selectors.Labels], tuple[Term, ...]],
) -> set[_Place]:
    """Where those are whom these terms mean. Pods of one template have one answer; a node may have many of them."""
    nodes: dict[tuple[Term, ...], set[str]] = {}
    nodes_of: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    for one in everyone:
        key = one.namespace, one.labels
        there = nodes_of.get(key)
        if there is None:
            terms = meant(one.namespace, relations.labels_of(one.labels))
            there = nodes_of[key] = nodes.setdefault(terms, set())
        there.add(one.node)
    places: set[_Place] = set()
    for terms, names in nodes.items():
        for name in names:
            places.update(_places(terms, machines.get(name)))
    return places


def _places(terms: Iterable[Term], machine: Machine | None) -> Iterable[_Place]:
    for term in terms:
        if machine is not None and (value := machine.labels.get(term.topology_key)) is not None:
            yield term.topology_key, value


def _first(places: set[_Place], machine: Machine, why: str) -> str | None:
    for key, value in machine.labels.items():
        if (key, value) in places:
            return f"is in {key}={value}, and {why}"
    return None


def _spread(
    rule: Spread,
    asked: Relations,
    shape: Shape,
    machines: Mapping[str, Machine],
    occupants: Callable[[], Iterable[Occupant]],
) -> Rule:
    """The skew as it would be for the pod unpinned, and as it will be once it is pinned.

    A pin leaves one node that its selector allows, and so one domain to be even with: nothing would be uneven, which is
    not what the user wants. With `minDomains` above 1 it is the other way round: too few domains are left, and what is
    in the one is compared with 0.
    """
    keys = {one.topology_key for one in asked.spread}
    eligible = {
        name: machine.labels[rule.topology_key]
        for name, machine in machines.items()
        if keys <= machine.labels.keys()
        and (not rule.honors_affinity or shape.selects(name, machine.labels))
        and (not rule.honors_taints or taints.untolerated(_declared(machine), shape.tolerations) is None)
    }
    here: collections.Counter[str] = collections.Counter()
    matches: dict[tuple[str, ...], bool] = {}  # pods of one template have one answer
    for one in occupants() if not rule.selector.matches_all else ():
        if one.node in eligible and one.namespace == asked.namespace and not one.leaves:
            if one.labels not in matches:
                matches[one.labels] = rule.selector.matches(relations.labels_of(one.labels))
            here[one.node] += matches[one.labels]
    domains: collections.Counter[str] = collections.Counter(dict.fromkeys(eligible.values(), 0))
    for name, count in here.items():
        domains[eligible[name]] += count
    itself = int(rule.selector.matches(asked.labels))
    least = 0 if len(domains) < rule.min_domains else min(domains.values(), default=math.inf)

    def judge(machine: Machine) -> str | None:
        value = machine.labels.get(rule.topology_key)
        if value is None:
            return f"has no label {rule.topology_key}, over which the pod is to be spread"
        skew = domains[value] + itself - least
        if rule.honors_affinity and rule.min_domains > 1:
            skew = max(skew, here[machine.name] + itself)
        if skew <= rule.max_skew:
            return None
        return (
            f"is in {rule.topology_key}={value}, where another of the pods would be {skew:g} more than elsewhere; "
            f"their spread allows {rule.max_skew}"
        )

    return judge


def _declared(machine: Machine) -> Iterable[taints.Taint]:
    """Only those that are written in the Node: spread does not look at cordons."""
    return (one for one in machine.taints if not one.told)
