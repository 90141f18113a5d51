"""The search over tiles: descent from several starts, then a wider neighbourhood.

Small tiles have the smallest footprint and the largest grid, so a nest that does not fit with the
least tiles fits with none, and is not searched. From there each step doubles the tile (or halves
the part of a reduced axis, or takes the pipeline beside this one) that improves the objective most.
Where that ends short of what no schedule can beat, other starts follow, and steps that halve any
tile, take a whole axis, or trade one tile for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from math import isqrt, prod

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.clock.roofline import Roofline
from fuseledger.ledger.kernel import SHALLOW, Pipeline
from fuseledger.ledger.price import Price
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.products import STEPS
from fuseledger.ledger.staging import STAGES
from fuseledger.ledger.tiles import TileLimits

Key = tuple[float, ...]
Tiles = dict[str, int]
Steps = Callable[[Tiles], Iterator[Tiles]]
"""Where a walk may go next."""

PIPELINES = sorted(
    (Pipeline(step_bytes, stages) for step_bytes in STEPS for stages in STAGES),
    key=lambda pipeline: (pipeline.ahead_bytes, pipeline.step_bytes),
)
"""From what loads least ahead to what loads most."""
DEEP = Pipeline(step_bytes=128, stages=4)
"""What a search of products starts from: with less in flight, larger tiles would look slower than
they are."""
POINTWISE_TILE = 1024
"""Elements a block of a kernel without contraction starts from: 4 warps × 8 elements."""


def first_pipeline(pricer: Pricer) -> Pipeline:
    """What a search starts from."""
    return DEEP if pricer.contractions else SHALLOW


def smallest_price(pricer: Pricer, limits: TileLimits, walks: int) -> Price:
    """The price of the least tiles; where it has vetoes, so has every other."""
    return pricer.price(limits.least(), walks=walks, pipeline=first_pipeline(pricer))


def walk(
    pricer: Pricer, tiles: Tiles, steps: Steps, key: Callable[[Price], Key], clock: Roofline, *,
    walks: int = 1, pipeline: Pipeline | None = None,
) -> tuple[Key, Price]:  # fmt: skip
    """Take the best of the steps from where the walk is, as long as it improves: other tiles, with
    parts merged in the better way, or another pipeline where the kernel waits for its own."""
    pipeline = pipeline or first_pipeline(pricer)
    starts = [
        pricer.price(tiles, walks=walks, pipeline=pipeline, merge=merge)
        for merge in pricer.merges(tiles)
    ]
    least, best = min(((key(price), price) for price in starts), key=lambda found: found[0])

    def is_worse(draft: Price) -> bool:
        return key(draft) >= least

    def improved(moves: Iterable[tuple[Tiles, Pipeline]]) -> bool:
        """Go to the best of the moves, if it is better than where the walk is."""
        nonlocal least, best
        before = least
        for tiles, pipeline in moves:
            if not best.vetoes and pricer.is_too_large(tiles, walks):
                continue
            for merge in pricer.merges(tiles):
                price = pricer.price_unless(
                    is_worse, tiles, walks=walks, pipeline=pipeline, merge=merge
                )
                if price is not None and (found := key(price)) < least:
                    best, least = price, found
        return least < before

    def other_tiles() -> list[tuple[Tiles, Pipeline]]:
        return [(tiles, best.pipeline) for tiles in steps(best.tiles)]

    def other_pipelines() -> list[tuple[Tiles, Pipeline]]:
        waits = best.staged is not None and clock.time(best).slowest[0] == "pipeline"
        return [(best.tiles, each) for each in _beside(best.pipeline)] if waits else []

    while improved(other_tiles()) or improved(other_pipelines()):
        pass
    return least, best


def _beside(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Steps twice or half as long, one stage more or less."""
    for step_bytes in (pipeline.step_bytes * 2, pipeline.step_bytes // 2):
        if step_bytes in STEPS:
            yield replace(pipeline, step_bytes=step_bytes)
    for stages in (pipeline.stages + 1, pipeline.stages - 1):
        if stages in STAGES:
            yield replace(pipeline, stages=stages)


class Descent(Struct, frozen=True, kw_only=True):
    """The search for the best tiles of one nest."""

    pricer: Pricer
    limits: TileLimits
    walks: int
    sms: int
    key: Callable[[Price], Key]
    """Smaller is better."""
    clock: Roofline
    is_enough: Callable[[Price], bool]
    """Whether no schedule can be better by more than the search is worth."""
    is_hopeless: Callable[[Price], bool]
    """Whether it is not worth trying to better it."""

    def best(self) -> tuple[Key, Price]:
        """The best price found."""
        smallest = smallest_price(self.pricer, self.limits, self.walks)
        least = smallest.tiles
        if smallest.vetoes:
            return self.key(smallest), smallest
        if not self.pricer.contractions:
            least = _widened(self.pricer, least, self.sms * 4)
        key, found = self._walk(least, self._narrow)
        if self.is_enough(found):
            return self._relaxed(key, found)
        for start in self._starts():
            other, price = self._walk(start, self._narrow)
            if other < key:
                key, found = other, price
        if self.is_hopeless(found):
            return key, found
        return self._relaxed(*self._walk(found.tiles, self._wide, found.pipeline))

    def _relaxed(self, key: Key, price: Price) -> tuple[Key, Price]:
        """The same tiles with the pipeline that loads least ahead, of those that are no slower."""
        time = self.clock.time(price)
        trips_us = dict(time.terms).get("pipeline")
        if trips_us is None:
            return key, price
        least = price.pipeline.ahead_bytes * trips_us / time.slowest[1]
        for pipeline in PIPELINES:
            if least <= pipeline.ahead_bytes < price.pipeline.ahead_bytes:
                other = self.pricer.price(
                    price.tiles, walks=self.walks, pipeline=pipeline, merge=price.merge or "launch"
                )
                found = self.key(other)
                if found <= key:
                    return found, other
        return key, price

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

    def _walk(
        self, tiles: Tiles, steps: Steps, pipeline: Pipeline | None = None
    ) -> tuple[Key, Price]:
        return walk(
            self.pricer, tiles, steps, self.key, self.clock, walks=self.walks, pipeline=pipeline
        )

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
        """One tile doubled, halved, whole or one that leaves no rest; and one doubled while another
        is halved."""
        sizes = self.pricer.nest.sizes
        smaller: list[Tiles] = []
        for name, tile in tiles.items():
            if tile < sizes[name]:
                yield {**tiles, name: min(2 * tile, sizes[name])}
            if 2 * tile < sizes[name]:
                yield {**tiles, name: sizes[name]}
            for even in _even_tiles(sizes[name], tile):
                step = {**tiles, name: even}
                if even > tile or self.limits.allows(step):
                    yield step
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


def _even_tiles(size: int, tile: int) -> list[int]:
    """The next tiles between half and twice this one that divide an axis, smaller and larger."""
    near = [each for each in _divisors(size) if tile < 2 * each < 4 * tile and each < size]
    return [each for each in near if each < tile][-1:] + [each for each in near if each > tile][:1]


@cache
def _divisors(size: int) -> list[int]:
    smaller = [each for each in range(1, isqrt(size) + 1) if size % each == 0]
    return sorted({*smaller, *(size // each for each in smaller)})


def _widened(pricer: Pricer, tiles: Tiles, blocks: int) -> Tiles:
    """Tiles with enough elements for a pointwise block to be worth launching, innermost axes
    first."""
    nest, tiles = pricer.nest, dict(tiles)
    points = max(op.points for op in nest.ops.values())
    while True:
        grid = prod(-(-nest.sizes[name] // tile) for name, tile in tiles.items())
        if points >= POINTWISE_TILE * grid:
            return tiles
        growing = [
            n
            for n in reversed(nest.open_axes)
            if tiles.get(n, nest.sizes[n]) < nest.sizes[n] and n not in nest.split_axes
        ]
        if not growing or grid < 2 * blocks:
            return tiles
        name = growing[0]
        tiles[name] = min(nest.sizes[name], tiles[name] * 2)
