"""One kernel with a given number of partial results: what a split is worth, and the best factor.

The schedule search chooses splits with everything else. Here the number of parts is held fixed
and the other tiles are searched by the same prices and the same clock, so that the price of
splitting can be told: what the search would take if it could not split, or had to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

from msgspec import Struct

from fuseledger.clock.roofline import Roofline
from fuseledger.clock.time import Time
from fuseledger.devices import Device
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import Kernel, Schedule
from fuseledger.ledger.nest import Nest, analyse
from fuseledger.ledger.online import online_variant
from fuseledger.ledger.price import Price
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.tiles import TileLimits
from fuseledger.planner.descent import Tiles, walk
from fuseledger.planner.schedules import EXTRA_WORK, treatments

LEAST_STEP = 16
"""Least elements of the reduced axis in a part: one step of a matrix unit."""
MAX_PARTS = 256
TIE = 0.01
"""Times so close are equal: the smaller factor writes fewer partials."""
LADDER = (*range(2, 17), 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256)
"""Factors tried first where the other tiles are free; the neighbours of the best follow."""


class Parted(Struct, frozen=True):
    """A kernel with its reduced axis in so many parts, and the best tiles for it."""

    parts: int
    price: Price
    time: Time
    kernel: Kernel

    @property
    def schedule(self) -> Schedule:
        """Treatment of every axis."""
        return self.kernel.schedule


Key = Callable[[Parted], tuple[bool, ...]]
"""What makes a factor come before a faster one; False first."""


class Parts:
    """Prices all ops of a graph as one kernel, by the number of parts of its reduced axis.

    `tiles` fixes tiles of axes by name, of those that the nest may tile.
    """

    def __init__(
        self, graph: Graph, device: Device, clock: Roofline, tiles: Mapping[str, int] | None = None
    ) -> None:
        self.device = device
        self.clock = clock
        nest = analyse(graph, tuple(range(len(graph.ops))))
        self.nest: Nest = online_variant(nest) or nest
        self.pricer = Pricer(self.nest, device)
        if clock.realise == "library" and self.pricer.calls.call is not None:
            self.pricer.ways = self.pricer.calls.call.merges
        self._limits = TileLimits(self.pricer)
        self._fixed = dict(tiles or {})
        self._found: dict[int, Parted] = {}

    @property
    def axis(self) -> str | None:
        """The reduced axis that the grid may take, the longest of them; None: there is none."""
        sizes = self.nest.sizes
        return max(self.nest.split_axes, key=lambda name: (sizes[name], name), default=None)

    @cached_property
    def _free(self) -> list[str]:
        """Axes whose tiles are searched."""
        fixed = self.nest.split_axes.union(self._fixed)
        return [name for name in self.nest.open_axes if name not in fixed]

    def most(self) -> int:
        """The largest factor that leaves every part a step of a matrix unit."""
        size = self.nest.sizes[self.axis] if self.axis else 1
        return max(1, min(MAX_PARTS, size // LEAST_STEP))

    def at(self, parts: int) -> Parted:
        """The fastest kernel with that many parts (1: not split), vetoed or not."""
        if parts not in self._found:
            self._found[parts] = self._search(parts)
        return self._found[parts]

    def best(self, key: Key | None = None) -> int:
        """The best factor above 1; 1 where the axis cannot be split.

        The fastest one, among those that `key` puts first; of factors within `TIE` of it, the
        smallest.
        """
        axis = self.axis
        if axis is None:
            return 1
        size, most = self.nest.sizes[axis], self.most()
        free = bool(self._free)
        known = [s for s in (LADDER if free else range(2, most + 1)) if s <= most]
        found = self._fastest([s for s in known if pieces(size, s) == s], key)
        if free and found > 1:
            near = range(max(2, found - 4), min(most, found + 4) + 1)
            found = self._fastest([found, *(s for s in near if pieces(size, s) == s)], key)
        return found

    def _fastest(self, factors: Sequence[int], key: Key | None) -> int:
        if not factors:
            return 1
        ranked = [
            ((*(key(self.at(s)) if key else ()), *self._rank(self.at(s).price)[:2]), s)
            for s in factors
        ]
        first = min(rank for rank, _ in ranked)
        equal = [s for rank, s in ranked if rank == first]
        least_us = min(self.at(s).time.total_us for s in equal)
        return min(s for s in equal if self.at(s).time.total_us <= least_us * (1 + TIE))

    def _rank(self, price: Price) -> tuple[float, ...]:
        """Smaller is better: fits, computes little again, is fast, moves little."""
        again = price.extra_flops > EXTRA_WORK * price.work_once
        return len(price.vetoes), again, self.clock.time(price).total_us, price.dram_bytes

    def _search(self, parts: int) -> Parted:
        """Descent over the tiles that are free: from the least, from the least that compute nothing
        again, and from one that fills the SMs."""
        free = self._free
        fixed = {name: tile for name, tile in self._fixed.items() if name in self.nest.open_axes}
        for name in self.nest.split_axes:
            size = self.nest.sizes[name]
            fixed[name] = -(-size // parts) if name == self.axis else size
        least = {**self._limits.least(), **fixed}
        whole = {n: self.nest.sizes[n] for axes in self.nest.held_through.values() for n in axes}
        once = {**least, **{name: whole[name] for name in free if name in whole}}
        starts = [least, once, self._filling(once, free)] if free else [least]
        _, price = min(
            (walk(self.pricer, start, self._steps, self._rank, self.clock) for start in starts),
            key=lambda found: found[0],
        )
        return Parted(parts, price, self.clock.time(price), self._kernel(price))

    def _filling(self, least: dict[str, int], free: list[str]) -> dict[str, int]:
        """The least tiles doubled in turn, innermost first, while the grid covers the SMs."""
        tiles, sizes = dict(least), self.nest.sizes
        while free:
            order = sorted(free, key=lambda name: tiles[name])
            for name in order:
                wider = {**tiles, name: min(sizes[name], tiles[name] * 2)}
                blocks = prod(-(-sizes[n] // t) for n, t in wider.items())
                if wider[name] > tiles[name] and blocks >= (self.device.sm_count or 1):
                    tiles = wider
                    break
            else:
                break
        return tiles

    def _steps(self, tiles: Tiles) -> Iterator[Tiles]:
        """One free tile doubled or halved."""
        for name in self._free:
            for other in (tiles[name] * 2, tiles[name] // 2):
                other = min(other, self.nest.sizes[name])
                step = {**tiles, name: other}
                if 1 <= other != tiles[name] and self._limits.allows(step):
                    yield step

    def _kernel(self, price: Price) -> Kernel:
        schedule = Schedule(
            axes=treatments(self.nest, price.tiles, price.pipeline.step_bytes),
            warps=price.warps, pipeline=price.pipeline, merge=price.merge,
            online=bool(self.nest.rescaled),
        )  # fmt: skip
        return Kernel(ops=self.nest.members, schedule=schedule)


def pieces(size: int, parts: int) -> int:
    """Parts that a size falls into when cut for so many of them."""
    return -(-size // -(-size // parts))
