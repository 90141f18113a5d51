"""Pricing a nest under many schedules: rules R3 (partials), R4 (computed again) and R6 (grid).

What no schedule changes is computed once per nest. `footprint.py` adds rule R5.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import cached_property
from math import prod
from operator import ge
from typing import NamedTuple

from msgspec.structs import replace

from fuseledger.devices import Device
from fuseledger.graph.axis import Index
from fuseledger.graph.op import COMBINES, Op
from fuseledger.graph.reach import reach, tile_reach
from fuseledger.ledger.compiled import Known
from fuseledger.ledger.footprint import ACCUMULATOR_BYTES, Footprint
from fuseledger.ledger.kernel import SHALLOW, Merge, Pipeline
from fuseledger.ledger.library_calls import library_calls
from fuseledger.ledger.live_values import LOOP_POINTS, side_of
from fuseledger.ledger.matrix_units import library_tile
from fuseledger.ledger.nest import Edge, Nest, cone, earlier_walks, last_walk, rewalked
from fuseledger.ledger.online import special_saved
from fuseledger.ledger.points import coordinates
from fuseledger.ledger.price import Padding, Price, external_bytes
from fuseledger.ledger.tiled import Bound, Grouped, TiledLoads

FOLD_SHARE = 0.1
"""Partials up to this share of a kernel's own traffic are folded by whoever reads them; more are
summed by a second kernel or by the last block of each tile."""

Regions = dict[int, dict[str, int]]
"""Op position → extent of each axis inside one block."""


class Pricer:
    """Prices the schedules of one nest on one device."""

    def __init__(self, nest: Nest, device: Device, known: Known | None = None) -> None:
        self.nest = nest
        self.device = device
        self.tensors = nest.graph.tensors
        self.read_once = external_bytes(nest, device)
        self.read_bytes = sum(self.read_once.values())
        self.write_bytes = sum(self.tensors[name].bytes for name in nest.outputs)
        self.calls = library_calls(nest, device.vendor)
        self.is_opaque = nest.is_opaque
        self.ways: tuple[Merge, ...] = ("launch", "last block")
        """Who may merge parts that their readers do not fold."""
        self._prices: dict[tuple[object, ...], Price] = {}
        self._too_large: dict[int, list[tuple[int, ...]]] = {}
        """Walks → tiles that do not fit."""
        self._drafts: dict[tuple[object, ...], tuple[Price, Regions]] = {}
        self._bounds = bounds_of(nest)
        halos = _halos(nest, self._bounds)
        pipes = self._pipes
        saved = special_saved(nest)
        self._work_of: list[_Work] = []
        alike: dict[object, _Work] = {}
        for i in nest.positions:
            work = _Work(nest, i, pipes[i], halos.get(i, _NO_HALO).keys(), saved.get(i, 0))
            if alike.setdefault((work.key, i in self.cone), work) is work:
                self._work_of.append(work)
            else:
                alike[work.key, i in self.cone].add(work)
        self._loads = TiledLoads(nest, self._bounds)
        self.footprint = Footprint(nest, device, self.contractions, halos, self.regions({}), known)

    @cached_property
    def contractions(self) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
        """(op, axes of its left side alone, axes of its right side alone) per contraction."""
        found: list[tuple[int, tuple[str, ...], tuple[str, ...]]] = []
        for i, op in self.nest.ops.items():
            if op.is_contraction:
                left, right = set(op.reads[0].axes), set(op.reads[1].axes)
                rows = tuple(name for name in op.kept if name in left and name not in right)
                columns = tuple(name for name in op.kept if name in right and name not in left)
                found.append((i, rows, columns))
        return found

    @cached_property
    def cone(self) -> frozenset[int]:
        """Ops that must run again when carried tensors are walked twice."""
        return cone(self.nest)

    @cached_property
    def rewalked(self) -> frozenset[str]:
        """External tensors that one more walk over the carried tensors reads again."""
        return rewalked(self.nest)

    def ideal(self, walks: int = 1) -> Price:
        """What no schedule of so many walks can beat: the bytes of each walk, no work again but
        that of further walks, and a block for every SM."""
        price = Price(
            tiles=self.nest.sizes,
            walks=walks,
            blocks=self.device.sm_count or 1,
            read_bytes=self.read_bytes,
            write_bytes=self.write_bytes,
            calls=self.calls,
        )
        self._walk_again(price)
        for work in self._work_of:
            times = walks if work.position in self.cone else 1
            if work.flops:
                price.flops[work.pipe] = price.flops.get(work.pipe, 0.0) + work.flops * times
            once = work.special_ops - work.saved if walks == 1 else work.special_ops
            price.special_ops += once * times
        self._rescale(price)
        return price

    def regions(self, tiles: dict[str, int]) -> Regions:
        """Extent of every axis of every op inside one block: tiles, halos, or the whole axis.

        Bounds go from consumers to producers; where every edge walks the same axes in both, all
        ops see the same extents.
        """
        common = {**self.nest.sizes, **tiles}
        found = dict.fromkeys(self.nest.positions, common)
        for i, bounds in self._bounds.items():
            region = found[i] = common.copy()
            for bound in bounds:
                extent = 1
                for consumer, index, size in bound.reads:
                    extent = max(extent, tile_reach(index, found[consumer], size))
                region[bound.name] = extent
        return found

    def merges(self, tiles: dict[str, int]) -> tuple[Merge, ...]:
        """The ways of merging parts that are worth asking for, of these tiles."""
        sizes = self.nest.sizes
        for _, reduced in self._reduced:
            for name in reduced:
                if tiles.get(name, sizes[name]) < sizes[name]:
                    return self.ways
        return ("launch",)

    def is_too_large(self, tiles: dict[str, int], walks: int) -> bool:
        """Whether smaller tiles are known not to fit; the pipeline is shortened before that."""
        return any(all(map(ge, tiles.values(), least)) for least in self._too_large.get(walks, ()))

    def price(
        self,
        tiles: dict[str, int],
        *,
        walks: int = 1,
        pipeline: Pipeline = SHALLOW,
        merge: Merge = "launch",
    ) -> Price:
        """The price of one choice of tiles for the open axes (an axis left out is whole).

        Asked again for the same choice it gives the same object. Parts that their readers do not
        fold are merged as asked.
        """
        price = self.price_unless(_never, tiles, walks=walks, pipeline=pipeline, merge=merge)
        assert price is not None
        return price

    def price_unless(
        self,
        rejects: Callable[[Price], bool],
        tiles: dict[str, int],
        *,
        walks: int = 1,
        pipeline: Pipeline = SHALLOW,
        merge: Merge = "launch",
    ) -> Price | None:
        """The same, or None where `rejects` says so of a draft, or of what does not fit.

        A draft has bytes, work and grid, no footprint: as if nothing had to be held, and an SM
        kept as many blocks as it can.
        """
        sizes = self.nest.sizes
        tiles = {
            name: min(tiles.get(name, sizes[name]), sizes[name]) for name in self.nest.open_axes
        }
        key = (*tiles.values(), walks, merge)
        price = self._prices.get((key, pipeline))
        if price is None:
            found = self._drafts.get(key)
            if found is None:
                found = self._drafts[key] = self._draft(tiles, walks, merge)
            draft, regions = found
            if rejects(draft):
                return None
            price = replace(draft, pipeline=pipeline)
            self.footprint.place(price, regions)
            if price.vetoes:
                self._too_large.setdefault(walks, []).append((*tiles.values(),))
                if rejects(price):
                    return None
            self.footprint.occupy(price, regions)
            self._prices[key, pipeline] = price
        return price

    def _draft(self, tiles: dict[str, int], walks: int, merge: Merge) -> tuple[Price, Regions]:
        """Bytes, work and grid, and the regions that the footprint is made of."""
        sizes = self.nest.sizes
        counts = {name: -(-sizes[name] // tile) for name, tile in tiles.items()}
        regions = self.regions(tiles)
        price = Price(
            tiles=tiles,
            walks=walks,
            blocks=self._blocks(counts),
            read_bytes=self.read_bytes,
            write_bytes=self.write_bytes,
            blocks_per_sm=self.footprint.limits.blocks,
            calls=self.calls,
        )
        self._walk_again(price)
        self._work(price, regions, counts)
        if self.contractions and all(op.points for op in self.nest.ops.values()):
            price.padding = self._padding(regions)
        self._rescale(price)
        self._partials(price, counts, merge)
        price.l2_bytes = self._loaded(price, counts) + self.write_bytes + price.partial_bytes
        return price, regions

    def _walk_again(self, price: Price) -> None:
        """The reads of walks after the first."""
        if price.walks > 1:
            again = sum(self.read_once[name] for name in self.rewalked)
            price.rewalked_bytes = (price.walks - 1) * again
            price.read_bytes += price.rewalked_bytes

    def _blocks(self, counts: dict[str, int]) -> int:
        """R6. How an op of unknown kind runs is not known: its grid is taken to cover the SMs."""
        return (self.device.sm_count or 1) if self.is_opaque else prod(counts.values())

    def _work(self, price: Price, regions: Regions, counts: dict[str, int]) -> None:
        flops = price.flops
        special, extra = 0.0, self.nest.again
        for work in self._work_of:
            again = work.times_computed(regions[work.position], price.tiles, counts)
            if price.walks > 1 and work.position in self.cone:
                again *= price.walks
            if work.flops:
                flops[work.pipe] = flops.get(work.pipe, 0.0) + work.flops * again
            once = work.special_ops - work.saved if price.walks == 1 else work.special_ops
            special += once * again
            if again != 1.0:
                extra += (work.flops + once) * (again - 1)
        price.special_ops, price.extra_flops = special, extra

    def _padding(self, regions: Regions) -> Padding:
        generated = library = 0.0
        total = sum([self.nest.ops[i].points for i, _, _ in self.contractions])
        tiles = self.footprint.products.sides(regions, SHALLOW.step_bytes)
        for (i, _, _), (rows, columns) in zip(self.contractions, tiles, strict=True):
            each = self.nest.ops[i].points / (rows * columns * total)
            generated += each * side_of(rows) * side_of(columns)
            library += each * library_tile(rows, columns)
        return Padding(generated, library)

    @cached_property
    def _pipes(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for i, op in self.nest.ops.items():
            dtype = self.tensors[op.reads[0].tensor].dtype if op.reads else "fp32"
            found[i] = f"matrix:{dtype}" if op.is_contraction or op.is_opaque else f"lanes:{dtype}"
        return found

    def _rescale(self, price: Price) -> None:
        """Work of multiplying the sums of an online tensor once a step of their loop, by one
        exponential a row and step, and of dividing them at the end."""
        for i in self.nest.rescaled:
            op = self.nest.ops[i]
            steps = -(-prod(op.sizes[name] for name in op.reduces) // LOOP_POINTS)
            work = float(op.output_points * steps)
            price.flops["lanes:fp32"] = price.flops.get("lanes:fp32", 0.0) + work
            price.rescale_flops += work
            price.special_ops += op.output_points
        for op in self.nest.ops.values() if self.nest.rescaled else ():
            if op.combine == "max_sumexp":
                depth = prod(op.sizes[name] for name in op.reduces)
                price.special_ops += op.output_points * -(-depth // LOOP_POINTS)

    @cached_property
    def _reduced(self) -> list[tuple[Op, list[str]]]:
        """Ops with reduced axes that the grid may tile, and these axes."""
        tiled = self.nest.split_axes.intersection(self.nest.open_axes)
        ops = [
            op for op in self.nest.ops.values() if op.combine and not tiled.isdisjoint(op.reduces)
        ]
        return [(op, [name for name in op.reduces if name in tiled]) for op in ops]

    def _partials(self, price: Price, counts: dict[str, int], merge: Merge) -> None:
        """R3: a reduced axis on the grid makes parts, written and read by whoever merges them.

        The result's own bytes are in `write_bytes`, and in its reader's traffic, already.
        """
        for op, reduced in self._reduced:
            parts = prod([counts[name] for name in reduced])
            if parts <= 1:
                continue
            results = [self.tensors[write.tensor] for write in op.writes]
            written = parts * sum(t.elements for t in results) * ACCUMULATOR_BYTES
            own = sum(t.bytes for t in results if t.name in self.nest.outputs)
            leaves = any(t.role == "output" for t in results)
            if not leaves and written <= FOLD_SHARE * (price.read_bytes + price.write_bytes):
                price.partial_bytes += 2 * max(0, written - own)
                price.merge = price.merge or "readers"
            else:
                price.partial_bytes += 2 * written
                price.merge = merge
                if merge == "launch":
                    price.launches = 2
                else:
                    price.merging_blocks = max(price.merging_blocks, price.blocks // parts)
            price.parts = max(price.parts, parts)
            work = COMBINES[op.combine or "sum"].merge_flops * (parts - 1) * op.output_points
            price.flops["lanes:fp32"] = price.flops.get("lanes:fp32", 0.0) + work

    def _loaded(self, price: Price, counts: dict[str, int]) -> int:
        """Bytes that all blocks load from L2: each element once per block and walk."""
        if price.walks == 1:
            return self._loads.total(self._all_loads, price.tiles, counts)
        walks, first, again, once = self._walked
        rewalked = walks.last.total(again, price.tiles, counts)
        price.rewalked_per_block = rewalked / price.blocks
        total = walks.first.total(first, price.tiles, counts)
        total += walks.last.total(once, price.tiles, counts)
        return total + (price.walks - 1) * rewalked

    @cached_property
    def _all_loads(self) -> Grouped:
        return self._loads.grouped(self.nest.external)

    @cached_property
    def _walked(self) -> tuple[Walks, Grouped, Grouped, Grouped]:
        """Walks over what is carried, and the loads of the first, those of each further one, and
        what only the last loads."""
        walks, again = walks_of(self.nest), self.rewalked
        first, last = walks.first, walks.last
        return (
            walks,
            first.grouped(name for name in first.names if name in again or name not in last.names),
            last.grouped(again),
            last.grouped(name for name in last.names if name not in again),
        )


class Walks(NamedTuple):
    """Loads of a nest that walks what is carried again. Ops see their own regions in each walk."""

    first: TiledLoads
    last: TiledLoads

    def bytes_of(self, name: str, tiles: dict[str, int], walks: int, *, again: bool) -> int:
        """Bytes of a tensor in so many walks, which load it `again` or once."""
        first, last = (loads.bytes_of(name, tiles) for loads in self)
        return first + last * (walks - 1) if again else last or first


def walks_of(nest: Nest, at_once: int = LOOP_POINTS) -> Walks:
    """The loads of the walks before the last, where statistics are made for whoever reads them, and
    of the last."""
    first, last = earlier_walks(nest), last_walk(nest)
    return Walks(
        TiledLoads(nest, bounds_of(nest), first, at_once),
        TiledLoads(nest, bounds_of(nest, last), last, at_once),
    )


class _Work:
    """The work of an op, or of several that every schedule computes equally often, prepared for
    asking how often many schedules do it."""

    __slots__ = ("_halo", "_lacking", "flops", "pipe", "position", "saved", "special_ops")

    def __init__(self, nest: Nest, position: int, pipe: str, halo: Set[str], saved: int) -> None:
        op = nest.ops[position]
        self.position = position
        self.pipe = pipe
        self.flops = op.flops
        self.special_ops = op.special_ops
        self.saved = saved
        """Special operations that another op has computed for it, where one walk serves both."""
        self._lacking = [n for n in nest.open_axes if n not in op.sizes or n in halo]
        self._halo = [(name, size) for name, size in op.sizes.items() if size and name in halo]

    @property
    def key(self) -> object:
        """Equal for ops that a schedule computes equally often, on the same pipe."""
        return (self.pipe, *self._lacking) if not self._halo else self.position

    def add(self, other: _Work) -> None:
        """Take in the work of an op of the same key."""
        self.flops += other.flops
        self.special_ops += other.special_ops
        self.saved += other.saved

    def times_computed(
        self, region: dict[str, int], tiles: dict[str, int], counts: dict[str, int]
    ) -> float:
        """Times that the op's points are computed over all blocks (R4)."""
        again = 1.0
        for name in self._lacking:
            again *= counts[name]
        for name, size in self._halo:
            extent = region[name]
            if extent == tiles.get(name):
                again /= counts[name]
            elif extent != size:
                again *= extent / size
        return max(1.0, again)


def _never(_: Price) -> bool:
    return False


def _halos(nest: Nest, bounds: dict[int, list[Bound]]) -> dict[int, dict[str, bool]]:
    """Axes of each op that have bounds, and whether a tile of the grid drives them."""
    tiled = frozenset(nest.open_axes) - nest.split_axes
    found: dict[int, dict[str, bool]] = {}
    for i, mine in bounds.items():  # consumers first
        found[i] = {
            bound.name: any(
                found.get(consumer, _NO_HALO).get(axis, axis in tiled)
                for consumer, index, _ in bound.reads
                for axis, _ in index.terms
            )
            for bound in mine
        }
    return found


def bounds_of(nest: Nest, ops: Set[int] | None = None) -> dict[int, list[Bound]]:
    """Producers that see other extents than the tiles, consumers first.

    An axis that every consumer walks as it is tiled needs no bound. Nor has one a result that
    leaves the kernel, along an axis of which its readers inside need only a part: no block would
    make the rest, so that each makes all of it. `ops`, where
    given, are the consumers that count.
    """
    out: dict[int, list[Edge]] = {}
    linked: set[int] = set()
    for edge in nest.edges:
        if ops is not None and edge.consumer not in ops:
            continue
        out.setdefault(edge.producer, []).append(edge)
        if edge.is_linked:
            linked.add(edge.producer)
    found: dict[int, list[Bound]] = {}
    halos: dict[int, set[str]] = {}
    for i in reversed(nest.positions) if linked else ():
        edges = out.get(i, ())
        if i not in linked and not any(edge.consumer in halos for edge in edges):
            continue
        reads: dict[str, list[tuple[int, Index, int]]] = {}
        halo: set[str] = set()
        for edge in edges:
            inner = halos.get(edge.consumer, _NONE)
            for axis, index in zip(edge.tensor.axes, edge.access.index, strict=True):
                reads.setdefault(axis.name, []).append((edge.consumer, index, axis.size))
                if index.axis != axis.name or axis.name in inner:
                    halo.add(axis.name)
        if any(edge.tensor.name in nest.outputs for edge in edges):
            halo = {name for name in halo if _covers(nest, reads[name])}
        if halo:
            found[i] = [Bound(name, reads[name]) for name in reads if name in halo]
            halos[i] = halo
    return found


def _covers(nest: Nest, reads: list[tuple[int, Index, int]]) -> bool:
    """Whether the reads of one axis reach all of it together."""
    found: set[int] = set()
    for _, index, size in reads:
        if reach(index, nest.sizes, size) >= size:
            return True
        terms = tuple((range(nest.sizes[name]), stride) for name, stride in index.terms)
        found.update(coordinates(terms, index.offset, index.divisor, size))
        if len(found) >= size:
            return True
    return False


_NONE: frozenset[str] = frozenset()
_NO_HALO: dict[str, bool] = {}
