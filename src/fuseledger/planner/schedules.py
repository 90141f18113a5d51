"""The schedule search: tiles, splits and walks of one kernel, judged by the accounts.

`descent.py` walks the tiles; here is what is better, which variants of a nest there are, and the
memo: results are kept by structure, so that equal layers are searched once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from fuseledger.clock.roofline import Roofline
from fuseledger.clock.textbook import declared_time
from fuseledger.clock.time import Time
from fuseledger.devices import Device
from fuseledger.graph.graph import Graph
from fuseledger.ledger.declared import declared_price
from fuseledger.ledger.footprint import LOOP_POINTS
from fuseledger.ledger.kernel import AxisSchedule, Kernel, Schedule
from fuseledger.ledger.nest import Nest, analyse
from fuseledger.ledger.online import online_variant
from fuseledger.ledger.price import Price, external_bytes
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.tiles import TileLimits
from fuseledger.planner.descent import Descent, Key

Objective = Literal["time", "bytes"]

EXTRA_WORK = 0.10
"""Work that a plan optimised for bytes may add by computing things again."""
RESOLUTION = 0.002
"""Share of the least possible time within which the search for a faster schedule ends."""
TRADE = 1e-4
"""Where bytes are minimised: bytes that a plan may move more, as a share of what could be streamed
in the time that they save. No plan is twice as slow for the sake of a few kilobytes."""
SPARE_TIME = 0.02
"""The same where bytes are minimised, and are least, and time only breaks ties."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best schedule found for a set of ops, in figures; None of it names an axis."""

    cost: float
    """What the partition minimises."""
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

    def choose(self, positions: tuple[int, ...]) -> Choice:
        """The best schedule of the ops at `positions` (ascending), usable or with its vetoes."""
        key = positions
        found = self.memo.get(key)
        if found is None:
            nest = analyse(self.graph, positions)
            key = signature(nest)
            found = self.memo.get(key)
            if found is None:
                found = self.memo[key] = self._search(nest)
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
        if price.walks == 1:
            carried = _variant(nest, choice).carried
            owned = frozenset(name for axes in carried.values() for name in axes)
        axes = tuple(
            (name, _treatment(nest, name, price.tiles.get(name), owned))
            for name, size in nest.sizes.items()
            if size > 1
        )
        schedule = Schedule(
            axes=axes,
            warps=price.warps,
            stages=price.stages,
            walks=price.walks,
            online=choice.online,
        )
        return Kernel(ops=positions, schedule=schedule)

    # -- the search ------------------------------------------------------------------------

    def _search(self, nest: Nest) -> Choice:
        if nest.veto is not None:
            never = float("inf")
            return Choice(never, 0, 1, never, (), 1, (("legality", nest.veto),))
        if nest.is_declared:
            price = declared_price(nest)
            time_us = declared_time(nest, self.device).total_us
            cost = self._cost(price.dram_bytes, time_us)
            return Choice(cost, price.dram_bytes, price.launches, time_us, (), 1, ())
        parts = components(nest)
        if len(parts) > 1:
            return self._side_by_side(nest, parts)
        pricer = Pricer(nest, self.device)
        limits = TileLimits(pricer)
        found = [(*self._descend(pricer, limits, 1), False)]
        not_owned: Price | None = None
        if nest.carried:
            least = pricer.price(limits.least())
            not_owned = least if least.vetoes else None
            found.append((*self._descend(pricer, limits, 2), False))
            online = online_variant(nest)
            if online is not None:
                found.append((*self._descend(Pricer(online, self.device), limits, 1), True))
        _, price, is_online = min(found, key=lambda each: each[0])
        time_us = self.clock.time(price).total_us
        return Choice(
            self._cost(price.dram_bytes, time_us),
            price.dram_bytes,
            price.launches,
            time_us,
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
        price, time = self._combined(nest, None)
        return Choice(
            self._cost(price.dram_bytes, time.total_us),
            price.dram_bytes,
            price.launches,
            time.total_us,
            (),
            1,
            vetoes + tuple(v for v in self._vetoes(price) if v not in vetoes),
        )

    def _combined(self, nest: Nest, choice: Choice | None) -> tuple[Price, Time]:
        parts = components(nest)
        if len(parts) > 1:
            prices = [self.price(part) for part in parts]
            merged = _merge(nest, parts, prices)
            return merged, self.clock.time(merged)
        assert choice is not None
        tiles = {n: t for n, t in zip(nest.sizes, choice.tiles, strict=True) if t is not None}
        price = Pricer(_variant(nest, choice), self.device).price(tiles, walks=choice.walks)
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

    def _key(self, price: Price) -> Key:
        """Smaller is better: fits; where bytes are minimised also fills the machine and adds little
        work; then the objective."""
        shortage = excess = 0.0
        if self.objective == "bytes":
            shortage = (self.device.sm_count or 1) / price.blocks if self._short(price) else 0.0
            excess = price.extra_flops if self._too_much_work(price) else 0.0
        cost = self._cost(price.dram_bytes, self.clock.time(price).total_us)
        return (len(price.vetoes), shortage, excess, cost, price.dram_bytes)

    def _cost(self, moved: int, time_us: float) -> float:
        """What is minimised: µs, or bytes with a little of the time."""
        if self.objective == "time":
            return time_us
        stream_gbs = self.device.stream_gbs or self.device.require("dram_bandwidth_gbs")
        return moved + TRADE * stream_gbs * 1e3 * time_us

    def _descend(self, pricer: Pricer, limits: TileLimits, walks: int) -> tuple[Key, Price]:
        """The best tiles of one nest, walked once or twice."""
        return Descent(
            pricer=pricer, limits=limits, walks=walks, sms=self.device.sm_count or 1,
            key=self._key, is_enough=self._enough(pricer),
        ).best()  # fmt: skip

    def _enough(self, pricer: Pricer) -> Callable[[Price], bool]:
        """A test of prices against what no schedule of the nest can beat."""
        least = pricer.read_bytes + pricer.write_bytes
        ideal = Price(
            tiles={}, walks=1, blocks=self.device.sm_count or 1, read_bytes=pricer.read_bytes,
            write_bytes=pricer.write_bytes, flops=pricer.work_once, special_ops=pricer.special_once,
        )  # fmt: skip
        bound_us = self.clock.time(ideal).total_us
        by_bytes = self.objective == "bytes"
        enough_us = bound_us * (1 + (SPARE_TIME if by_bytes else RESOLUTION))

        def is_enough(price: Price) -> bool:
            if price.vetoes or (by_bytes and price.dram_bytes > least):
                return False
            return self.clock.time(price).total_us <= enough_us and not self._vetoes(price)

        return is_enough


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
        combine_bytes=sum(p.combine_bytes for p in prices),
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
    )
    for price in prices:
        for key, flops in price.flops.items():
            merged.flops[key] = merged.flops.get(key, 0.0) + flops
    return merged


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


def signature(nest: Nest) -> object:
    """Equal for nests that differ in names alone: the key of the memo."""
    axes: dict[str, int] = {}
    tensors: dict[str, int] = {}
    structures = nest.graph.structures
    return tuple(
        (
            structures[i].kind,
            tuple([axes.setdefault(name, len(axes)) for name in structures[i].axes]),
            tuple([tensors.setdefault(name, len(tensors)) for name in structures[i].tensors]),
            tuple([write.tensor in nest.outputs for write in op.writes]),
        )
        for i, op in nest.ops.items()
    )
