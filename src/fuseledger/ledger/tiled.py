"""Tiled traffic: the bytes that all blocks of a kernel load and store, before any cache.

A block loads each element that it needs once a loop: what it reads again in the same one (the taps
of a convolution, the other operand's tiles) is in its registers, shared memory or L1. What two
loops need (see `loops.py`) is loaded in both. Blocks share nothing: that is L2's business. Edges
count as they are, so that the sum is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import lru_cache
from math import prod
from typing import NamedTuple

from msgspec import Struct

from fuseledger.graph.axis import Index
from fuseledger.graph.tensor import DTYPE_BITS, dtype_bytes
from fuseledger.ledger.block_sums import (
    Box,
    Driver,
    Image,
    Union,
    Walk,
    block_sum,
    drivers_of,
    places,
    points_of,
    walks_of,
)
from fuseledger.ledger.digits import digits
from fuseledger.ledger.live_values import LOOP_POINTS
from fuseledger.ledger.loops import Loops, Made, Read
from fuseledger.ledger.nest import Nest
from fuseledger.ledger.points import coordinates


class Bound(Struct, frozen=True):
    """Along one axis of a producer, what its consumers need."""

    name: str
    reads: list[tuple[int, Index, int]]
    """(consumer, index by which it reads the axis, size of the axis)."""


class _LookedUp(NamedTuple):
    """A read whose place is a value: no more elements than the points of the axes behind it."""

    places: int
    """Elements along the dimensions that are looked up."""
    walks: tuple[Walk, ...]
    """Of the dimensions beside them."""
    behind: tuple[Walk, ...]
    """Of the axes behind the value and the walks."""


class _Part(NamedTuple):
    """Dimensions of which blocks share elements, and what drives them."""

    sizes: tuple[int, ...]
    boxes: tuple[Box, ...]
    looked_up: tuple[_LookedUp, ...]
    axes: tuple[str, ...]
    """Open axes, in the order of their numbers in the walks."""


class _Load(Struct, frozen=True):
    """One external tensor: what tiles do not change, and what they do."""

    dtype: str
    once: int
    """Elements along the dimensions that any tiling loads once."""
    tiled: tuple[_Part, ...]
    lacking: tuple[tuple[str, int], ...]
    """Open axes, with their sizes, whose every block loads it all again."""


class Grouped(NamedTuple):
    """Loads of some tensors, by how they depend on the tiles."""

    alike: tuple[tuple[tuple[str, ...], int], ...]
    """(open axes whose every block loads all of it again, bytes)."""
    apart: tuple[str, ...]
    """Tensors that are asked one by one."""


class _Dim(Struct, frozen=True):
    """A dimension, or a digit of one."""

    size: int
    indices: tuple[Index, ...]
    """The index of each read."""
    drivers: frozenset[str]
    """Grid axes on which depends where blocks read it."""
    differs: bool
    """Whether the reads may take other coordinates."""


class TiledLoads:
    """Loads of one nest, prepared for asking their bytes under many choices of tiles.

    `bounds` has the producers that see other extents than the tiles; `ops`, where given, those that
    run in the walk asked about. `at_once` is the most points that open no loop.
    """

    def __init__(
        self,
        nest: Nest,
        bounds: Mapping[int, list[Bound]],
        ops: Set[int] | None = None,
        at_once: int = LOOP_POINTS,
    ) -> None:
        self._nest = nest
        self._loops = Loops(nest, ops, at_once)
        self._reads = {
            name: kept
            for name, reads in nest.external.items()
            if (kept := [read for read in reads if ops is None or read[0] in ops])
        }
        self._number = {axis: k for k, axis in enumerate(nest.open_axes)}
        self._bounds = {
            (i, bound.name): bound.reads for i, found in bounds.items() for bound in found
        }
        self._walks: dict[tuple[Made, str], Walk] = {}
        self._loads = {
            name: [self._prepared(name, apart) for apart in self._loops.apart(reads)]
            for name, reads in self._reads.items()
        }

    def grouped(self, names: Iterable[str]) -> Grouped:
        """The loads of these tensors, for `total`: those that all depend on the tiles in one way
        are one sum."""
        alike: dict[tuple[str, ...], int] = {}
        apart: list[str] = []
        for name in names:
            if name not in self._loads:
                continue
            load, *others = self._loads[name]
            bits = load.once * DTYPE_BITS[load.dtype]
            if load.tiled or bits % 8 or others:
                apart.append(name)
            else:
                axes = tuple(axis for axis, _ in load.lacking)
                alike[axes] = alike.get(axes, 0) + bits // 8
        return Grouped(tuple(alike.items()), tuple(apart))

    def total(self, grouped: Grouped, tiles: Mapping[str, int], counts: Mapping[str, int]) -> int:
        """Bytes of all of them in one walk of these tiles, of so many blocks along each axis."""
        total = 0
        for axes, once in grouped.alike:
            for axis in axes:
                once *= counts[axis]
            total += once
        for name in grouped.apart:
            total += self.bytes_of(name, tiles)
        return total

    @property
    def names(self) -> Set[str]:
        """Tensors that it loads."""
        return self._loads.keys()

    def bytes_of(self, name: str, tiles: Mapping[str, int]) -> int:
        """Bytes of an external tensor that all blocks load in one walk of these tiles."""
        if name not in self._loads:
            return 0
        total = 0
        for load in self._loads[name]:
            elements = load.once
            for part in load.tiled:
                elements *= self._summed(part, tiles)
            for axis, size in load.lacking:
                elements *= -(-size // tiles[axis])
            total += dtype_bytes(load.dtype, elements)
        return total

    def _summed(self, part: _Part, tiles: Mapping[str, int]) -> int:
        """Elements along the dimensions of a part that all blocks along its axes load."""
        sizes = self._nest.sizes
        drivers = tuple([Driver(sizes[axis], tiles[axis]) for axis in part.axes])
        loaded = block_sum(part.sizes, part.boxes, drivers) if part.boxes else 0
        for read in part.looked_up:
            loaded += _looked_up_sum(read, drivers)
        return loaded

    def _prepared(self, name: str, reads: list[Read]) -> _Load:
        """What no choice of tiles changes of loads of a tensor."""
        nest, tensor = self._nest, self._nest.graph.tensors[name]
        alone = self._plain_axes(reads)
        if alone is not None:
            lacked = tuple((n, nest.sizes[n]) for n in nest.open_axes if n not in alone)
            return _Load(tensor.dtype, prod([nest.sizes[axis] for axis in alone]), (), lacked)
        once = 1
        tiled: list[_Part] = []
        lacking = dict.fromkeys(nest.open_axes)
        for dims in self._groups(name, reads):
            drivers = frozenset[str]().union(*(dim.drivers for dim in dims))
            axes = tuple(axis for axis in nest.open_axes if axis in drivers)
            for axis in axes:
                lacking.pop(axis, None)
            plain = self._plain(dims, reads)
            if plain is not None:
                once *= nest.sizes[plain]
                continue
            part = self._part(dims, reads, axes)
            if axes:
                tiled.append(part)
            else:
                once *= self._summed(part, {})
        return _Load(
            tensor.dtype, once, tuple(tiled), tuple((axis, nest.sizes[axis]) for axis in lacking)
        )

    def _plain_axes(self, reads: list[Read]) -> frozenset[str] | None:
        """The axes of the only read of a tensor, where it walks each dimension by one of them."""
        (i, access), *others = reads
        if others or None in access.plain or len(access.axes) < len(access.index):
            return None  # two dimensions by one axis: a diagonal
        axes = self._nest.graph.tensors[access.tensor].axes
        for axis, name in zip(axes, access.axes, strict=True):
            if (i.op, name) in self._bounds or self._nest.sizes[name] > axis.size:
                return None
        return frozenset(access.axes)

    def _groups(self, name: str, reads: list[Read]) -> list[list[_Dim]]:
        """The tensor's dimensions, or digits of them, in groups that no grid axis joins."""
        groups: list[tuple[list[_Dim], frozenset[str], bool]] = []
        for dim in self._dims(name, reads):
            joined, drivers, differs = [dim], dim.drivers, dim.differs
            apart: list[tuple[list[_Dim], frozenset[str], bool]] = []
            for dims, others, other_differs in groups:
                if others & drivers or (differs and other_differs):
                    joined, drivers = dims + joined, drivers | others
                    differs |= other_differs
                else:
                    apart.append((dims, others, other_differs))
            groups = [*apart, (joined, drivers, differs)]
        return [dims for dims, _, _ in groups]

    def _dims(self, name: str, reads: list[Read]) -> Iterable[_Dim]:
        for dim, axis in enumerate(self._nest.graph.tensors[name].axes):
            for size, indices in digits(
                axis.size, [access.index[dim] for _, access in reads], self._nest.sizes
            ):
                walked = list(zip([i for i, _ in reads], indices, strict=True))
                drivers = frozenset(axis for i, index in walked for axis in self._drivers(i, index))
                yield _Dim(size, indices, drivers, self._differs(walked))

    def _differs(self, walked: list[tuple[Made, Index]]) -> bool:
        """Whether the reads of one tensor may take other coordinates along a dimension."""
        first = walked[0][1]
        if any(index != first for _, index in walked):
            return True
        bounded = any((i.op, axis) in self._bounds for i, _ in walked for axis, _ in first.terms)
        return bounded and len({i for i, _ in walked}) > 1

    def _drivers(self, i: Made, index: Index) -> Iterable[str]:
        """Grid axes on which depends where op `i` reads a dimension."""
        axes = [axis for axis, _ in index.terms]
        if index.lookup is not None:
            op = self._nest.ops[i.op]
            axes += op.axes_behind(op.reads[index.lookup])
        for axis in axes:
            for k in drivers_of(self._walk(i, axis)):
                yield self._nest.open_axes[k]

    def _plain(self, dims: list[_Dim], reads: list[Read]) -> str | None:
        """The axis that all reads walk along the only dimension, where blocks share nothing along
        it: none of a halo, nor of a part of a concatenation, which ends before its axis does."""
        dim, *others = dims
        axis = dim.indices[0].axis
        if others or axis is None or self._nest.sizes[axis] > dim.size:
            return None
        if any(index.axis != axis for index in dim.indices):
            return None
        return None if any((i.op, axis) in self._bounds for i, _ in reads) else axis

    def _part(self, dims: list[_Dim], reads: list[Read], axes: tuple[str, ...]) -> _Part:
        """What the reads take of some dimensions, with the grid's axes by number."""
        number = {self._number[axis]: k for k, axis in enumerate(axes)}
        boxes: dict[Box, None] = {}
        looked_up: list[_LookedUp] = []
        for k, (i, _) in enumerate(reads):
            indices = [dim.indices[k] for dim in dims]
            if any(index.lookup is not None for index in indices):
                looked_up.append(self._lookup(i, dims, indices, number))
            else:
                boxes[
                    tuple(
                        self._image(i, index, dim.size, number)
                        for dim, index in zip(dims, indices, strict=True)
                    )
                ] = None
        return _Part(tuple(dim.size for dim in dims), tuple(boxes), tuple(looked_up), axes)

    def _lookup(
        self, i: Made, dims: list[_Dim], indices: list[Index], number: Mapping[int, int]
    ) -> _LookedUp:
        op = self._nest.ops[i.op]
        behind: dict[str, None] = {}
        places, walks = 1, list[Walk]()
        for dim, index in zip(dims, indices, strict=True):
            behind.update((axis, None) for axis, _ in index.terms)
            if index.lookup is None:
                walks.append(self._image(i, index, dim.size, number))
            else:
                behind.update((axis, None) for axis in op.axes_behind(op.reads[index.lookup]))
                places *= dim.size
        return _LookedUp(
            places, tuple(walks), tuple(_numbered(self._walk(i, axis), number) for axis in behind)
        )

    def _image(self, i: Made, index: Index, size: int, number: Mapping[int, int]) -> Walk:
        """Coordinates inside `[0, size)` that an index of op `i` takes."""
        return _numbered(self._taken(i, index, size), number)

    def _taken(self, i: Made, index: Index, size: int) -> Walk:
        """The same, with the open axes by number."""
        terms = tuple((self._walk(i, axis), stride) for axis, stride in index.terms)
        if index.axis is not None and self._nest.sizes[index.axis] <= size:
            return terms[0][0]
        if not any(drivers_of(walk) for walk, _ in terms):
            fixed = tuple((points_of(walk, ()), stride) for walk, stride in terms)
            return coordinates(fixed, index.offset, index.divisor, size)
        return Image(terms, index.offset, index.divisor, size)

    def _walk(self, i: Made, axis: str) -> Walk:
        """Where op `i` is along an axis: in a tile of it, all over it, or where it is read."""
        found = self._walks.get((i, axis))
        if found is None:
            found = self._walks[i, axis] = self._walked(i, axis)
        return found

    def _walked(self, i: Made, axis: str) -> Walk:
        reads = self._bounds.get((i.op, axis))
        size = self._nest.sizes[axis]
        if reads is None:
            number = self._number.get(axis)
            return range(size) if number is None else number
        found: dict[Walk, None] = {}
        for consumer, index, _ in reads:
            for reader in self._loops.readers(i, consumer):
                found.update(dict.fromkeys(walks_of(self._taken(reader, index, size))))
        if range(size) in found:
            return range(size)
        first, *others = found
        return Union(tuple(found)) if others else first


def _numbered(walk: Walk, number: Mapping[int, int]) -> Walk:
    """A walk with other numbers for its drivers."""
    if isinstance(walk, int):
        return number[walk]
    if isinstance(walk, Image):
        terms = tuple((_numbered(inner, number), stride) for inner, stride in walk.terms)
        return walk._replace(terms=terms)
    if isinstance(walk, Union):
        return Union(tuple(_numbered(inner, number) for inner in walk.walks))
    return walk


@lru_cache(maxsize=1 << 12)
def _looked_up_sum(read: _LookedUp, drivers: tuple[Driver, ...]) -> int:
    """Σ over blocks of the elements that a lookup touches. One block stands for all between the
    first and the last of an axis: tiles differ in their ragged ends alone."""
    total = 0
    for at, weight in places(range(len(drivers)), drivers, most=0):
        taken = read.places * prod([len(points_of(walk, at)) for walk in read.walks])
        total += weight * min(taken, prod([len(points_of(walk, at)) for walk in read.behind]))
    return total
