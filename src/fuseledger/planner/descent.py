"""The search over tiles: descent from several starts, then a wider neighbourhood.

Small tiles have the smallest footprint and the largest grid, so a nest that does not fit with the
least tiles fits with none, and is not searched. From there each step doubles the tile (or halves
the part of a reduced axis) that improves the objective most. Where that ends short of what no
schedule can beat, other starts follow, and steps that halve any tile, take a whole axis, or trade
one tile for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from msgspec import Struct

from fuseledger.ledger.price import Price
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.tiles import TileLimits

Key = tuple[float, ...]
Tiles = dict[str, int]
Steps = Callable[[Tiles], Iterator[Tiles]]
"""Where a walk may go next."""

POINTWISE_TILE = 1024
"""Elements a block of a kernel without contraction starts from: 4 warps × 8 elements."""


def walk(
    pricer: Pricer, tiles: Tiles, steps: Steps, key: Callable[[Price], Key], *, walks: int = 1
) -> tuple[Key, Price]:
    """Take the best of the steps from where the walk is, as long as it improves, with parts merged
    in the better way."""
    starts = [pricer.price(tiles, walks=walks, merge=merge) for merge in pricer.merges(tiles)]
    least, best = min(((key(price), price) for price in starts), key=lambda found: found[0])

    def is_worse(draft: Price) -> bool:
        return key(draft) >= least

    improved = True
    while improved:
        improved = False
        for step in steps(best.tiles):
            for merge in pricer.merges(step):
                price = pricer.price_unless(is_worse, step, walks=walks, merge=merge)
                if price is None:
                    continue
                found = key(price)
                if found < least:
                    best, least, improved = price, found, True
    return least, best


class Descent(Struct, frozen=True, kw_only=True):
    """The search for the best tiles of one nest."""

    pricer: Pricer
    limits: TileLimits
    walks: int
    sms: int
    key: Callable[[Price], Key]
    """Smaller is better."""
    is_enough: Callable[[Price], bool]
    """Whether no schedule can be better by more than the search is worth."""

    def best(self) -> tuple[Key, Price]:
        """The best price found."""
        least = self.limits.least()
        smallest = self.pricer.price(least, walks=self.walks)
        if smallest.vetoes:
            return self.key(smallest), smallest
        if not self.pricer.contractions:
            _widen(self.pricer, least, self.sms * 4)
        key, found = self._walk(least, self._narrow)
        if self.is_enough(found):
            return key, found
        for start in self._starts():
            other, price = self._walk(start, self._narrow)
            if other < key:
                key, found = other, price
        return self._walk(found.tiles, self._wide)

    def _starts(self) -> Iterator[Tiles]:
        """Least tiles as they are, and with reduced axes cut until their parts fill the machine."""
        nest = self.pricer.nest
        least = self.limits.least()
        if not self.pricer.contractions:
            yield least
        for parts in (self.sms, 8 * self.sms, 64 * self.sms) if nest.split_axes else ():
            tiles = dict(least)
            split = [name for name in nest.open_axes if name in nest.split_axes]
            for name in sorted(split, key=lambda name: -nest.sizes[name]):
                blocks = prod(-(-nest.sizes[n] // tile) for n, tile in tiles.items())
                wanted = -(-parts // blocks)
                cut = {**tiles, name: max(1, nest.sizes[name] // wanted)}
                if wanted > 1 and self.limits.allows(cut):
                    tiles = cut
            yield tiles

    def _walk(self, tiles: Tiles, steps: Steps) -> tuple[Key, Price]:
        return walk(self.pricer, tiles, steps, self.key, walks=self.walks)

    def _narrow(self, tiles: Tiles) -> Iterator[Tiles]:
        """One tile doubled, or the part of a reduced axis halved."""
        nest = self.pricer.nest
        for name, tile in tiles.items():
            if tile < nest.sizes[name]:
                yield {**tiles, name: min(2 * tile, nest.sizes[name])}
            if name in nest.split_axes and tile > 1:
                step = {**tiles, name: tile // 2}
                if self.limits.allows(step):
                    yield step

    def _wide(self, tiles: Tiles) -> Iterator[Tiles]:
        """One tile doubled, halved or whole; and one doubled while another is halved."""
        sizes = self.pricer.nest.sizes
        smaller: list[Tiles] = []
        for name, tile in tiles.items():
            if tile < sizes[name]:
                yield {**tiles, name: min(2 * tile, sizes[name])}
            if 2 * tile < sizes[name]:
                yield {**tiles, name: sizes[name]}
            if tile > 1:
                half = {**tiles, name: -(-tile // 2)}
                smaller.append(half)
                if self.limits.allows(half):
                    yield half
        for half in smaller:
            for name, tile in tiles.items():
                if half[name] == tile and tile < sizes[name]:
                    step = {**half, name: min(2 * tile, sizes[name])}
                    if self.limits.allows(step):
                        yield step


def _widen(pricer: Pricer, tiles: Tiles, blocks: int) -> None:
    """Give a pointwise block enough elements to be worth launching, innermost axes first."""
    nest = pricer.nest
    points = max(op.points for op in nest.ops.values())
    while True:
        grid = prod(-(-nest.sizes[name] // tile) for name, tile in tiles.items())
        if points >= POINTWISE_TILE * grid:
            return
        growing = [
            n
            for n in reversed(nest.open_axes)
            if tiles.get(n, nest.sizes[n]) < nest.sizes[n] and n not in nest.split_axes
        ]
        if not growing or grid < 2 * blocks:
            return
        name = growing[0]
        tiles[name] = min(nest.sizes[name], tiles[name] * 2)
