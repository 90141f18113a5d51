"""Seams: where tensors are joined along an axis. On small shapes they move with the sizes.

A concatenation asks of its coordinate which side of a constant it is on, and reads each part from
there. Parts shrink by the axis's own ratio, down to one element.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from msgspec.structs import replace

from fuseledger.graph.axis import Index
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Call, Const, Coord, Expr, walk

Seams = Mapping[str, Mapping[int, int]]
"""Axis → where a part begins, or the last one ends, before and after."""

_COMPARISONS = frozenset({"lt", "le", "gt", "ge"})


def moved_seams(graph: Graph, sizes: Mapping[str, int]) -> Seams:
    """Where the seams of every joined axis lie at other sizes."""
    found: dict[str, set[int]] = {}
    for op in graph.ops:
        for expr in walk(op.body) if op.body is not None else ():
            axis, at = _seam(expr) or ("", 0)
            if axis and 0 < at < op.sizes[axis]:
                found.setdefault(axis, {0, op.sizes[axis]}).add(at)
    return {axis: _spread(sorted(points), sizes[axis]) for axis, points in found.items()}


def _seam(expr: Expr) -> tuple[str, int] | None:
    """(axis, place) of a comparison of a coordinate with a whole number."""
    if not isinstance(expr, Call) or expr.function not in _COMPARISONS:
        return None
    along, at = expr.args
    if not isinstance(along, Coord) or not isinstance(at, Const) or at.value != int(at.value):
        return None
    return along.axis, int(at.value)


def _spread(points: list[int], size: int) -> dict[int, int]:
    """New places of the seams: every part keeps its share, at least one element."""
    lengths = [after - before for before, after in pairwise(points)]
    fresh = [max(1, length * size // points[-1]) for length in lengths]
    longest = max(range(len(fresh)), key=fresh.__getitem__)
    fresh[longest] = max(1, fresh[longest] + size - sum(fresh))
    places = [0]
    for length in fresh:
        places.append(places[-1] + length)
    return dict(zip(points, places, strict=True))


def part_length(access: Access, index: Index, length: int, seams: Seams) -> int | None:
    """The new length of a part that is read up to its seam; None where none is."""
    if access.fill is None or len(index.terms) != 1 or index.terms[0][0] not in seams:
        return None
    places = seams[index.terms[0][0]]
    begin, end = -index.offset, length - index.offset
    return places[end] - places[begin] if begin in places and end in places else None


def with_seams(graph: Graph, seams: Seams) -> Graph:
    """The graph with its seams moved."""
    return replace(graph, ops=tuple(_moved(graph, op, seams) for op in graph.ops))


def _moved(graph: Graph, op: Op, seams: Seams) -> Op:
    reads: list[Access] = []
    for access in op.reads:
        axes = graph.tensors[access.tensor].axes
        where = tuple(
            replace(index, offset=-seams[index.terms[0][0]][-index.offset])
            if part_length(access, index, axis.size, seams) is not None
            else index
            for index, axis in zip(access.index, axes, strict=True)
        )
        reads.append(replace(access, index=where))
    body = _rewritten(op.body, seams) if op.body is not None else None
    return replace(op, reads=tuple(reads), body=body)


def _rewritten(expr: Expr, seams: Seams) -> Expr:
    if not isinstance(expr, Call):
        return expr
    axis, at = _seam(expr) or ("", 0)
    if axis in seams and at in seams[axis]:
        return replace(expr, args=(expr.args[0], Const(float(seams[axis][at]))))
    return replace(expr, args=tuple(_rewritten(arg, seams) for arg in expr.args))
