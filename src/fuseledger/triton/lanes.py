"""What becomes of a kernel's axes in code: blocks of the grid, lanes of a tile, loops.

A *group* is a set of axes that one vector of lanes walks together. A kernel's values are tiles of
at most two places (rows and columns); a group takes one place, or none where it is a scalar.
"""

from __future__ import annotations

from math import prod

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.ledger.kernel import Schedule
from fuseledger.ledger.nest import Edge, Nest
from fuseledger.triton.partials import split_tile

MATRIX_LEAST = 16
"""Fewest lanes along any side of a matrix product."""


class Group(Struct, frozen=True):
    """Axes walked by one vector of lanes: (axis, elements of it in a block)."""

    name: str
    extents: tuple[tuple[str, int], ...]
    least: int = 1
    block: int | None = None
    """Lanes of a group that a loop walks; None: all points at once."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, outermost first."""
        return tuple(name for name, _ in self.extents)

    @property
    def points(self) -> int:
        """Points that the lanes stand for."""
        return prod(extent for _, extent in self.extents)

    @property
    def lanes(self) -> int:
        """Lanes: the points, up to a power of two."""
        return self.block or max(self.least, 1 << (self.points - 1).bit_length())


class Layout(Struct, frozen=True, kw_only=True):
    """Where every axis of a kernel goes."""

    tiles: dict[str, int]
    """Grid axes and the elements of them in one block."""
    rows: Group | None
    columns: Group | None
    rank: int
    """Places of the kernel's tiles: 1 or 2."""
    split: tuple[str, ...] = ()
    """Reduced axes on the grid: a block walks its part of them."""
    batch: tuple[str, ...] = ()
    """Axes of both operands of a matrix product: a block takes its tile of them one by one."""

    def blocks(self, sizes: dict[str, int]) -> int:
        """Blocks of the grid."""
        return prod(-(-sizes[name] // tile) for name, tile in self.tiles.items())


def lay_out(nest: Nest, schedule: Schedule) -> Layout:
    """The layout of one part of a kernel (see `components`) under its schedule."""
    tiles = {
        name: axis.tile
        for name, axis in schedule.axes
        if axis.treatment == "grid" and name in nest.open_axes
    }
    parts = {
        name: split_tile(nest.sizes[name], axis.tile)
        for name, axis in schedule.axes
        if axis.treatment == "split" and name in nest.open_axes
    }
    found = _places(nest, tiles)
    return replace(found, tiles=tiles | parts, split=tuple(parts))


def _places(nest: Nest, tiles: dict[str, int]) -> Layout:
    contractions = [op for op in nest.ops.values() if op.is_contraction]
    inner = [n for n, size in nest.sizes.items() if size > 1 and n not in tiles]
    lanes = [name for name, tile in tiles.items() if tile > 1]
    if contractions:
        return _matrix_layout(nest, tiles, lanes)
    if inner or len(lanes) <= 1:
        rows = Group("rows", tuple((name, tiles[name]) for name in lanes)) if lanes else None
        return Layout(tiles=tiles, rows=rows, columns=None, rank=2 if inner and rows else 1)
    last = _contiguous(nest, lanes)
    rows = Group("rows", tuple((name, tiles[name]) for name in lanes if name != last))
    columns = Group("columns", ((last, tiles[last]),))
    return Layout(tiles=tiles, rows=rows, columns=columns, rank=2)


def _contiguous(nest: Nest, lanes: list[str]) -> str:
    """The lane axis that is innermost in the first output."""
    for name in nest.outputs:
        for axis in reversed(nest.graph.tensors[name].axis_names):
            if axis in lanes:
                return axis
    return lanes[-1]


def _matrix_layout(nest: Nest, tiles: dict[str, int], lanes: list[str]) -> Layout:
    """Rows are what the left operands alone have, columns what the right ones have.

    An axis that both have is taken point by point: a matrix product has no third side.
    """

    def work(i: int) -> int:
        return nest.ops[i].flops

    side: dict[str, str] = {}
    lanes_of = _lanes_of(nest)
    batch: set[str] = set()
    contractions = sorted((i for i in nest.positions if nest.ops[i].is_contraction), key=work)
    for i in reversed(contractions):  # the largest decides
        op = nest.ops[i]
        left, right = (
            {name for axis in read.axes for name in lanes_of[i].get(axis, ())}
            for read in op.reads[:2]
        )
        kept = {name for axis in op.kept for name in lanes_of[i].get(axis, ())}
        own = [name for name in lanes if name in kept]
        batch |= {name for name in own if name in left and name in right}
        turned = any(
            side.get(name) == ("columns" if name in left else "rows")
            for name in own
            if name not in batch
        )
        for name in own:
            if name not in batch:
                is_row = (name in left) != turned
                side.setdefault(name, "rows" if is_row else "columns")
    apart = [name for name in lanes if name not in batch]
    rows = tuple((n, tiles[n]) for n in apart if side.get(n, "rows") == "rows")
    columns = tuple((n, tiles[n]) for n in apart if side.get(n) == "columns")
    return Layout(
        tiles=tiles,
        rows=Group("rows", rows, MATRIX_LEAST) if rows else None,
        columns=Group("columns", columns, MATRIX_LEAST) if columns else None,
        rank=2,
        batch=tuple(name for name in lanes if name in batch),
    )


def _lanes_of(nest: Nest) -> dict[int, dict[str, set[str]]]:
    """Op → its axis → the axes of what the kernel stores that walk it: the axis itself where its
    results are stored, and whatever its readers walk by it, through windows and slices."""
    found: dict[int, dict[str, set[str]]] = {}
    read_by: dict[int, list[Edge]] = {}
    for edge in nest.edges:
        read_by.setdefault(edge.producer, []).append(edge)
    for i in reversed(nest.positions):
        op = nest.ops[i]
        mine = found[i] = {name: set[str]() for name in op.sizes}
        if i not in read_by or any(write.tensor in nest.outputs for write in op.writes):
            mine |= {name: {name} for name in op.sizes}
        for edge in read_by.get(i, ()):
            write = next(each for each in op.writes if each.tensor == edge.tensor.name)
            for axis, index in zip(write.plain, edge.access.index, strict=True):
                if axis is not None:
                    for name, _ in index.terms:
                        mine[axis] |= found[edge.consumer].get(name, set())
    return found
