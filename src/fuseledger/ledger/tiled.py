"""Tiled traffic: the bytes that all blocks of a kernel load and store, before any cache.

A block loads each element that it needs once a walk: what it reads again in the same walk (the taps
of a convolution, the other operand's tiles) is in its registers, shared memory or L1. Blocks share
nothing: that is L2's business. Edges count as they are, so that the sum is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from msgspec import Struct

from fuseledger.graph.axis import Index
from fuseledger.graph.op import Access
from fuseledger.graph.tensor import DTYPE_BITS, dtype_bytes
from fuseledger.ledger.nest import Nest

Points = frozenset[int] | range
"""Coordinates along one axis or dimension."""

POSITIONS_MAX = 1 << 12
"""Blocks along one window beyond which edges are no longer looked at one by one."""
POINTS_MAX = 1 << 12
"""Coordinates of one read in one block beyond which their number counts, not which they are."""
FEW_POINTS = 64
"""Coordinates of one read in one block up to which plain loops are quicker than arrays."""
BOXES_MAX = 8
"""Reads of one tensor by different maps beyond which the largest stands for their union."""


class Bound(Struct, frozen=True):
    """Along one axis of a producer, what its consumers need."""

    name: str
    reads: list[tuple[int, Index, int]]
    """(consumer, index by which it reads the axis, size of the axis)."""


class _Load(Struct, frozen=True):
    """One external tensor: what tiles do not change, and what they do."""

    dtype: str
    once: int
    """Elements along the dimensions that any tiling loads once."""
    tiled: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]
    """(dimensions, open axes that drive them) where blocks share elements."""
    lacking: tuple[tuple[str, int], ...]
    """Open axes, with their sizes, whose every block loads it all again."""


class Grouped(NamedTuple):
    """Loads of some tensors, by how they depend on the tiles."""

    alike: tuple[tuple[tuple[str, ...], int], ...]
    """(open axes whose every block loads all of it again, bytes)."""
    apart: tuple[str, ...]
    """Tensors that are asked one by one."""


class TiledLoads:
    """Loads of one nest, prepared for asking their bytes under many choices of tiles.

    `bounds` has the producers that see other extents than the tiles.
    """

    def __init__(self, nest: Nest, bounds: Mapping[int, list[Bound]]) -> None:
        self._nest = nest
        self._bounds = {
            (i, bound.name): bound.reads for i, found in bounds.items() for bound in found
        }
        self._known: dict[tuple[object, ...], int] = {}
        self._loads = {name: self._prepared(name) for name in nest.external}

    def grouped(self, names: Iterable[str]) -> Grouped:
        """The loads of these tensors, for `total`: those that all depend on the tiles in one way
        are one sum."""
        alike: dict[tuple[str, ...], int] = {}
        apart: list[str] = []
        for name in names:
            load = self._loads[name]
            bits = load.once * DTYPE_BITS[load.dtype]
            if load.tiled or bits % 8:
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

    def bytes_of(self, name: str, tiles: Mapping[str, int]) -> int:
        """Bytes of an external tensor that all blocks load in one walk of these tiles."""
        load = self._loads[name]
        elements = load.once
        for dims, axes in load.tiled:
            key = (name, dims, *[tiles[axis] for axis in axes])
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._summed(name, dims, axes, tiles)
            elements *= found
        for axis, size in load.lacking:
            elements *= -(-size // tiles[axis])
        return dtype_bytes(load.dtype, elements)

    def _prepared(self, name: str) -> _Load:
        """What no choice of tiles changes of a tensor's loads."""
        nest = self._nest
        plain_axes = self._plain_axes(nest.external[name])
        if plain_axes is not None:
            return _Load(
                nest.graph.tensors[name].dtype,
                prod([nest.sizes[axis] for axis in plain_axes]),
                (),
                tuple((n, nest.sizes[n]) for n in nest.open_axes if n not in plain_axes),
            )
        once = 1
        tiled: list[tuple[tuple[int, ...], tuple[str, ...]]] = []
        lacking = dict.fromkeys(nest.open_axes)
        for dims, drivers in self._dims(name, nest.external[name]):
            axes = tuple(axis for axis in nest.open_axes if axis in drivers)
            for axis in axes:
                lacking.pop(axis, None)
            plain = self._plain(name, dims)
            if plain is not None:
                once *= nest.sizes[plain]
            elif not axes:
                once *= self._in_block(name, dims, {}, {})
            else:
                tiled.append((dims, axes))
        return _Load(
            nest.graph.tensors[name].dtype, once, tuple(tiled),
            tuple((axis, nest.sizes[axis]) for axis in lacking),
        )  # fmt: skip

    def _plain_axes(self, reads: list[tuple[int, Access]]) -> frozenset[str] | None:
        """The axes of the only read of a tensor, where it walks each dimension by one of them."""
        (i, access), *others = reads
        if others:
            return None
        axes = [self._plain_axis(i, access, dim) for dim in range(len(access.index))]
        found = frozenset(axis for axis in axes if axis is not None)
        return found if len(found) == len(axes) else None

    def _plain_axis(self, i: int, access: Access, dim: int) -> str | None:
        """The axis by which op `i` walks a dimension, where blocks share nothing along it: none
        of a halo, nor of a part of a concatenation, which ends before its axis does."""
        axis = access.index[dim].axis
        if axis is None or (i, axis) in self._bounds:
            return None
        size = self._nest.graph.tensors[access.tensor].axes[dim].size
        return axis if self._nest.sizes[axis] <= size else None

    def _dims(
        self, name: str, reads: list[tuple[int, Access]]
    ) -> list[tuple[tuple[int, ...], frozenset[str]]]:
        """The tensor's dimensions in groups that no grid axis joins, with their grid axes."""
        groups: list[tuple[tuple[int, ...], frozenset[str], bool]] = []
        for dim in range(len(reads[0][1].index)):
            drivers = frozenset(
                axis for i, access in reads for axis in self._drivers(i, access, dim)
            )
            joined, differs = (dim,), self._differs(reads, dim)
            apart: list[tuple[tuple[int, ...], frozenset[str], bool]] = []
            for dims, others, other_differs in groups:
                if others & drivers or (differs and other_differs):
                    joined, drivers = dims + joined, drivers | others
                    differs |= other_differs
                else:
                    apart.append((dims, others, other_differs))
            groups = [*apart, (joined, drivers, differs)]
        return [(dims, drivers) for dims, drivers, _ in groups]

    def _differs(self, reads: list[tuple[int, Access]], dim: int) -> bool:
        """Whether the reads of one tensor may take other coordinates along a dimension."""
        first = reads[0][1].index[dim]
        if any(access.index[dim] != first for _, access in reads):
            return True
        bounded = any((i, axis) in self._bounds for i, _ in reads for axis, _ in first.terms)
        return bounded and len({i for i, _ in reads}) > 1

    def _drivers(self, i: int, access: Access, dim: int) -> Iterable[str]:
        """Grid axes on which depends where op `i` reads a dimension."""
        index = access.index[dim]
        if index.lookup is not None:
            op = self._nest.ops[i]
            yield from self._op_drivers(i, op.axes_behind(op.reads[index.lookup]))
        yield from self._op_drivers(i, [axis for axis, _ in index.terms])

    def _op_drivers(self, i: int, axes: Iterable[str]) -> Iterable[str]:
        for axis in axes:
            reads = self._bounds.get((i, axis))
            if reads is None:
                if axis in self._nest.open_axes:
                    yield axis
                continue
            for consumer, index, _ in reads:
                yield from self._op_drivers(consumer, [name for name, _ in index.terms])

    def _summed(
        self, name: str, dims: tuple[int, ...], axes: tuple[str, ...], tiles: Mapping[str, int]
    ) -> int:
        """Σ over the blocks along `axes` of the elements that each loads along `dims`.

        Where a tile follows from several reads or from producers' halos, and an axis has more than
        three blocks, one inside stands for all but the first and the last.
        """
        sizes = self._nest.sizes
        window = self._window(name, dims, tiles)
        if window is not None:
            return _window_sum(*window)
        total = 0
        for where in product(*(_blocks(-(-sizes[axis] // tiles[axis])) for axis in axes)):
            at = {axis: block for axis, (block, _) in zip(axes, where, strict=True)}
            total += prod(weight for _, weight in where) * self._in_block(name, dims, at, tiles)
        return total

    def _window(
        self, name: str, dims: tuple[int, ...], tiles: Mapping[str, int]
    ) -> tuple[tuple[tuple[int, int, int], ...], int, int, int] | None:
        """A single affine read along one dimension, in numbers: see `_window_sum`."""
        reads = self._nest.external[name]
        dim, *others = dims
        if others or len({access.index[dim] for _, access in reads}) > 1:
            return None
        index, sizes = reads[0][1].index[dim], self._nest.sizes
        if index.lookup is not None:
            return None
        if any((i, axis) in self._bounds for i, _ in reads for axis, _ in index.terms):
            return None
        terms = tuple((step, sizes[n], tiles.get(n, sizes[n])) for n, step in index.terms)
        size = self._nest.graph.tensors[name].axes[dim].size
        return terms, index.offset, index.divisor, size

    def _plain(self, name: str, dims: tuple[int, ...]) -> str | None:
        """The axis that all reads walk along the only dimension, if it is tiled as it is."""
        dim, *others = dims
        if others:
            return None
        axes = {self._plain_axis(i, access, dim) for i, access in self._nest.external[name]}
        return axes.pop() if len(axes) == 1 else None

    def _in_block(
        self, name: str, dims: tuple[int, ...], where: Mapping[str, int], tiles: Mapping[str, int]
    ) -> int:
        """Elements along `dims` that one block loads: the union over the tensor's reads, and beside
        it what is looked up by value."""
        boxes: list[tuple[Points, ...]] = []
        looked_up = 0
        tensor = self._nest.graph.tensors[name]
        for i, access in self._nest.external[name]:
            if any(access.index[dim].lookup is not None for dim in dims):
                looked_up += self._looked_up(i, access, dims, where, tiles)
                continue
            box = tuple(
                self._coordinates(i, access.index[dim], tensor.axes[dim].size, where, tiles)
                for dim in dims
            )
            if box not in boxes:
                boxes.append(box)
        return looked_up + (_union(tuple(boxes)) if boxes else 0)

    def _looked_up(
        self, i: int, access: Access, dims: tuple[int, ...], where: Mapping[str, int],
        tiles: Mapping[str, int],
    ) -> int:  # fmt: skip
        """Elements along `dims` that a lookup touches in one block: no more than the points of the
        axes behind it."""
        op, tensor = self._nest.ops[i], self._nest.graph.tensors[access.tensor]
        behind: set[str] = set()
        places = 1
        for dim in dims:
            size, index = tensor.axes[dim].size, access.index[dim]
            behind.update(name for name, _ in index.terms)
            if index.lookup is None:
                places *= len(self._coordinates(i, index, size, where, tiles))
            else:
                behind |= op.axes_behind(op.reads[index.lookup])
                places *= size
        return min(places, prod(len(self._walked(i, axis, where, tiles)) for axis in behind))

    def _walked(
        self, i: int, axis: str, where: Mapping[str, int], tiles: Mapping[str, int]
    ) -> Points:
        """Where op `i` is along an axis in one block."""
        reads = self._bounds.get((i, axis))
        size = self._nest.sizes[axis]
        if reads is None:
            if axis not in where:
                return range(size)
            tile = tiles[axis]
            return range(where[axis] * tile, min(size, (where[axis] + 1) * tile))
        found: Points = range(0)
        for consumer, index, _ in reads:
            more = self._coordinates(consumer, index, size, where, tiles)
            found = more if not found or found == more else frozenset(found) | frozenset(more)
        return found

    def _coordinates(
        self, i: int, index: Index, size: int, where: Mapping[str, int], tiles: Mapping[str, int]
    ) -> Points:
        """Coordinates inside `[0, size)` that an index of op `i` takes in one block."""
        walked = tuple(
            (self._walked(i, axis, where, tiles), stride) for axis, stride in index.terms
        )
        return coordinates(walked, index.offset, index.divisor, size)


def _blocks(count: int) -> list[tuple[int, int]]:
    """(block, how many it stands for) along one axis: first, last, and one for all between."""
    if count <= 3:
        return [(block, 1) for block in range(count)]
    return [(0, 1), (count // 2, count - 2), (count - 1, 1)]


@lru_cache(maxsize=1 << 14)
def _window_sum(
    terms: tuple[tuple[int, int, int], ...], offset: int, divisor: int, size: int
) -> int:
    """Σ over blocks of the coordinates that each takes: terms are (stride, size, tile)."""
    if divisor == 1 and _is_inside(terms, offset, size):
        return _unclipped_sum(terms)
    counts = [-(-extent // tile) for _, extent, tile in terms]
    blocks = prod(counts)
    walk = (
        product(*map(range, counts))
        if blocks <= POSITIONS_MAX
        else [[min(1, c - 1) for c in counts]]
    )
    total = 0
    for where in walk:
        ranges = tuple(
            (range(at * tile, min(extent, (at + 1) * tile)), stride)
            for at, (stride, extent, tile) in zip(where, terms, strict=True)
        )
        total += len(coordinates(ranges, offset, divisor, size))
    return total if blocks <= POSITIONS_MAX else total * blocks


def _is_inside(terms: tuple[tuple[int, int, int], ...], offset: int, size: int) -> bool:
    """Whether no point of the walk leaves the tensor."""
    ends = [stride * (extent - 1) for stride, extent, _ in terms]
    low = offset + sum(min(0, end) for end in ends)
    return low >= 0 and offset + sum(max(0, end) for end in ends) < size


def _unclipped_sum(terms: tuple[tuple[int, int, int], ...]) -> int:
    """The same where no point leaves the tensor: blocks differ in their ragged ends alone."""
    total = 0
    for ends in product(*(_lengths(extent, tile) for _, extent, tile in terms)):
        steps = [(abs(stride), n) for (n, _), (stride, _, _) in zip(ends, terms, strict=True)]
        total += prod(blocks for _, blocks in ends) * _distinct(steps)
    return total


def _lengths(extent: int, tile: int) -> list[tuple[int, int]]:
    """(points, how many blocks have so many) along one axis."""
    full, rest = divmod(extent, tile) if tile else (0, 0)
    return [(points, blocks) for points, blocks in ((tile, full), (rest, 1)) if points and blocks]


def _distinct(steps: list[tuple[int, int]]) -> int:
    """Values of Σ stride·i, i < n, of (stride, n).

    Strides in ascending order fill a range, or leave gaps that nothing falls into twice; where
    neither holds the points are walked.
    """
    count, reach = 1, 0
    for stride, n in sorted(step for step in steps if step[1] > 1):
        if count == reach + 1 and stride <= count:
            reach += stride * (n - 1)
            count = reach + 1
        elif stride > reach:
            reach += stride * (n - 1)
            count *= n
        else:
            walked = tuple((range(n), stride) for stride, n in steps)
            return len(coordinates(walked, 0, 1, sum(s * (n - 1) for s, n in steps) + 1))
    return count


@lru_cache(maxsize=1 << 12)
def coordinates(
    terms: tuple[tuple[Points, int], ...], offset: int, divisor: int, size: int
) -> Points:
    """Values of (Σ stride·point + offset) / divisor that are whole and inside `[0, size)`."""
    if any(not points for points, _ in terms):
        return range(0)
    low = high = offset
    filled = 0  # all steps below it are taken
    for points, stride in sorted(terms, key=lambda term: abs(term[1])):
        if not isinstance(points, range) or (len(points) > 1 and abs(stride) > filled + 1):
            break
        ends = (stride * points[0], stride * points[-1])
        low, high = low + min(ends), high + max(ends)
        filled += abs(stride) * (len(points) - 1)
    else:
        return range(max(0, -(-low // divisor)), min(size - 1, high // divisor) + 1)
    count = prod(len(points) for points, _ in terms)
    if count > POINTS_MAX:
        low, high = _span(terms, offset)
        first, last = max(0, -(-low // divisor)), min(size - 1, high // divisor)
        return range(first, min(last + 1, first + count))
    if count > FEW_POINTS:
        return _many_coordinates(terms, offset, divisor, size)
    sums = [offset]
    for points, stride in terms:
        sums = [value + stride * point for value in sums for point in points]
    return frozenset([v // divisor for v in sums if v % divisor == 0 and 0 <= v // divisor < size])


def _many_coordinates(
    terms: tuple[tuple[Points, int], ...], offset: int, divisor: int, size: int
) -> frozenset[int]:
    import numpy as np  # slow to import, and few kernels walk so many points

    sums = np.array([offset])
    for points, stride in terms:
        steps = stride * np.fromiter(points, np.int64, len(points))
        sums = np.add.outer(sums, steps).ravel()
    whole = sums[sums % divisor == 0] // divisor
    return frozenset(whole[(whole >= 0) & (whole < size)].tolist())


def _span(terms: tuple[tuple[Points, int], ...], offset: int) -> tuple[int, int]:
    """Least and greatest value of offset + Σ stride·point."""
    ends = [(stride * min(points), stride * max(points)) for points, stride in terms]
    return offset + sum(map(min, ends)), offset + sum(map(max, ends))


@lru_cache(maxsize=1 << 12)
def _union(boxes: tuple[tuple[Points, ...], ...]) -> int:
    """Elements of a union of boxes, by inclusion and exclusion."""
    if len(boxes) == 1:
        return prod(map(len, boxes[0]))
    if len(boxes) > BOXES_MAX:
        return max(prod(map(len, box)) for box in boxes)
    first = [(k, tuple(map(frozenset, box))) for k, box in enumerate(boxes)]
    meeting, total, sign = first, 0, 1
    while meeting:
        total += sign * sum(prod(map(len, box)) for _, box in meeting)
        sign = -sign
        meeting = [
            (j, shared)
            for k, box in meeting
            for j, other in first[k + 1 :]
            if (shared := _shared(box, other)) is not None
        ]
    return total


def _shared(
    one: tuple[frozenset[int], ...], other: tuple[frozenset[int], ...]
) -> tuple[frozenset[int], ...] | None:
    """What two boxes share, or None where they do not meet."""
    found: list[frozenset[int]] = []
    for a, b in zip(one, other, strict=True):
        side = a & b
        if not side:
            return None
        found.append(side)
    return tuple(found)
