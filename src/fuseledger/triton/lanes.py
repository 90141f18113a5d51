"""What becomes of a kernel's axes in code: blocks of the grid, lanes of a tile, loops.

A *group* is a set of axes that one vector of lanes walks together. A kernel's values are tiles of
at most two places (rows and columns); a group takes one place, or none where it is a scalar.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.graph.op import Op
from fuseledger.ledger.kernel import Schedule
from fuseledger.ledger.nest import Edge, Nest
from fuseledger.triton.partials import MERGED, split_tile

MATRIX_LEAST = 16
"""Fewest lanes along any side of a matrix product."""
LANES_MOST = 1 << 15
"""Elements of a tile of products with axes held in lanes: half the registers of an SM. Beyond them
these axes are walked."""


Held = tuple[tuple[str, ...], ...]
"""Axes held in lanes, together those that the same reductions take."""


class Group(Struct, frozen=True):
    """Axes walked by one vector of lanes: (axis, elements of it in a block)."""

    name: str
    extents: tuple[tuple[str, int], ...]
    least: int = 1
    block: int | None = None
    """Lanes of a group that a loop walks; None: all points at once."""
    held: Held = ()
    """Axes, innermost, that the block holds whole and reduces in lanes, together those that the
    same reductions take: they span a power of two of lanes, a part that a reshape can name."""

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
        return self.block or max(self.least, _power(self.outer_points) * self.segment)

    @property
    def is_step(self) -> bool:
        """Whether the lanes are a step of a loop."""
        return self.lanes < self.points

    @property
    def outer_points(self) -> int:
        """Points along the axes that are not held."""
        return prod(extent for name, extent in self.extents if self.part(name) is None)

    @property
    def segment(self) -> int:
        """Lanes of the axes that are held, for one point of the others."""
        return prod(self.span(part) for part in self.held)

    def part(self, axis: str) -> tuple[str, ...] | None:
        """The held axes that an axis is one of."""
        return next((part for part in self.held if axis in part), None)

    def span(self, part: tuple[str, ...]) -> int:
        """Lanes of held axes together."""
        extents = dict(self.extents)
        return _power(prod(extents[name] for name in part))

    def stride(self, axis: str) -> int:
        """Lanes between neighbours along an axis."""
        extents, part = dict(self.extents), self.part(axis)
        if part is None:
            after = self.axes[self.axes.index(axis) + 1 :]
            return self.segment * prod(extents[n] for n in after if self.part(n) is None)
        return self.part_stride(part) * prod(extents[n] for n in part[part.index(axis) + 1 :])

    def part_stride(self, part: tuple[str, ...]) -> int:
        """Lanes between neighbours along held axes taken together."""
        return prod(self.span(after) for after in self.held[self.held.index(part) + 1 :])


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
    block_rows: tuple[str, ...] = ()
    """Grid axes of a matrix product's rows: blocks apart along them share its right operand."""
    block_columns: tuple[str, ...] = ()
    """Grid axes of its columns."""

    def has_lanes(self, axis: str) -> bool:
        """Whether an axis is on lanes of the block's tile."""
        return any(group is not None and axis in group.axes for group in (self.rows, self.columns))

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
    whole = frozenset(name for name, axis in schedule.axes if axis.treatment == "whole")
    at_once = frozenset(
        name
        for name, axis in schedule.axes
        if axis.treatment == "loop" and name not in parts and axis.tile >= nest.sizes.get(name, 0)
    )
    found = _places(nest, tiles, whole, at_once)
    return replace(found, tiles=tiles | parts, split=tuple(parts))


def _places(
    nest: Nest, tiles: dict[str, int], whole: frozenset[str], at_once: frozenset[str]
) -> Layout:
    lanes = [name for name, tile in tiles.items() if tile > 1]
    parts = _held_in_lanes(nest, whole, at_once)
    held = [name for part in parts for name in part]
    if any(op.is_contraction for op in nest.ops.values()):
        found = _matrix_layout(nest, tiles, lanes, parts)
        fits = prod(group.lanes for group in (found.rows, found.columns) if group is not None)
        return found if fits <= LANES_MOST else _matrix_layout(nest, tiles, lanes, ())
    inner = [n for n, size in nest.sizes.items() if size > 1 and n not in tiles and n not in held]
    if not inner and len(lanes) + len(held) > 1:
        lanes = [*lanes, *held]
        last = _contiguous(nest, lanes)
        rows = _group("rows", nest, tiles, [name for name in lanes if name != last], parts)
        columns = _group("columns", nest, tiles, [last], parts)
        return Layout(tiles=tiles, rows=rows, columns=columns, rank=2)
    beside = _beside_reductions(nest, lanes)
    rows = _group("rows", nest, tiles, [*(n for n in lanes if n not in beside), *held], parts)
    columns = _group("columns", nest, tiles, beside, ())
    return Layout(tiles=tiles, rows=rows, columns=columns, rank=2 if inner and rows else 1)


def _group(
    name: str, nest: Nest, tiles: dict[str, int], axes: Sequence[str], held: Held, least: int = 1
) -> Group | None:
    """The group of these axes, those that are held innermost; None of none."""
    parts = tuple(part for part in held if part[0] in axes)
    mine = [axis for part in parts for axis in part]
    extents = [(n, tiles[n]) for n in axes if n not in mine] + [(n, nest.sizes[n]) for n in mine]
    return Group(name, tuple(extents), least, held=parts) if extents else None


def _held_in_lanes(nest: Nest, whole: frozenset[str], at_once: frozenset[str]) -> Held:
    """Axes held whole that lanes of the tile stand for, together those that the same reductions
    take.

    Where a kernel has matrix products, all of these keep them, on one side. Where it has none, one
    reduction along other held axes keeps them and another reduces them: both work on one tile. So
    do reductions along an axis that a loop takes `at_once`, made of others that keep it: a loop
    along it would make these again at each point of what they reduce.
    """
    reductions = [op for op in nest.ops.values() if op.combine is not None]
    products = [op for op in reductions if op.is_contraction]
    others = [op for op in reductions if not op.is_contraction]
    if any(op.scans or op.combine not in MERGED for op in others):
        return ()
    found: dict[object, list[str]] = {}
    for name, size in nest.sizes.items():
        reducers = tuple(k for k, op in enumerate(others) if name in op.reduces)
        if name in at_once and not products and _is_reduced_late(nest, name, whole):
            found.setdefault(reducers, []).append(name)
        if name not in whole or size == 1 or name in nest.open_axes or not reducers:
            continue
        if products and all(_is_one_sided(op, name) for op in products):
            sides = tuple(name in op.reads[0].axes for op in products)
            found.setdefault((reducers, sides), []).append(name)
        elif not products and any(name in op.kept and op.reduces & whole for op in others):
            found.setdefault(reducers, []).append(name)
    return tuple(map(tuple, found.values()))


def _is_reduced_late(nest: Nest, axis: str, whole: frozenset[str]) -> bool:
    """Whether a reduction along an axis is made of one that keeps it, and reduces axes that the
    other keeps and nobody holds."""
    above: dict[int, set[int]] = {i: set() for i in nest.positions}
    for edge in nest.edges:  # producers first
        above[edge.consumer] |= above[edge.producer] | {edge.producer}
    ops = nest.ops
    return any(
        axis in op.reduces
        and any(ops[j].reduces & set(op.kept) - whole and axis in ops[j].kept for j in above[i])
        for i, op in ops.items()
    )


def _is_one_sided(op: Op, axis: str) -> bool:
    return axis in op.kept and (axis in op.reads[0].axes) != (axis in op.reads[1].axes)


def _beside_reductions(nest: Nest, lanes: list[str]) -> list[str]:
    """Lanes of results that no reduction has: they stand across, where reductions walk."""
    reductions = [op for op in nest.ops.values() if op.combine is not None]
    kept = {name for op in reductions for name in op.kept}
    apart = [name for name in lanes if name not in kept]
    for op in nest.ops.values():
        is_stored = any(write.tensor in nest.outputs for write in op.writes)
        walked = [n for n in op.kept if n not in lanes and n not in nest.open_axes]
        if (
            is_stored
            and not set(apart).isdisjoint(op.kept)
            and any(op.sizes[n] > 1 for n in walked)
        ):
            return []
    return apart if len(apart) < len(lanes) else []


def _contiguous(nest: Nest, lanes: list[str]) -> str:
    """The lane axis that is innermost in the first output."""
    for name in nest.outputs:
        for axis in reversed(nest.graph.tensors[name].axis_names):
            if axis in lanes:
                return axis
    return lanes[-1]


def _matrix_layout(nest: Nest, tiles: dict[str, int], lanes: list[str], parts: Held) -> Layout:
    """Rows are what the left operands alone have, columns what the right ones have.

    An axis that both have is taken point by point: a matrix product has no third side.
    """

    held = [name for part in parts for name in part]
    lanes = [*lanes, *held]
    side = _sides(nest, lanes, held)
    rows = [name for name in lanes if side.get(name, "rows") == "rows"]
    columns = [name for name in lanes if side.get(name) == "columns"]
    of_blocks = _sides(nest, list(tiles), [])
    return Layout(
        tiles=tiles,
        rows=_group("rows", nest, tiles, rows, parts, MATRIX_LEAST),
        columns=_group("columns", nest, tiles, columns, parts, MATRIX_LEAST),
        rank=2,
        batch=tuple(name for name in lanes if side.get(name) == "batch"),
        block_rows=tuple(name for name in tiles if of_blocks.get(name) == "rows"),
        block_columns=tuple(name for name in tiles if of_blocks.get(name) == "columns"),
    )


def _sides(nest: Nest, axes: list[str], held: list[str]) -> dict[str, str]:
    """The side of the matrix products that each axis is on; `batch` where both operands have it."""

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
            | set(read.axes).intersection(held)
            for read in op.reads[:2]
        )
        kept = {name for axis in op.kept for name in lanes_of[i].get(axis, ())} | set(held)
        own = [name for name in axes if name in kept]
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
    return side | dict.fromkeys(batch, "batch")


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


def _power(points: int) -> int:
    """The power of two that holds so many points."""
    return 1 << (points - 1).bit_length()
