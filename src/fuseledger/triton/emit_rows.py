"""Sums over both sides of a matrix product that the kernel makes: decoding's output projection.

The product's tile has rows and columns, and the sum walks both. Walked as lanes of one vector they
would make the product again at each row; here its tile is made once, and its rows are taken from
it one by one.
"""

from __future__ import annotations

from math import prod

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.triton.dependence import above
from fuseledger.triton.emit_body import Writer
from fuseledger.triton.emit_statistic import Statistic, start, step
from fuseledger.triton.lanes import LANES_MOST, MATRIX_LEAST
from fuseledger.triton.scope import Frame, Text
from fuseledger.triton.walk import shape_of, walking


class Sides(Struct, frozen=True, kw_only=True):
    """What a sum walks of a matrix product."""

    product: int
    """Position of the product."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    """Axes of the side that lies along the innermost axis of the sum."""
    beside: tuple[str, ...]
    """Axes of the sum that the product is made at one by one."""


def sides_summed(w: Writer, i: int, frame: Frame) -> Sides | None:
    """The sides of the product that a sum is made of by pointwise ops, where it walks both and a
    tile of them fits; None where it does not, or something on the way is stored."""
    op, ops = w.nest.ops[i], w.nest.ops
    made_of = above(w, i) - {i}
    reductions = [j for j in made_of if ops[j].combine is not None]
    last = [j for j in reductions if not any(j in above(w, k) for k in reductions if k != j)]
    axes = [name for name in op.sizes if name in op.reduces and w.extent(name) > 1]
    if w.layout.rank < 2 or 1 in frame.values() or made_of & w.pending.keys():
        return None
    if len(last) != 1 or not ops[last[0]].is_contraction or w.variables.keys() & set(axes):
        return None
    (product,) = last
    kept = {name for name in ops[product].kept if w.extent(name) > 1}
    left, right = (set(read.axes) for read in ops[product].reads[:2])
    sides = [
        [name for name in axes if name in kept and name in mine - other]
        for mine, other in ((left, right), (right, left))
    ]
    if not all(sides) or kept - set(axes) - w.variables.keys():
        return None
    rows, columns = sorted(sides, key=lambda side: axes[-1] in side)
    lanes = [max(MATRIX_LEAST, 1 << (_points(w, side) - 1).bit_length()) for side in sides]
    if axes[-1] not in columns or prod(lanes) > LANES_MOST:
        return None
    beside = tuple(name for name in axes if name not in rows and name not in columns)
    return Sides(product=product, rows=tuple(rows), columns=tuple(columns), beside=beside)


def _points(w: Writer, axes: list[str]) -> int:
    return prod(w.extent(name) for name in axes)


def sum_rows(w: Writer, i: int, sides: Sides, frame: Frame) -> None:
    """The product's tile, then a loop over its rows, each a vector of the sum's terms."""
    op, product = w.nest.ops[i], w.nest.ops[sides.product]
    axes = (*sides.beside, *sides.rows, *sides.columns)
    w.line(f"# {op.title}: sum over {', '.join(axis.lower() for axis in axes)}")
    state = Statistic(op, i, frame, 1)
    start(w, state)
    outer = w.depth
    tensor = product.writes[0].tensor
    with (
        walking(w, sides.beside, block=1, scalar=True),
        walking(w, sides.rows, block=LANES_MOST, least=MATRIX_LEAST) as across,
        walking(w, sides.columns, block=LANES_MOST, least=MATRIX_LEAST) as along,
    ):
        w.groups |= {across.group.name: across.group, along.group.name: along.group}
        lies = {across.group.name: 0, along.group.name: 1}
        tile = w.result(sides.product, tensor, lies)
        lanes, _ = w.lanes(w.lane_names[across.group.name], across.group.name, lies)
        with walking(w, sides.rows, block=1, scalar=True) as row:
            inner = {**frame, along.group.name: 1}
            name = w.names.new(f"{tensor}_row".lower())
            chosen = f"tl.where({lanes} == {row.first}, {tile.number}, 0.0)"
            # a reshape gives the row a layout of its own: what it meets would take the product's
            w.line(
                f"{name} = tl.reshape(tl.sum({chosen}, axis=0), {shape_of(w, {1: along.group})})"
            )
            key = w.result_key(sides.product, tensor, inner)
            w.scopes[-1].known[key] = Text(name, w.depth, frozenset({1}))
            step(w, state, replace(along, axes=axes, looped=True), inner)
    (result,) = state.names
    key = w.result_key(i, op.writes[0].tensor, frame)
    w.scopes[outer].known[key] = Text(result, outer, frozenset(frame.values()))
