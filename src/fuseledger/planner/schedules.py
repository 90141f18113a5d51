"""The schedule search: tiles, splits and walks of one kernel, by descent from the least tiles.

Small tiles have the smallest footprint and the largest grid, so a nest that does not fit with the
least tiles fits with none. From there each step doubles one tile (or halves a reduced axis onto
the grid) as long as the objective improves. Results are memoised by structure: equal layers are
searched once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Literal

from fuseledger.clock.roofline import Roofline
from fuseledger.clock.textbook import declared_time
from fuseledger.clock.time import Time
from fuseledger.devices import Device
from fuseledger.graph.graph import Graph
from fuseledger.graph.structure import signature
from fuseledger.ledger.compiled import Figures, ScheduleKey, schedule_key, use_compiled
from fuseledger.ledger.declared import declared_price
from fuseledger.ledger.footprint import LOOP_POINTS
from fuseledger.ledger.kernel import AxisSchedule, Kernel, Schedule
from fuseledger.ledger.library_calls import Calls, Core
from fuseledger.ledger.nest import Nest, analyse
from fuseledger.ledger.online import online_variant
from fuseledger.ledger.price import Price, external_bytes
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.tiles import TileLimits

Objective = Literal["time", "bytes"]

EXTRA_WORK = 0.10
"""Work that a plan optimised for bytes may add by computing things again."""
POINTWISE_TILE = 1024
"""Elements a block of a kernel without contraction starts from: 4 warps × 8 elements."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best schedule found for a set of ops, in figures; None of it names an axis."""

    bytes: int
    launches: int
    time_us: float
    tiles: tuple[int | None, ...]
    """Tile of each axis in the order of `_axis_order`; None: not on the grid."""
    walks: int
    vetoes: tuple[tuple[str, str], ...]
    online: bool = False
    """Whether carried tensors are made online by rescaling."""
    not_owned: Price | None = None
    """Where carried tensors cannot be owned: the price of the least tiles, with its veto."""

    @property
    def usable(self) -> bool:
        """Whether no account vetoes it."""
        return not self.vetoes


@dataclass(slots=True)
class ScheduleSearch:
    """Finds and remembers the best schedule of each set of ops of one graph."""

    graph: Graph
    device: Device
    clock: Roofline
    objective: Objective = "time"
    memo: dict[object, Choice] = field(default_factory=dict[object, Choice])
    searched: int = 0
    evidence: dict[tuple[object, bool], dict[ScheduleKey, Figures]] = field(
        default_factory=dict[tuple[object, bool], dict[ScheduleKey, Figures]]
    )
    """What a compiler said: (structure of the ops, whether online) → schedule → figures."""

    def choose(self, positions: tuple[int, ...]) -> Choice:
        """The best schedule of the ops at `positions` (ascending), usable or with its vetoes."""
        key = positions
        found = self.memo.get(key)
        if found is None:
            key = signature(self.graph, positions)
            found = self.memo.get(key)
            if found is None:
                found = self.memo[key] = self._search(analyse(self.graph, positions))
                self.searched += 1
            self.memo[positions] = found
        return found

    def price(self, positions: tuple[int, ...]) -> Price:
        """The full price of the chosen schedule."""
        nest = analyse(self.graph, positions)
        choice = self.choose(positions)
        if nest.is_declared:
            return declared_price(nest)
        return self._combined(nest, choice)[0]

    def time(self, positions: tuple[int, ...], price: Price) -> Time:
        """Time of a priced kernel: the textbook clock for declared ops, else the roofline."""
        nest = analyse(self.graph, positions)
        return declared_time(nest, self.device) if nest.is_declared else self.clock.time(price)

    def kernel(self, positions: tuple[int, ...]) -> Kernel:
        """The kernel with its schedule written out."""
        nest, choice, price = (
            analyse(self.graph, positions),
            self.choose(positions),
            self.price(positions),
        )
        owned = frozenset[str]()
        variant = _variant(nest, choice)
        if price.walks == 1:
            owned = frozenset(name for axes in variant.carried.values() for name in axes)
        axes = tuple(
            (name, _treatment(variant, name, price.tiles.get(name), owned))
            for name, size in nest.sizes.items()
            if size > 1
        )
        schedule = Schedule(
            axes=axes,
            warps=price.warps,
            stages=price.stages,
            walks=price.walks,
            online=choice.online,
            combined=price.launches > 1,
        )
        return Kernel(ops=positions, schedule=schedule)

    def structure(self, positions: tuple[int, ...]) -> object:
        """Equal for sets of ops that differ in names alone."""
        return signature(self.graph, positions)

    def learn(self, positions: tuple[int, ...], found: Figures) -> None:
        """Take the compiler's word for the schedule chosen for these ops, and for equal ones.

        They are searched again when next asked for, with this schedule priced by it.
        """
        choice, price = self.choose(positions), self.price(positions)
        key = (self.structure(positions), choice.online)
        self.evidence.setdefault(key, {})[schedule_key(price, price.warps)] = found
        self.memo = {k: c for k, c in self.memo.items() if c is not choice and c.tiles}

    # -- the search ------------------------------------------------------------------------

    def _pricer(self, nest: Nest, *, online: bool = False) -> Pricer:
        known = (
            self.evidence.get((signature(nest.graph, nest.positions), online))
            if self.evidence
            else None
        )
        return Pricer(nest, self.device, known)

    def _search(self, nest: Nest) -> Choice:
        if nest.veto is not None:
            return Choice(0, 1, float("inf"), (), 1, (("legality", nest.veto),))
        if nest.is_declared:
            price = declared_price(nest)
            time_us = declared_time(nest, self.device).total_us
            return Choice(price.dram_bytes, price.launches, time_us, (), 1, ())
        parts = components(nest)
        if len(parts) > 1:
            return self._side_by_side(nest, parts)
        pricer = self._pricer(nest)
        limits = TileLimits(pricer)
        found = [(*self._descend(pricer, limits, 1), False)]
        not_owned: Price | None = None
        if nest.carried:
            least = pricer.price(limits.least())
            not_owned = least if least.vetoes else None
            found.append((*self._descend(pricer, limits, 2), False))
            online = online_variant(nest)
            if online is not None:
                found.append((*self._descend(self._pricer(online, online=True), limits, 1), True))
        _, price, is_online = min(found, key=lambda each: each[0])
        return Choice(
            price.dram_bytes,
            price.launches,
            self.clock.time(price).total_us,
            tuple(price.tiles.get(name) for name in nest.sizes),
            price.walks,
            self._vetoes(price),
            is_online,
            not_owned,
        )

    def _side_by_side(self, nest: Nest, parts: list[tuple[int, ...]]) -> Choice:
        """Ops that share inputs but no intermediate run as one grid, block ranges side by side."""
        choices = [self.choose(part) for part in parts]
        vetoes = tuple(v for choice in choices for v in choice.vetoes if v[0] != "parallelism")
        price = self._combined(nest, None)[0]
        return Choice(
            price.dram_bytes,
            price.launches,
            self.clock.time(price).total_us,
            (),
            1,
            vetoes + tuple(v for v in self._vetoes(price) if v not in vetoes),
        )

    def _combined(self, nest: Nest, choice: Choice | None) -> tuple[Price, Time]:
        parts = components(nest)
        if len(parts) > 1:
            prices = [self.price(part) for part in parts]
            merged = _merge(nest, parts, prices)
            known = self.evidence.get((signature(nest.graph, nest.positions), False), {})
            found = known.get(schedule_key(merged, merged.warps))
            if found is not None:
                use_compiled(merged, found, self.device.shared_memory_per_block_bytes)
            return merged, self.clock.time(merged)
        assert choice is not None
        tiles = {n: t for n, t in zip(nest.sizes, choice.tiles, strict=True) if t is not None}
        pricer = self._pricer(_variant(nest, choice), online=choice.online)
        price = pricer.price(tiles, walks=choice.walks)
        price.vetoes = self._vetoes(price)
        return price, self.clock.time(price)

    def _vetoes(self, price: Price) -> tuple[tuple[str, str], ...]:
        vetoes = price.vetoes
        sms = self.device.sm_count
        if self._short(price):
            vetoes += (("parallelism", f"a grid of {price.blocks} on {sms} SMs"),)
        if self._too_much_work(price):
            share = price.extra_flops / max(1.0, price.work_once)
            vetoes += (("epilogue", f"computes {share:.0%} of its work again"),)
        return vetoes

    def _short(self, price: Price) -> bool:
        """Whether the grid leaves SMs idle on a kernel that is worth more than a launch."""
        sms = self.device.sm_count
        stream = self.device.stream_gbs
        if sms is None or stream is None or price.blocks >= sms:
            return False
        small = self.device.launch_us("queued") * stream * 1e3
        return price.dram_bytes > small

    def _too_much_work(self, price: Price) -> bool:
        return self.objective == "bytes" and price.extra_flops > EXTRA_WORK * price.work_once

    def _key(self, price: Price) -> tuple[float, ...]:
        """Smaller is better: fits, fills the machine, adds little work; then the objective."""
        sms = self.device.sm_count or 1
        shortage = sms / price.blocks if self._short(price) else 0.0
        excess = price.extra_flops if self._too_much_work(price) else 0.0
        time_us = self.clock.time(price).total_us
        if self.objective == "bytes":
            return (len(price.vetoes), shortage, excess, price.dram_bytes, time_us)
        return (len(price.vetoes), 0.0, 0.0, time_us, price.dram_bytes)

    def _descend(
        self, pricer: Pricer, limits: TileLimits, walks: int
    ) -> tuple[tuple[float, ...], Price]:
        nest = pricer.nest
        tiles = limits.least()
        if not pricer.contractions:
            _widen(nest, tiles, (self.device.sm_count or 1) * 4)
        best = pricer.price(tiles, walks=walks)
        key = self._key(best)
        improved = True
        while improved:
            improved = False
            step = best.tiles
            for name in nest.open_axes:
                tile, size = step[name], nest.sizes[name]
                for other in (tile * 2, tile // 2 if name in nest.split_axes else 0):
                    if not min(other, size) >= 1 or min(other, size) == tile:
                        continue
                    if other < tile and not limits.allows({**step, name: other}):
                        continue
                    price = pricer.price({**step, name: min(other, size)}, walks=walks)
                    found = self._key(price)
                    if found < key:
                        best, key, improved = price, found, True
        return key, best


def _widen(nest: Nest, tiles: dict[str, int], blocks: int) -> None:
    """Give a pointwise block enough elements to be worth launching, innermost axes first."""
    points = max(op.points for op in nest.ops.values())
    while True:
        grid = prod(-(-nest.sizes[name] // tile) for name, tile in tiles.items())
        if points >= POINTWISE_TILE * grid:
            return
        growing = [
            n
            for n in reversed(nest.open_axes)
            if tiles[n] < nest.sizes[n] and n not in nest.split_axes
        ]
        if not growing or grid < 2 * blocks:
            return
        name = growing[0]
        tiles[name] = min(nest.sizes[name], tiles[name] * 2)


def _merge(nest: Nest, parts: list[tuple[int, ...]], prices: list[Price]) -> Price:
    """Prices of components side by side: shared inputs are read once."""
    shared = sum(p.read_bytes for p in prices) - sum(external_bytes(nest).values())
    again = sum(nest.ops[i].flops + nest.ops[i].special_ops for part in parts for i in part)
    again -= sum(op.flops + op.special_ops for op in nest.ops.values())
    first = prices[0]
    merged = Price(
        tiles={n: t for p in prices for n, t in p.tiles.items()},
        walks=max(p.walks for p in prices),
        blocks=sum(p.blocks for p in prices),
        read_bytes=sum(p.read_bytes for p in prices) - max(0, shared),
        write_bytes=sum(nest.graph.tensors[name].bytes for name in nest.outputs),
        partial_bytes=sum(p.partial_bytes for p in prices),
        parts=max(p.parts for p in prices),
        l2_bytes=sum(p.l2_bytes for p in prices),
        special_ops=sum(p.special_ops for p in prices),
        extra_flops=sum(p.extra_flops for p in prices) + again,
        held=max(prices, key=lambda p: p.register_bytes).held,
        staged_bytes=max(p.staged_bytes for p in prices),
        shared_bytes=max(p.shared_bytes for p in prices),
        register_bytes=max(p.register_bytes for p in prices),
        stages=first.stages,
        warps=max(p.warps for p in prices),
        registers=max(p.registers for p in prices),
        spill_bytes=max(p.spill_bytes for p in prices),
        launches=1 + sum(p.launches - 1 for p in prices),
        blocks_per_sm=min(p.blocks_per_sm for p in prices),
        calls=_calls_side_by_side(prices),
    )
    for price in prices:
        for key, flops in price.flops.items():
            merged.flops[key] = merged.flops.get(key, 0.0) + flops
    return merged


def _calls_side_by_side(prices: list[Price]) -> Calls:
    """Kernels that run as one grid are generated; the class is the first one's that has one."""
    core: Core | None = next((p.calls.core for p in prices if p.calls.core), None)
    return Calls(core, None, "a library computes one product a call" if core else "")


def _variant(nest: Nest, choice: Choice) -> Nest:
    """The nest that the choice was priced on."""
    variant = online_variant(nest) if choice.online else nest
    assert variant is not None  # it was found when the choice was made
    return variant


def _treatment(nest: Nest, name: str, tile: int | None, owned: frozenset[str]) -> AxisSchedule:
    size = nest.sizes[name]
    if tile is None:
        if name in owned:
            return AxisSchedule("whole", size)
    elif name not in nest.split_axes:
        return AxisSchedule("grid", tile)
    elif tile < size:
        return AxisSchedule("split", -(-size // tile))
    return AxisSchedule("loop", min(size, LOOP_POINTS))


def components(nest: Nest) -> list[tuple[int, ...]]:
    """The parts of a kernel that run side by side, as block ranges of one grid.

    Sinks that walk nested sets of axes share a part: their tiles are one grid. Sinks with axes of
    their own on both sides (Q and K projections of one input) get a part each, and what they
    share inside the kernel is computed in both.
    """
    if nest.is_declared:
        return [nest.positions]
    before: dict[int, list[int]] = {}
    feeds: set[int] = set()
    for edge in nest.edges:
        before.setdefault(edge.consumer, []).append(edge.producer)
        feeds.add(edge.producer)
    parts: list[tuple[set[str], list[int]]] = []
    for i in reversed(nest.positions):
        if i in feeds:
            continue
        axes = {a.name for a in nest.ops[i].axes if a.size > 1}
        for known, sinks in parts:
            if axes <= known or known <= axes:
                known |= axes
                sinks.append(i)
                break
        else:
            parts.append((axes, [i]))
    if len(parts) == 1:
        return [nest.positions]
    return [_cone(sinks, before) for _, sinks in parts]


def _cone(sinks: list[int], before: dict[int, list[int]]) -> tuple[int, ...]:
    found: set[int] = set()
    pending = list(sinks)
    while pending:
        i = pending.pop()
        if i not in found:
            found.add(i)
            pending.extend(before.get(i, ()))
    return tuple(sorted(found))
