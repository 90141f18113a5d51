"""A kernel on small shapes of the same structure: every loop still loops, every mask still masks.

Sizes shrink; windows, strides, offsets and constants stay. An input's size along a window follows
from its output's, so that padding and overhang stay what they were.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

from msgspec.structs import replace

from fuseledger.errors import CannotEmit, InvalidGraph
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Access, Op
from fuseledger.graph.resize import part_of, resized
from fuseledger.graph.validate import validate
from fuseledger.ledger.kernel import AxisSchedule, Kernel
from fuseledger.ledger.matrix_units import WHOLE_DEPTH
from fuseledger.triton.emit_reduce import TAPS
from fuseledger.triton.partials import split_tile
from fuseledger.triton.seams import Seams, moved_seams, part_length, with_seams

TILES = (16, 8, 4)
"""Largest tile along an axis of a small kernel: the first that leaves few enough points."""
FEW_AXES = 3
"""Grid axes up to which every one of them has three blocks, the last short; else two."""
LOOPED = {1: 37, 2: 5}
"""Points of each of one or two axes that one loop walks: two steps of 32, the last short."""
LOOPED_MANY = 3
"""Points of each of more axes."""
SMALL_DEPTH = 16
"""Points that a product inside a loop takes at once, where it takes `WHOLE_DEPTH` otherwise."""
PARTS = 3
"""Most parts of the only split axis: two whole ones and a short one; of several, one less."""
LOOKED_UP = 101
"""Least rows of a small table that is looked up; more where more points look one up each."""
POINTS_MAX = 4_000_000
"""Points of one op beyond which the interpreter takes too long."""


def shrink(graph: Graph, kernel: Kernel) -> tuple[Graph, Kernel]:
    """A kernel's graph alone on small shapes, and its schedule there.

    Raises CannotEmit where no small shapes of the same structure are found.
    """
    single = part_of(graph, kernel.ops)
    for tile in TILES:
        small, shrunk = _shrunk(single, kernel, tile)
        if max(op.points for op in small.ops) <= POINTS_MAX:
            return small, shrunk
    raise CannotEmit("its structure is too large for the interpreter")


def _shrunk(single: Graph, kernel: Kernel, tile: int) -> tuple[Graph, Kernel]:
    """The same with tiles of at most so many points along an axis, however many points that is."""
    schedule = dict(kernel.schedule.axes)
    sizes = _first_sizes(single, schedule, tile)
    seams = moved_seams(single, sizes)
    _follow_windows(single, sizes, seams)
    small = resized(with_seams(single, seams), sizes)
    try:
        validate(small)
    except InvalidGraph as error:
        small = single
        if max(op.points for op in single.ops) > POINTS_MAX:
            raise CannotEmit(f"no small shapes are found: {error}") from error
        sizes = {axis.name: axis.size for op in single.ops for axis in op.axes}
    position = {op: number for number, op in enumerate(kernel.ops)}
    before = {axis.name: axis.size for op in single.ops for axis in op.axes}
    extents = {name: (size, sizes[name]) for name, size in before.items()}
    return small, _small_kernel(kernel, position, extents, tile, _most_parts(schedule))


def _small_kernel(
    kernel: Kernel, position: dict[int, int], sizes: dict[str, tuple[int, int]], tile: int,
    parts: int,
) -> Kernel:  # fmt: skip
    """The kernel, and its parts, on small sizes; `position` is its op's in the small graph."""
    axes = kernel.schedule.axes
    tiles = tuple((name, _small_tile(axis, *sizes[name], tile, parts)) for name, axis in axes)
    return Kernel(
        ops=tuple(position[op] for op in kernel.ops),
        schedule=replace(kernel.schedule, axes=tiles),
        parts=tuple(_small_kernel(part, position, sizes, tile, parts) for part in kernel.parts),
    )


def _small_tile(axis: AxisSchedule, before: int, size: int, tile: int, parts: int) -> AxisSchedule:
    if axis.treatment == "whole" or (axis.treatment == "loop" and axis.tile >= before):
        return AxisSchedule(axis.treatment, size)
    if axis.treatment == "split":
        return AxisSchedule("split", min(axis.tile, parts, size))
    return AxisSchedule(axis.treatment, min(axis.tile, size, tile))


def _first_sizes(graph: Graph, schedule: dict[str, AxisSchedule], tile: int) -> dict[str, int]:
    sizes: dict[str, int] = {}
    walked: list[tuple[str, ...]] = []
    windows = _windows(graph)
    inner = _inner_products(graph)
    grid = [name for name, axis in schedule.items() if axis.treatment == "grid"]
    for op in graph.ops:
        looped = [n for n in op.sizes if n in schedule and schedule[n].treatment != "grid"]
        reduced = tuple(name for name in looped if name in op.reduces)
        kept = tuple(name for name in looped if name not in op.reduces)
        if not op.is_contraction:
            walked.append(reduced)
        for name, size in op.sizes.items():
            axis = schedule.get(name)
            if axis is None:
                sizes.setdefault(name, size)
                continue
            if axis.treatment == "grid":
                extent = min(axis.tile, tile)
                several = 3 if extent == 1 else 2 * extent + 3
                most = several if len(grid) < FEW_AXES else extent + 1
            else:
                beside = reduced if name in op.reduces else kept
                most = LOOPED.get(len(beside), LOOPED_MANY)
                if op.is_contraction and beside is reduced:
                    if op in inner and prod(op.sizes[n] for n in reduced) <= WHOLE_DEPTH:
                        most = SMALL_DEPTH
                    fixed = prod(op.sizes[n] for n in reduced if n in windows)
                    most = max(2, -(-most // fixed)) if name not in windows else size
            sizes[name] = min(sizes.get(name, size), size, most)
    for tensor in graph.tensors.values():
        for axis in tensor.axes:
            sizes.setdefault(axis.name, axis.size)
    _pin(graph, sizes)
    whole = {axis.name: axis.size for op in graph.ops for axis in op.axes}
    for axes in walked:
        _keep_long(axes, schedule, whole, sizes)
    _agree(graph, sizes)
    return sizes


def _agree(graph: Graph, sizes: dict[str, int]) -> None:
    """One size, the largest, for axes that walk the same dimension of a tensor from end to end."""
    walked = {axis.name: axis.size for op in graph.ops for axis in op.axes}
    before = {axis.name: axis.size for tensor in graph.tensors.values() for axis in tensor.axes}
    before |= walked
    same: dict[str, set[str]] = {name: {name} for name in before}
    for op in graph.ops:
        for access in (*op.reads, *op.writes):
            for index, axis in zip(access.index, graph.tensors[access.tensor].axes, strict=True):
                if index.axis is not None and before[index.axis] == before[axis.name]:
                    joined = same[index.axis] | same[axis.name]
                    same |= dict.fromkeys(joined, joined)
    for name, others in same.items():
        if not walked.keys().isdisjoint(others):
            sizes[name] = max(sizes[each] for each in others if each in walked)


def _inner_products(graph: Graph) -> list[Op]:
    """Matrix products whose results are reduced again: those are made inside a loop."""
    needed: set[str] = set()
    found: list[Op] = []
    for op in reversed(graph.ops):
        if any(write.tensor in needed for write in op.writes):
            found += [op] if op.is_contraction else []
            needed |= {read.tensor for read in op.reads}
        elif op.combine is not None:
            needed |= {read.tensor for read in op.reads}
    return found


def _windows(graph: Graph) -> set[str]:
    """Axes of windows: the inner ones of a coordinate that several axes make."""
    found: set[str] = set()
    for op in graph.ops:
        for access in op.reads:
            for index in access.index:
                if len(index.terms) > 1:
                    found |= {name for name, _ in index.terms if name in op.reduces}
    return found


def _most_parts(schedule: dict[str, AxisSchedule]) -> int:
    several = sum(axis.treatment == "split" for axis in schedule.values()) > 1
    return PARTS - several


def _keep_long(
    axes: tuple[str, ...], schedule: dict[str, AxisSchedule], whole: dict[str, int],
    sizes: dict[str, int],
) -> None:  # fmt: skip
    """Grow a walk beyond the taps that are taken one by one, if it was so long before."""
    parts = {n: schedule[n].tile for n in axes if schedule[n].treatment == "split"}
    most = _most_parts(schedule)

    def points(extents: dict[str, int], limit: int) -> int:
        """Points that one block walks."""
        return prod(split_tile(extents[n], min(parts.get(n, 1), limit)) for n in axes)

    if points(whole, max(parts.values(), default=1)) <= TAPS:
        return
    while points(sizes, most) <= TAPS:
        name = min((n for n in axes if sizes[n] < whole[n]), key=sizes.__getitem__)
        sizes[name] += 1


def _pin(graph: Graph, sizes: dict[str, int]) -> None:
    """Inner axes of a merged dimension keep their sizes: the strides count on them."""
    for op in graph.ops:
        for access in (*op.reads, *op.writes):
            for index in access.index:
                if len(index.terms) > 1:
                    _pin_terms(op, access, index.terms, sizes)


def _pin_terms(
    op: Op, access: Access, terms: tuple[tuple[str, int], ...], sizes: dict[str, int]
) -> None:
    ordered = sorted(terms, key=lambda term: -abs(term[1]))
    is_merged = all(
        abs(outer[1]) == abs(inner[1]) * op.sizes[inner[0]] for outer, inner in pairwise(ordered)
    )
    if is_merged and (access.fill is None or access in op.writes):
        for name, _ in ordered[1:]:
            sizes[name] = op.sizes[name]


def _follow_windows(graph: Graph, sizes: dict[str, int], seams: Seams) -> None:
    """Sizes of tensors along windows, slices and merged dimensions, from those of the loops."""
    old = {axis.name: axis.size for op in graph.ops for axis in op.axes}
    old_rows = {axis.name: axis.size for tensor in graph.tensors.values() for axis in tensor.axes}
    for _ in range(4):
        for op in reversed(graph.ops):
            for access in (*op.writes, *op.reads):
                tensor = graph.tensors[access.tensor]
                for index, axis in zip(access.index, tensor.axes, strict=True):
                    if index.lookup is not None:
                        asking = graph.tensors[op.reads[index.lookup].tensor].axes
                        points = prod(sizes[each.name] for each in asking)
                        sizes[axis.name] = min(old_rows[axis.name], max(LOOKED_UP, points))
                    elif (part := part_length(access, index, axis.size, seams)) is not None:
                        sizes[axis.name] = part
                    elif index.axis != axis.name:
                        high = index.bounds(old.__getitem__)[1]
                        over = high - (axis.size - 1) * index.divisor
                        now = index.bounds(sizes.__getitem__)[1] - over
                        wanted = max(1, -(-now // index.divisor) + 1)
                        sizes[axis.name] = wanted
