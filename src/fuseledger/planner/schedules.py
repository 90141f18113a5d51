"""The schedule search: tiles, splits and walks of one kernel, judged by the accounts.

`descent.py` walks the tiles; here is what is better, which variants of a nest there are, and the
memo: results are kept by structure, so that equal layers are searched once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from operator import itemgetter
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from fuseledger.clock.roofline import Roofline
from fuseledger.clock.textbook import declared_time
from fuseledger.clock.time import Time
from fuseledger.devices import Device
from fuseledger.graph.graph import Graph
from fuseledger.graph.structure import signature
from fuseledger.ledger.compiled import Figures, ScheduleKey, schedule_key, use_compiled
from fuseledger.ledger.declared import declared_price
from fuseledger.ledger.kernel import SHALLOW, AxisSchedule, Kernel, Merge, Pipeline, Schedule
from fuseledger.ledger.live_values import LOOP_POINTS
from fuseledger.ledger.nest import Nest, analyse
from fuseledger.ledger.online import online_variant
from fuseledger.ledger.price import Price, is_short
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.products import loop_steps
from fuseledger.ledger.tiles import TileLimits
from fuseledger.planner.descent import Descent, Key, smallest_price
from fuseledger.planner.side_by_side import components, merge

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


GIVE_UP = 5.0
"""A kernel that has come to so many times the cost that it must stay below is searched no further,
and put beside no other: of 3,000 kernels of seven models the last steps of a search saved no more
than three fifths of those, and at most four fifths of others."""


class Choice(Struct, frozen=True, kw_only=True):
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
    pipeline: Pipeline = SHALLOW
    blocks: int = 0
    on_chip_bytes: int = 0
    """Shared memory that a block holds."""
    bound: str = "launch"
    """What it waits for."""
    online: bool = False
    """Whether carried tensors are made online by rescaling."""
    merge: Merge | None = None
    """Who merges the parts of split axes."""
    not_owned: Price | None = None
    """Where carried tensors cannot be owned: the price of the least tiles, with its veto."""

    @property
    def usable(self) -> bool:
        """Whether no account vetoes it."""
        return not self.vetoes


class ScheduleSearch(Struct):
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
    _part_prices: dict[tuple[int, ...], Price] = field(default_factory=dict[tuple[int, ...], Price])
    _least: dict[object, float] = field(default_factory=dict[object, float])
    """Structure → the least that its kernel costs, of those that were not worth searching on."""

    def choose(self, positions: tuple[int, ...]) -> Choice:
        """The best schedule of the ops at `positions` (ascending), usable or with its vetoes."""
        key = positions
        found = self.memo.get(key)
        if found is None:
            key = signature(self.graph, positions)
            found = self.memo.get(key)
            if found is None:
                found = self._search(analyse(self.graph, positions), inf)
                assert isinstance(found, Choice)
                self.memo[key] = found
                self.searched += key not in self._least
            self.memo[positions] = found
        return found

    def cost_below(self, positions: tuple[int, ...], limit: float) -> float | None:
        """Cost of the ops as one kernel, None where no schedule is usable. Where it is no less
        than `limit`, this may be any figure between the two: then not all is searched."""
        choice = self.memo.get(positions)
        if choice is None:
            key = signature(self.graph, positions)
            choice = self.memo.get(key)
            if choice is None:
                least = self._least.get(key, 0.0)
                if least >= limit:
                    return least
                found = self._search(analyse(self.graph, positions), limit)
                self.searched += key not in self._least
                if not isinstance(found, Choice):
                    self._least[key] = found
                    return found
                choice = self.memo[key] = found
            self.memo[positions] = choice
        return choice.cost if choice.usable else None

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
        pieces = components(analyse(self.graph, positions))
        if len(pieces) > 1:
            return self._kernel_side_by_side(positions, [self.kernel(each) for each in pieces])
        nest, choice, price = (
            analyse(self.graph, positions),
            self.choose(positions),
            self.price(positions),
        )
        owned = frozenset[str]()
        variant = _variant(nest, choice)
        if price.walks == 1:
            owned = frozenset(name for axes in variant.carried.values() for name in axes)
        schedule = Schedule(
            axes=treatments(variant, price.tiles, price.pipeline.step_bytes, owned),
            warps=price.warps,
            pipeline=price.pipeline,
            walks=price.walks,
            online=choice.online,
            merge=price.merge,
        )
        return Kernel(ops=positions, schedule=schedule)

    def _kernel_side_by_side(self, positions: tuple[int, ...], parts: list[Kernel]) -> Kernel:
        price = self.price(positions)
        axes: dict[str, AxisSchedule] = {}
        for part in parts:
            axes = dict(part.schedule.axes) | axes
        schedule = Schedule(
            axes=tuple(axes.items()), warps=price.warps, pipeline=price.pipeline, walks=price.walks,
            merge=price.merge,
        )  # fmt: skip
        return Kernel(ops=positions, schedule=schedule, parts=tuple(parts))

    def rewalked_share(self, positions: tuple[int, ...]) -> float:
        """Share of a second walk over carried tensors that L2 still holds, in the least tiles."""
        nest = analyse(self.graph, positions)
        if nest.veto is not None or not nest.carried:
            return 0.0
        pricer = self._pricer(nest)
        return self.clock.rewalked_share(pricer.price(TileLimits(pricer).least(), walks=2))

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
        self._part_prices.clear()
        self._least.clear()

    # -- the search ------------------------------------------------------------------------

    def _pricer(self, nest: Nest, *, online: bool = False) -> Pricer:
        known = (
            self.evidence.get((signature(nest.graph, nest.members), online))
            if self.evidence
            else None
        )
        return Pricer(nest, self.device, known)

    def _search(self, nest: Nest, limit: float) -> Choice | float:
        """The best schedule; or what it costs at least, where that is `limit` or more and not all
        was searched."""
        if nest.veto is not None:
            never = float("inf")
            return Choice(
                cost=never, bytes=0, launches=1, time_us=never, tiles=(), walks=1,
                vetoes=(("legality", nest.veto),),
            )  # fmt: skip
        if nest.is_declared:
            price = declared_price(nest)
            time = declared_time(nest, self.device)
            return Choice(
                cost=self._cost(price.dram_bytes, time.total_us), bytes=price.dram_bytes,
                launches=price.launches, time_us=time.total_us, tiles=(), walks=1, vetoes=(),
                blocks=price.blocks, on_chip_bytes=price.shared_bytes, bound=time.bound,
            )  # fmt: skip
        parts = components(nest)
        if len(parts) > 1:
            return self._side_by_side(nest, parts, limit)
        return self._best_way(nest, limit)

    def _best_way(self, nest: Nest, limit: float) -> Choice | float:
        """The same for ops that hang together, over what may become of what they carry."""
        pricer = self._pricer(nest)
        limits = TileLimits(pricer)
        not_owned: Price | None = None
        best: tuple[Key, Price, bool] | None = None
        skipped = inf
        """Least cost known of the ways that were not searched to the end: `limit` or more."""
        for way, walks, is_online in self._ways(nest, pricer):
            ideal = way.ideal(walks)
            if best is not None and best[0] <= self._key(ideal):
                continue
            cost = self._cost_of(ideal)
            if cost < limit:
                key, price = self._descend(way, limits, ideal, limit)
                if not self._is_hopeless(price, limit):
                    best = min(
                        best or (key, price, is_online), (key, price, is_online), key=itemgetter(0)
                    )
                    continue
                cost = self._cost_of(price)
            skipped = min(skipped, cost)
        usable = best is not None and not self._vetoes(best[1])
        cost = self._cost_of(best[1]) if best is not None and usable else inf
        if skipped < inf and cost >= limit:
            return min(cost, skipped)
        assert best is not None
        _, price, is_online = best
        if nest.carried:
            least = smallest_price(pricer, limits, 1)
            not_owned = least if least.vetoes else None
        tiles = tuple(price.tiles.get(name) for name in nest.sizes)
        return replace(self._chosen(price, tiles), online=is_online, not_owned=not_owned)

    def _ways(self, nest: Nest, pricer: Pricer) -> Iterator[tuple[Pricer, int, bool]]:
        """(pricer, walks, whether online): what is carried is owned, made online, walked twice."""
        yield pricer, 1, False
        if nest.carried:
            online = online_variant(nest)
            if online is not None:
                yield self._pricer(online, online=True), 1, True
            yield pricer, 2, False

    def _chosen(self, price: Price, tiles: tuple[int | None, ...]) -> Choice:
        time = self.clock.time(price)
        return Choice(
            cost=self._cost(price.dram_bytes, time.total_us),
            bytes=price.dram_bytes, launches=price.launches, time_us=time.total_us, tiles=tiles,
            walks=price.walks, vetoes=self._vetoes(price), pipeline=price.pipeline,
            blocks=price.blocks, on_chip_bytes=price.shared_bytes, bound=time.bound,
            merge=price.merge,
        )  # fmt: skip

    def _side_by_side(
        self, nest: Nest, parts: list[tuple[int, ...]], limit: float
    ) -> Choice | float:
        """Ops that share inputs but no intermediate run as one grid, block ranges side by side."""
        for part in parts:
            cost = self.cost_below(part, GIVE_UP * limit)
            if cost is not None and cost > GIVE_UP * limit:
                return cost
        choices = [self.choose(part) for part in parts]
        vetoes = tuple(v for choice in choices for v in choice.vetoes if v[0] != "parallelism")
        found = self._chosen(self._combined(nest, None)[0], ())
        return replace(
            found, walks=1, vetoes=vetoes + tuple(v for v in found.vetoes if v not in vetoes)
        )

    def _combined(self, nest: Nest, choice: Choice | None) -> tuple[Price, Time]:
        parts = components(nest)
        if len(parts) > 1:
            prices = [self._part_price(part) for part in parts]
            merged = merge(nest, parts, prices, self.device)
            known = self.evidence.get((signature(nest.graph, nest.members), False), {})
            found = known.get(schedule_key(merged, merged.warps))
            if found is not None:
                use_compiled(merged, found, self.device.shared_memory_per_block_bytes)
            return merged, self.clock.time(merged)
        assert choice is not None
        tiles = {n: t for n, t in zip(nest.sizes, choice.tiles, strict=True) if t is not None}
        pricer = self._pricer(_variant(nest, choice), online=choice.online)
        way: Merge = "last block" if choice.merge == "last block" else "launch"
        price = pricer.price(tiles, walks=choice.walks, pipeline=choice.pipeline, merge=way)
        price.vetoes = self._vetoes(price)
        return price, self.clock.time(price)

    def _part_price(self, positions: tuple[int, ...]) -> Price:
        """The price of a part of kernels that run side by side: most parts are in many of them."""
        found = self._part_prices.get(positions)
        if found is None:
            found = self._part_prices[positions] = self.price(positions)
        return found

    def _vetoes(self, price: Price) -> tuple[tuple[str, str], ...]:
        """What makes a schedule unusable: where time is minimised, capacity alone. A short grid
        and repeated work are priced by the clock."""
        vetoes = price.vetoes
        if self.objective == "time":
            return vetoes
        if is_short(price, self.device):
            words = f"a grid of {price.blocks} on {self.device.sm_count} SMs"
            vetoes += (("parallelism", words),)
        if self._too_much_work(price):
            share = price.extra_flops / max(1.0, price.work_once)
            vetoes += (("epilogue", f"computes {share:,.0%} of its work again"),)
        return vetoes

    def _too_much_work(self, price: Price) -> bool:
        return self.objective == "bytes" and price.extra_flops > EXTRA_WORK * price.work_once

    def _key(self, price: Price) -> Key:
        """Smaller is better: fits; where bytes are minimised also fills the machine and adds little
        work; then the objective."""
        shortage = excess = 0.0
        if self.objective == "bytes":
            if is_short(price, self.device):
                shortage = (self.device.sm_count or 1) / price.blocks
            excess = price.extra_flops if self._too_much_work(price) else 0.0
        return (len(price.vetoes), shortage, excess, self._cost_of(price), price.dram_bytes)

    def _cost_of(self, price: Price) -> float:
        return self._cost(price.dram_bytes, self.clock.time(price).total_us)

    def _cost(self, moved: int, time_us: float) -> float:
        """What is minimised: µs, or bytes with a little of the time."""
        if self.objective == "time":
            return time_us
        stream_gbs = self.device.stream_gbs or self.device.require("dram_bandwidth_gbs")
        return moved + TRADE * stream_gbs * 1e3 * time_us

    def _descend(
        self, pricer: Pricer, limits: TileLimits, ideal: Price, limit: float
    ) -> tuple[Key, Price]:
        """The best tiles of one nest, or such as no others can beat by more than the search is
        worth, or that are hopeless beside the limit."""
        known: dict[int, tuple[Key, Price]] = {}
        by_bytes = self.objective == "bytes"
        enough_us = self.clock.time(ideal).total_us * (1 + (SPARE_TIME if by_bytes else RESOLUTION))

        def key(price: Price) -> Key:
            """Known of every price: walks meet the same ones again. A price is kept as long as its
            key, or another might take its place in memory."""
            found = known.get(id(price))
            if found is None:
                found = known[id(price)] = self._key(price), price
            return found[0]

        def is_enough(price: Price) -> bool:
            if price.vetoes or (by_bytes and price.dram_bytes > ideal.dram_bytes):
                return False
            return self.clock.time(price).total_us <= enough_us and not self._vetoes(price)

        return Descent(
            pricer=pricer, limits=limits, walks=ideal.walks, sms=self.device.sm_count or 1,
            key=key, clock=self.clock, is_enough=is_enough,
            is_hopeless=lambda price: self._is_hopeless(price, limit),
        ).best()  # fmt: skip

    def _is_hopeless(self, price: Price, limit: float) -> bool:
        return self._cost_of(price) > GIVE_UP * limit and not self._vetoes(price)


def _variant(nest: Nest, choice: Choice) -> Nest:
    """The nest that the choice was priced on."""
    variant = online_variant(nest) if choice.online else nest
    assert variant is not None  # it was found when the choice was made
    return variant


def treatments(
    nest: Nest, tiles: dict[str, int], step_bytes: int, owned: frozenset[str] = frozenset()
) -> tuple[tuple[str, AxisSchedule], ...]:
    """What becomes of every axis, where `owned` axes are held whole."""
    steps = loop_steps(nest, tiles, step_bytes)
    return tuple(
        (name, _treatment(nest, name, tiles.get(name), owned, steps.get(name, LOOP_POINTS)))
        for name, size in nest.sizes.items()
        if size > 1
    )


def _treatment(
    nest: Nest, name: str, tile: int | None, owned: frozenset[str], step: int
) -> AxisSchedule:
    size = nest.sizes[name]
    if tile is None:
        if name in owned:
            return AxisSchedule("whole", size)
    elif name not in nest.split_axes:
        return AxisSchedule("grid", tile)
    elif tile < size:
        return AxisSchedule("split", -(-size // tile))
    return AxisSchedule("loop", min(size, step))
