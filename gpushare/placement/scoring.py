"""Scoring: the cost of a pod on each node, cached by request key; only changed nodes are scored again.

A cost of `fragmentation` has two parts, stored apart because they become outdated at different times: the worth that
the node would lose, and the number of GPUs in whole sets that would be broken, whose prices change with the free
capacity.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpushare import policies
from gpushare.mix import Mix
from gpushare.placement import eligibility, gpu_selection, pricing, together
from gpushare.placement.eligibility import Needs
from gpushare.placement.grid import ABSENT, Floats, Grid, Ints
from gpushare.placement.pricing import Prices
from gpushare.placement.request_key import DemandKey, RequestKey
from gpushare.placement.worth import Worth
from gpushare.request import Constraints

_GRAIN = 0.01  # GPUs: smaller differences in worth are noise, so the fuller node wins
_FULLER = 1e-4
_SURPLUS = 0.8  # part of its worth that a plentiful kind loses if another is scarce; the rest is for pods not yet known
# The cost, in GPUs, of the rarest kind while the mix is unknown, so that pods that name no kind leave it to those that
# do. It must fade soon, because it keeps pods off the small nodes that rare GPUs are often in.
_RARITY = 0.03
# The cost, in GPUs, while the mix is unknown, of using part of an empty node of the largest size; it falls with the
# square of the size. Less than half of this has no effect, twice as much cancels _RARITY.
_UNUSED_NODE = 0.008
_SHAPES = 1024  # request keys with cached costs
_CACHED_BYTES = 256 << 20  # of the costs of all request keys
_MIN_PRICE = 1e-4  # GPUs: a lower price changes no choice

_Counts = npt.NDArray[np.int16]


@dataclasses.dataclass(slots=True)
class Costs:
    """The costs of one request key on each slot [n], as of `clock`."""

    needs: tuple[Needs, ...]
    size: Floats  # [kind] GPUs
    lost: Floats  # worth that the node would lose, without sets; infinite where the pod does not fit
    broken: _Counts  # [set, n] GPUs in whole sets that would be broken, for sets that have had a price
    cost: Floats  # the sum of both at the prices of `priced`
    clock: int = -1
    generation: int = -1
    priced: Floats | None = None


@dataclasses.dataclass(slots=True)
class _Now:
    """The current worth of every node [n], the same for all keys."""

    gpu_worth: Floats  # [g, n] worth of each GPU
    node_worth: Floats  # the sum by node
    usable: Floats  # the part of it that free CPU and memory can feed
    free: Floats  # GPUs
    unused: Floats  # GPUs of nodes with no used one, else 0
    counts: _Counts  # [row of the sets' counts, n] GPUs
    copies: Floats  # [set, n]
    clock: int = -1
    generation: int = -1


class Scoring:
    """The costs of requests on the nodes of one grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._rarity = np.zeros(len(grid.kinds))  # [kind] GPUs
        self._is_fixed = False
        self._generation = 0  # a new generation invalidates all costs
        self.learn(Worth(Mix(), grid.kinds))
        none = np.zeros(0)
        self._now = _Now(np.zeros((0, 0)), none, none, none, none, np.zeros((0, 0), np.int16), np.zeros((0, 0)))
        self._needs: dict[tuple[DemandKey, Constraints], Needs] = {}
        self._costs: collections.OrderedDict[RequestKey, Costs] = collections.OrderedDict()

    def study(self, mix: Mix) -> Worth:
        """Return the tables of a mix; changes nothing. A mix that names no GPUs or no pods is one of this grid.

        Count all GPUs, not only those that take shares now, because the tables follow only the former.
        """
        grid = self._grid
        node_gpus = tuple(grid.node_gpus)  # may grow meanwhile, in another thread
        if not mix.gpus or not mix.weights:
            mix = dataclasses.replace(mix, gpus=sum(grid.gpus_of_kinds), largest=max(node_gpus))
        return Worth(mix, tuple(grid.kinds[: len(node_gpus)]), most_linked=grid.most_linked, node_gpus=node_gpus)

    def learn(self, worth: Worth) -> None:
        """Price by these tables from now on."""
        self.worth = worth
        self._prices = pricing.free(self.worth)
        self._priced_at = -1
        self._scarce = np.zeros(0, np.int64)  # sets that have had a price since the last mix
        self._generation += 1

    def fix(self, prices: Prices) -> None:
        """Use these prices from now on, regardless of the grid."""
        self._is_fixed = True
        self._refresh()
        self._prices = prices
        self._scarce = np.flatnonzero(prices.sets)
        self._generation += 1

    def costs(self, shape: RequestKey) -> tuple[tuple[Needs, ...], Floats]:
        """Return `(needs, costs [n])` over the current grid; infinite where the pod does not fit."""
        if shape.policy == policies.DEFAULT:
            self._refresh()
        grid = self._grid
        kept = self._kept(shape)
        slots = self._stale(kept.clock, kept.generation, len(kept.cost))
        if slots is None:
            length = grid.columns.kind.shape[1]
            kept.lost, kept.cost = np.full(length, np.inf), np.full(length, np.inf)
            kept.broken = np.zeros((len(self.worth.sets), length), np.int16)
        if slots is None or len(slots):
            self._score(shape, kept, slots)
        if shape.policy == policies.DEFAULT:
            self._price(kept, None if kept.priced is not self._prices.sets else slots)
            kinds, rarity = grid.now().node_kind, self._rarity * kept.size
            total = _by_kind(self._prices)[kinds] * kept.cost[: grid.width] + rarity[kinds] + self._unused_nodes(kept)
        else:
            total = kept.lost[: grid.width]
        kept.clock, kept.generation = grid.clock, self._generation
        return kept.needs, total

    @property
    def mix(self) -> Mix:
        """The mix that was learned last."""
        return self.worth.mix

    @property
    def prices(self) -> Prices:
        """The current prices, which change as nodes do."""
        self._refresh()
        return self._prices

    def values(self, slots: Ints, prices: Prices) -> Floats:
        """Return [n] the worth of the free capacity of these nodes at these prices, in GPUs; `costs` are losses of
        it.
        """
        self._update_worth()
        now, kinds = self._now, self._grid.columns.node_kind[slots]
        sets = (prices.sets * self.worth.sets.gpus) @ now.copies[:, slots]
        values: Floats = _by_kind(prices)[kinds] * (now.usable[slots] + sets)
        return values

    def needs(self, shape: RequestKey) -> tuple[Needs, ...]:
        """Return the needs of each part for the known kinds."""
        if shape.policy == policies.DEFAULT and self._is_outgrown():
            self.learn(self.study(self.mix))
        return tuple(self._needs_of(part, shape.constraints) for part in shape.parts)

    def _needs_of(self, part: DemandKey, constraints: Constraints) -> Needs:
        """Return the needs of a part; cached, as many keys differ only in CPU, memory or policy."""
        kinds, facts = self._grid.kinds, self._grid.facts
        known = self._needs.get((part, constraints))
        if known is None or len(known.will_do) != len(kinds) or len(known.passes) != len(facts):
            if len(self._needs) >= _SHAPES:
                self._needs.clear()
            known = self._needs[part, constraints] = eligibility.needs_of(part, constraints, kinds, facts)
        return known

    def _kept(self, shape: RequestKey) -> Costs:
        kinds = len(self._grid.kinds)
        kept = self._costs.get(shape)
        if kept is None or len(kept.size) != kinds:
            needs = self.needs(shape)
            size = np.zeros(kinds)
            for part in needs:
                size += part.gpus * np.maximum(part.request_percent, np.minimum(part.memory_percent, 100)) / 100
            none = np.zeros(0)
            kept = self._costs[shape] = Costs(needs, size, none, np.zeros((0, 0), np.int16), none)
            length = self._grid.columns.kind.shape[1]
            most = max(1, min(_SHAPES, _CACHED_BYTES // (length * (16 + 2 * len(self.worth.sets)))))
            while len(self._costs) > most:  # several, if the grid has grown
                self._costs.popitem(last=False)
        elif any(len(part.passes) != len(self._grid.facts) for part in kept.needs):
            kept.needs = self.needs(shape)
        self._costs.move_to_end(shape)
        return kept

    def _score(self, shape: RequestKey, kept: Costs, slots: Ints | None) -> None:
        """Write `lost` and `broken` of these slots; None: all."""
        if slots is not None:
            kept.lost[slots] = np.inf
            kept.broken[:, slots] = 0
        else:
            slots = self._promising(shape, kept.needs)
        if slots is not None and not len(slots):
            return
        if len(kept.needs) == 1:
            self._score_one(shape, kept, slots)
            return
        selected = gpu_selection.select(shape, kept.needs, self.worth, self._grid, slots)
        slots, nodes = selected.slots, selected.nodes
        if shape.policy != policies.DEFAULT:
            kept.lost[slots] = selected.cost
            return
        gpus = selected.of_left(self.worth.of_gpus).sum(0)
        after = self.worth.usable(gpus, nodes.cpu, nodes.host, nodes.node_kind)
        kept.lost[slots] = self._now.usable[slots] - after + selected.apart
        if not len(self._scarce):
            return
        sets = self.worth.sets
        in_groups = selected.of_left(lambda of: sets.in_groups(of.compute_percent, of.memory_percent, of.live))
        counts = sets.counts(in_groups, nodes.layout, self._grid.layouts)
        self._break(kept, slots, counts, nodes.cpu, nodes.host)

    def _promising(self, shape: RequestKey, needs: Sequence[Needs]) -> Ints | None:
        """Return the slots with enough CPU, memory and GPUs with enough compute for each part; None: all, if most."""
        columns = self._grid.now()
        fits = eligibility.host_fits(shape, columns)
        for part in needs:
            fits &= (columns.compute >= part.request_percent).sum(0, dtype=np.uint16) >= part.gpus
        slots = np.flatnonzero(fits)
        return slots if 2 * len(slots) < len(fits) else None

    def _score_one(self, shape: RequestKey, kept: Costs, slots: Ints | None) -> None:
        """Do the same for a key with one part, without computing what is left; this is the hot path."""
        grid, part = self._grid, kept.needs[0]
        everywhere = slots is None
        states = gpus = None
        if gpu_selection.is_like_its_state(shape, alone=True):
            states = grid.states() if grid.has_fewer_states(grid.width if slots is None else len(slots)) else None
        if slots is None:
            slots, columns = np.arange(grid.width), grid.now()
        else:
            columns = grid.columns.at(slots) if states is None else grid.columns.hosts_at(slots)
        if states is None and shape.policy == policies.DEFAULT:
            gpus = self._now.gpu_worth[:, : grid.width] if everywhere else self._now.gpu_worth.take(slots, 1)
        costs = gpu_selection.costs_of_gpus(
            columns, slots, part, shape, self.worth, grid, states=states, alone=True, gpus=gpus
        )
        fits = eligibility.host_fits(shape, columns)
        apart: Floats | float = 0.0
        chosen: together.GpuChoice | None = None
        if part.gpus > 1:
            fits &= np.isfinite(costs).sum(0) >= part.gpus
            at = np.flatnonzero(fits)
            those = costs if len(at) == len(slots) else costs[:, at]
            chosen = together.choose(those, columns.layout[at], grid.layouts, part.gpus)
            taken, apart = np.full(len(slots), np.inf), np.zeros(len(slots))
            taken[at], apart[at] = chosen.costs, chosen.apart
        else:
            taken = costs.min(0)
            fits &= taken < np.inf
        if shape.policy != policies.DEFAULT:
            kept.lost[slots] = np.where(fits, taken + apart, np.inf)
            return
        cpu, host = columns.cpu - shape.host.cpu_milli, columns.host - shape.host.memory_bytes
        after = self.worth.usable(
            self._now.node_worth[slots] - np.where(fits, taken, 0.0), cpu, host, columns.node_kind
        )
        kept.lost[slots] = np.where(fits, self._now.usable[slots] - after + apart, np.inf)
        if len(self._scarce):
            copies = self._now.copies[:, : grid.width] if everywhere else self._now.copies.take(slots, 1)
            whole = np.flatnonzero(fits & (copies[self._scarce].max(0) > 0))
            if chosen is None:
                rows = costs[:, whole].argmin(0)[np.newaxis]
            else:
                rows = chosen.rows[:, np.searchsorted(np.flatnonzero(fits), whole)]
            counts = self._left(part, rows, grid, slots[whole])
            self._break(kept, slots[whole], counts, cpu[whole], host[whole])

    def _left(self, part: Needs, rows: Ints, grid: Grid, slots: Ints) -> Ints:
        """Return [row of the sets' counts, n] how many GPUs are left if those in these rows [gpus, n] take the part."""
        sets, columns = self.worth.sets, grid.columns
        at = (rows, slots)
        compute, memory, live = columns.compute_percent[at], columns.memory_percent[at], columns.live[at]
        before = sets.in_groups(compute, memory, live)
        compute = np.maximum(compute - part.request_percent, 0)
        memory = np.maximum(memory - part.memory_percent[live], 0)
        after = sets.in_groups(compute, memory, live)
        counts = self._now.counts[:, slots].astype(np.int64)
        counts[: len(sets.groups)] -= (before & ~after).sum(1)
        if sets.rows > len(sets.groups):
            in_groups = sets.in_groups(
                columns.compute_percent[:, slots], columns.memory_percent[:, slots], columns.live[:, slots]
            )
            in_groups[:, rows, np.arange(len(slots))] = after
            sets.count_linked(counts, in_groups, columns.layout[slots], grid.layouts)
        return counts

    def _break(self, kept: Costs, slots: Ints, counts: Ints, cpu: Floats, host: Floats) -> None:
        scarce, sets = self._scarce, self.worth.sets
        broken = self._now.copies[np.ix_(scarce, slots)] - sets.copies(counts, cpu, host, scarce)
        kept.broken[np.ix_(scarce, slots)] = broken * sets.gpus[scarce, np.newaxis]

    def _price(self, kept: Costs, slots: Ints | None) -> None:
        """Write `cost` of these slots; None: all."""
        prices = self._prices.sets
        of = slice(self._grid.width) if slots is None else slots
        lost = kept.lost[of]
        scarce = np.flatnonzero(prices)
        if len(scarce):
            lost = lost + prices[scarce] @ kept.broken[scarce][:, of]
        kept.cost[of] = np.floor(lost / _GRAIN + 0.5) * _GRAIN + _FULLER * self._now.free[of]
        kept.priced = prices

    def _stale(self, clock: int, generation: int, length: int) -> Ints | None:
        """Return the slots that have changed since; None if all must be scored."""
        grid = self._grid
        if generation != self._generation or length < grid.columns.kind.shape[1]:
            return None
        slots = np.flatnonzero(grid.changed[: grid.width] > clock)
        return None if len(slots) > grid.width // 2 else slots

    def _refresh(self) -> None:
        """Update worth and prices to the grid."""
        grid = self._grid
        if self._is_outgrown():
            self.learn(self.study(self.mix))
        self._update_worth()
        if not self._is_fixed and grid.clock != self._priced_at:
            self._priced_at = grid.clock
            width = grid.width
            rarity, gpus = _RARITY * self.worth.ignorance, np.array(grid.gpus_of_kinds, np.float64)
            self._rarity = (rarity > _MIN_PRICE) * rarity * (1 - gpus / max(1.0, gpus.sum()))
            new = pricing.prices(
                self.worth,
                grid.columns.node_kind[:width],
                self._now.node_worth[:width],
                self._now.copies[:, :width],
            )
            if np.array_equal(new.sets, self._prices.sets):
                new = dataclasses.replace(new, sets=self._prices.sets)  # the same object: nothing to price again
            is_scarce = new.sets != 0
            is_scarce[self._scarce] = True
            if is_scarce.sum() > len(self._scarce):
                self._scarce = np.flatnonzero(is_scarce)
                self._generation += 1
                self._now.generation = self._generation  # only cached costs are outdated
            self._prices = new

    def _unused_nodes(self, kept: Costs) -> Floats | float:
        """Return [n] the cost of using an empty node that a pod might need as a whole."""
        price = _UNUSED_NODE * self.worth.ignorance
        if price < _MIN_PRICE:
            return 0.0
        unused = self._now.unused[: self._grid.width]
        is_part = unused > sum(part.gpus for part in kept.needs)
        costs: Floats = price * (is_part * (unused - 1) / max(1, max(self._grid.node_gpus) - 1)) ** 2
        return costs

    def _is_outgrown(self) -> bool:
        """Whether the worth must follow the grid's kinds of GPU, link groups or sizes of nodes."""
        worth, grid = self.worth, self._grid
        if self._is_fixed:
            return False
        return worth.node_gpus != tuple(grid.node_gpus) or worth.most_linked < grid.most_linked

    def _update_worth(self) -> None:
        """Update `_now` to the grid."""
        grid, now, worth = self._grid, self._now, self.worth
        height, length = grid.columns.kind.shape
        slots = self._stale(now.clock, now.generation, len(now.node_worth)) if len(now.gpu_worth) == height else None
        if slots is None:
            now.gpu_worth = np.zeros((height, length))
            now.node_worth, now.usable, now.free, now.unused = np.zeros((4, length))
            now.counts = np.zeros((worth.sets.rows, length), np.int16)
            now.copies = np.zeros((len(worth.sets), length))
            slots = np.arange(grid.width)
        if len(slots):
            columns = grid.columns.at(slots)
            now.gpu_worth[:, slots] = worth.of_gpus(columns)
            now.node_worth[slots] = now.gpu_worth[:, slots].sum(0)
            now.usable[slots] = worth.usable(now.node_worth[slots], columns.cpu, columns.host, columns.node_kind)
            gpus = (columns.live != ABSENT).sum(0)
            now.unused[slots] = np.where(columns.least_percent.sum(0) == 100 * gpus, gpus, 0)
            now.free[slots] = (columns.compute_percent.sum(0) + columns.memory_percent.sum(0)) / 200
            in_groups = worth.sets.in_groups(columns.compute_percent, columns.memory_percent, columns.live)
            counts = worth.sets.counts(in_groups, columns.layout, grid.layouts)
            now.counts[:, slots] = counts
            now.copies[:, slots] = worth.sets.copies(counts, columns.cpu, columns.host, np.arange(len(worth.sets)))
        now.clock, now.generation = grid.clock, self._generation


def _by_kind(prices: Prices) -> Floats:
    """Return [kind] the factor of its worth: 1 for the most expensive kind; plentiful ones are worth less."""
    factors: Floats = 1 - _SURPLUS * (prices.kinds.max() - prices.kinds)
    return factors
