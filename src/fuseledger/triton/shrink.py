"""A kernel on small shapes of the same structure: every loop still loops, every mask still masks.

Sizes shrink; windows, strides, offsets and constants stay. An input's size along a window follows
from its output's, so that padding and overhang stay what they were.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from fuseledger.errors import CannotEmit, InvalidGraph
from fuseledger.graph.axis import Axis
from fuseledger.graph.graph import Graph, Result
from fuseledger.graph.op import Access, Op
from fuseledger.graph.tensor import Tensor
from fuseledger.graph.validate import validate
from fuseledger.graph.view import View
from fuseledger.ledger.kernel import AxisSchedule, Kernel
from fuseledger.ledger.nest import analyse

TILE = 16
"""Largest tile of a small kernel."""
LOOPED = 37
"""Points of a loop over one axis: three steps of 16, the last short."""
LOOPED_TOGETHER = 5
"""Points of each of several axes that one loop walks."""
LOOKED_UP = 11
POINTS_MAX = 4_000_000
"""Points of one op beyond which the interpreter takes too long."""


def alone(graph: Graph, kernel: Kernel) -> Graph:
    """The graph of a kernel's ops alone: what it reads is an input, what it writes an output."""
    nest = analyse(graph, kernel.ops)
    ops = tuple(graph.ops[i] for i in kernel.ops)
    touched = {access.tensor for op in ops for access in (*op.reads, *op.writes)}
    made = {write.tensor for op in ops for write in op.writes}
    tensors: dict[str, Tensor] = {}
    for name in touched:
        tensor = graph.tensors[name]
        role = (
            "output" if name in nest.outputs
            else "intermediate" if name in made
            else tensor.role if tensor.is_external
            else "input"
        )  # fmt: skip
        tensors[name] = replace(tensor, role=role)
    results = tuple(
        Result(name, View.whole(name, graph.tensors[name].shape, graph.tensors[name].dtype))
        for name in nest.outputs
    )
    return Graph(name=graph.name, ops=ops, tensors=tensors, results=results)


def shrink(graph: Graph, kernel: Kernel) -> tuple[Graph, Kernel]:
    """A kernel's graph alone on small shapes, and its schedule there.

    Raises CannotEmit where no small shapes of the same structure are found.
    """
    single = alone(graph, kernel)
    schedule = dict(kernel.schedule.axes)
    sizes = _first_sizes(single, schedule)
    _follow_windows(single, sizes)
    small = _resized(single, sizes)
    try:
        validate(small)
    except InvalidGraph as error:
        small = single
        if max(op.points for op in single.ops) > POINTS_MAX:
            raise CannotEmit(f"no small shapes are found: {error}") from error
        sizes = {axis.name: axis.size for op in single.ops for axis in op.axes}
    if max(op.points for op in small.ops) > POINTS_MAX:
        raise CannotEmit("its structure is too large for the interpreter")
    tiles = tuple((name, _small_tile(axis, sizes[name])) for name, axis in schedule.items())
    return small, Kernel(
        ops=tuple(range(len(small.ops))), schedule=replace(kernel.schedule, axes=tiles)
    )


def _small_tile(axis: AxisSchedule, size: int) -> AxisSchedule:
    if axis.treatment == "whole":
        return AxisSchedule("whole", size)
    return AxisSchedule(axis.treatment, min(axis.tile, size, TILE))


def _first_sizes(graph: Graph, schedule: dict[str, AxisSchedule]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    tiled = [n for n, axis in schedule.items() if axis.treatment == "grid" and axis.tile > 1]
    for op in graph.ops:
        looped = [
            n for n in op.sizes if n in schedule and schedule[n].treatment in ("loop", "whole")
        ]
        for name, size in op.sizes.items():
            axis = schedule.get(name)
            if axis is None:
                sizes.setdefault(name, size)
                continue
            if axis.treatment == "grid":
                tile = min(axis.tile, TILE)
                most = 3 if tile == 1 else 2 * tile + 3 if len(tiled) < 3 else tile + 1
            else:
                most = LOOPED if len(looped) == 1 else LOOPED_TOGETHER
            sizes[name] = min(sizes.get(name, size), size, most)
    for tensor in graph.tensors.values():
        for axis in tensor.axes:
            sizes.setdefault(axis.name, axis.size)
    _pin(graph, sizes)
    return sizes


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


def _follow_windows(graph: Graph, sizes: dict[str, int]) -> None:
    """Sizes of tensors along windows, slices and merged dimensions, from those of the loops."""
    old = {axis.name: axis.size for op in graph.ops for axis in op.axes}
    for _ in range(4):
        for op in reversed(graph.ops):
            for access in (*op.writes, *op.reads):
                tensor = graph.tensors[access.tensor]
                for index, axis in zip(access.index, tensor.axes, strict=True):
                    if index.lookup is not None:
                        sizes[axis.name] = min(sizes[axis.name], LOOKED_UP)
                    elif index.axis != axis.name:
                        high = index.bounds(old.__getitem__)[1]
                        over = high - (axis.size - 1) * index.divisor
                        now = index.bounds(sizes.__getitem__)[1] - over
                        wanted = max(1, -(-now // index.divisor) + 1)
                        sizes[axis.name] = wanted


def _resized(graph: Graph, sizes: dict[str, int]) -> Graph:
    def resize(axis: Axis) -> Axis:
        return Axis(axis.name, sizes.get(axis.name, axis.size))

    tensors = {
        name: replace(
            tensor, dims=tuple(tuple(resize(axis) for axis in dim) for dim in tensor.dims)
        )
        for name, tensor in graph.tensors.items()
    }
    ops = tuple(replace(op, axes=tuple(resize(axis) for axis in op.axes)) for op in graph.ops)
    results = tuple(
        Result(r.name, View.whole(r.name, tensors[r.name].shape, tensors[r.name].dtype))
        for r in graph.results
    )
    return Graph(name=graph.name, ops=ops, tensors=tensors, results=results)
