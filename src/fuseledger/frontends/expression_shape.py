"""Functions of expressions that move, join, look up or sort elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuseledger.frontends.expression_pointwise import AXIS, X
from fuseledger.frontends.expression_syntax import Mistake
from fuseledger.frontends.expression_table import Function, Param, Result, Scope, shape_of
from fuseledger.graph.broadcast import promote
from fuseledger.graph.tensor import is_float
from fuseledger.graph.view import View
from fuseledger.graph.window import concat, take, take_along


def _transpose(s: Scope, x: View, order: tuple[int, ...]) -> View:
    rank = len(x.shape)
    if not order:
        if rank < 2:
            raise Mistake(f"transpose needs at least two axes, not {shape_of(x.shape)}")
        order = (*range(rank - 2), rank - 1, rank - 2)
    positions = [axis % rank if rank and -rank <= axis < rank else axis for axis in order]
    if sorted(positions) != list(range(rank)):
        raise Mistake(
            f"transpose: {shape_of(order)} is no order of the {rank} axes of {shape_of(x.shape)}"
        )
    return x.transpose(positions)


def _reshape(s: Scope, x: View, sizes: tuple[int, ...]) -> View:
    if any(size < 1 and size != -1 for size in sizes) or sizes.count(-1) > 1:
        raise Mistake("reshape: sizes are at least 1, and one of them may be -1")
    known = prod(size for size in sizes if size != -1)
    if x.elements % known or (-1 not in sizes and known != x.elements):
        raise Mistake(f"reshape: {shape_of(x.shape)} does not hold {shape_of(sizes)}")
    return s.b.reshape(x, sizes)


def _concat(s: Scope, parts: Sequence[View], axis: int) -> View:
    ranks = {len(part.shape) for part in parts}
    if len(ranks) > 1:
        shapes = " and ".join(shape_of(part.shape) for part in parts)
        raise Mistake(f"concat: shapes {shapes} differ in rank")
    (rank,) = ranks
    if not -rank <= axis < rank:
        raise Mistake(f"{shape_of(parts[0].shape)} has no axis {axis}; use {-rank} to {rank - 1}")
    return concat(s.b, parts, axis, dtype=promote([part.dtype for part in parts]))


def _slice(s: Scope, x: View, start: int, stop: int, axis: int, step: int) -> View:
    size = x.shape[axis]
    first, last = (place + size if place < 0 else place for place in (start, stop))
    if not 0 <= first < last <= size or step < 1:
        raise Mistake(
            f"slice: {start} to {stop} by {step} is nothing of axis {axis} of {shape_of(x.shape)}"
        )
    return s.b.slice(x, axis, first, -(-(last - first) // step), step)


def _split(s: Scope, x: View, parts: int, axis: int) -> Result:
    size = x.shape[axis]
    if size % parts:
        raise Mistake(
            f"split: axis {axis} of {shape_of(x.shape)} does not split into {parts} parts"
        )
    each = size // parts
    return tuple(s.b.slice(x, axis, i * each, each) for i in range(parts))


def _must_index(indices: View) -> None:
    if is_float(indices.dtype) or indices.dtype.startswith("complex"):
        raise Mistake(
            f"indices must be integers, not {indices.dtype}; declare them as ids[…] int64"
        )


def _embedding(s: Scope, indices: View, table: View) -> View:
    _must_index(indices)
    if len(table.shape) != 2:
        raise Mistake(f"embedding needs a table [rows, size], not {shape_of(table.shape)}")
    return take(s.b, table, indices, 0)


def _take(s: Scope, x: View, indices: View, axis: int) -> View:
    _must_index(indices)
    return take(s.b, x, indices, axis)


def _gather(s: Scope, x: View, indices: View, axis: int) -> View:
    _must_index(indices)
    pairs = enumerate(zip(indices.shape, x.shape, strict=False))
    if len(indices.shape) != len(x.shape) or any(i > n for at, (i, n) in pairs if at != axis):
        raise Mistake(f"gather: indices {shape_of(indices.shape)} do not fit {shape_of(x.shape)}")
    return take_along(s.b, x, indices, axis)


def _sorted(s: Scope, x: View, axis: int) -> Result:
    return tuple(
        s.b.opaque("sort", [x], [(x.shape, x.dtype), (x.shape, "int64")], attributes={"dim": axis})
    )


def _topk(s: Scope, x: View, k: int, axis: int) -> Result:
    if k > x.shape[axis]:
        raise Mistake(f"topk: axis {axis} of {shape_of(x.shape)} has fewer than {k} elements")
    shape = [k if i == axis else size for i, size in enumerate(x.shape)]
    results = [(shape, x.dtype), (shape, "int64")]
    return tuple(s.b.opaque("topk", [x], results, attributes={"k": k, "dim": axis}))


_INDICES = Param("indices", "indices")

SHAPES: list[Function] = [
    Function(
        "transpose",
        (X, Param("order", "integers", (), many=True)),
        _transpose,
        meaning="axes in another order; the last two swapped where none is given",
        aliases=("permute",),
    ),
    Function(
        "reshape",
        (X, Param("sizes", "integers", many=True)),
        _reshape,
        meaning="the same elements in another shape; one size may be -1",
    ),
    Function(
        "concat",
        (Param("parts", "tensor", many=True), Param("axis", "integer", 0)),
        _concat,
        aliases=("cat",),
        meaning="side by side along the axis",
    ),
    Function(
        "slice",
        (X, Param("start", "integer"), Param("stop", "integer"), AXIS, Param("step", "integer", 1)),
        _slice,
        meaning="elements start to stop − 1 of the axis",
    ),
    Function(
        "split",
        (X, Param("parts", "size"), AXIS),
        _split,
        aliases=("chunk",),
        meaning="as many results as parts, of equal size",
    ),
    Function(
        "embedding",
        (_INDICES, Param("table", "weight")),
        _embedding,
        meaning="rows of table[rows, size]",
    ),
    Function(
        "take",
        (X, _INDICES, Param("axis", "axis", 0)),
        _take,
        meaning="positions of one axis, as index_select with indices of any shape",
    ),
    Function(
        "gather",
        (X, _INDICES, AXIS),
        _gather,
        meaning="one position per result element, as torch.gather",
    ),
    Function(
        "topk",
        (X, Param("k", "size"), AXIS),
        _topk,
        meaning="two results, values and positions; an opaque op, a barrier",
    ),
    Function(
        "sort",
        (X, AXIS),
        _sorted,
        meaning="two results, values and positions; an opaque op, a barrier",
    ),
]
