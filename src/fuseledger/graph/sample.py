"""Ops that read a tensor at computed positions: sampling on a grid, reversed and shifted rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal

from fuseledger.graph.axis import Index
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.operand import Operand, Where
from fuseledger.graph.scalar import Const, Coord, Expr, Read, call, rename
from fuseledger.graph.view import View

Border = Literal["zeros", "border", "reflection"]

_BEFORE = 2
"""Cells before the first that a position may name: looked-up values count from there, because a
negative one would count from the end."""


def grid_sample(
    b: GraphBuilder, x: View, grid: View, *, border: Border, corners: bool, nearest: bool = False
) -> View:
    """`x` [n, c, …] at the points of `grid` [n, …, rank], innermost coordinate first, in [-1, 1].

    Two kinds of op: the cell of each point, one per coordinate, and the interpolation of the 2^rank
    elements around it. `corners`: ±1 are the centres of the outermost elements, not their edges.
    """
    space = x.shape[2:]
    rank = len(space)
    shape = (x.shape[0], x.shape[1], *grid.shape[1:-1])
    letters, out = dim_letters(shape)
    points: list[Where] = [out[0], *out[2:]]
    columns = [b.slice(grid, rank + 1, rank - 1 - k, 1).squeeze(rank + 1) for k in range(rank)]
    places = [_place(size, border, corners=corners) for size in space]
    cells = [
        b.map("sample.cell", [column], body=_cell(place, size, nearest=nearest), dtype="int32")
        for column, place, size in zip(columns, places, space, strict=True)
    ]
    reads = [Operand(cell, tuple(points)) for cell in cells]
    reads += [] if nearest else [Operand(column, tuple(points)) for column in columns]
    body: Expr = Const(0.0)
    for corner in product((0, 1), repeat=0 if nearest else rank):
        steps = corner or (0,) * rank
        where = [Index(lookup=k, offset=step - _BEFORE) for k, step in enumerate(steps)]
        value: Expr = Read(len(reads))
        reads.append(Operand(x, (out[0], out[1], *where), 0.0))
        for k, step in enumerate(steps):
            if space[k] == 1:  # no axis to leave: only the one element is inside
                value = call("where", call("eq", Read(k), float(_BEFORE - step)), value, 0.0)
            if not nearest:
                value = call("mul", value, _share(places[k], rank + k, step))
        body = value if body == Const(0.0) else call("add", body, value)
    name = "sample.nearest" if nearest else "sample"
    return b.loop(name, letters, reads, out, body, dtypes=[x.dtype])[0]


def _place(size: int, border: Border, *, corners: bool) -> Expr:
    """Position of `Read(0)` in [-1, 1] along a dimension, in elements."""
    scaled = call("mul", call("add", Read(0), 1.0), (size - 1 if corners else size) / 2)
    place: Expr = scaled if corners else call("sub", scaled, 0.5)
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    if border == "reflection":
        span = high - low
        if span:  # a triangle wave of period 2·span
            turn = call("mod", call("abs", call("sub", place, low)), 2 * span)
            place = call("add", call("sub", span, call("abs", call("sub", turn, span))), low)
        else:
            place = call("mul", place, 0.0)
    if border != "zeros":
        place = call("min", call("max", place, 0.0), size - 1.0)
    return place


def _cell(place: Expr, size: int, *, nearest: bool) -> Expr:
    """The element at or below a position, counted from `_BEFORE` before the first."""
    whole = call("round" if nearest else "floor", place)
    return call("add", call("min", call("max", whole, -float(_BEFORE)), float(size)), _BEFORE)


def _share(place: Expr, slot: int, step: int) -> Expr:
    """Weight of the element at (`step` 0) or after (1) the position that read `slot` gives."""
    here = rename(place, slots=lambda _: Read(slot), axes=lambda _: Const(0.0))
    above = call("sub", here, call("floor", here))
    return above if step else call("sub", 1.0, above)


def affine_grid(b: GraphBuilder, theta: View, space: Sequence[int], *, corners: bool) -> View:
    """`theta` [n, rank, rank + 1] at every point of `space`: the grid [n, *space, rank]."""
    rank = len(space)
    letters, out = dim_letters((theta.shape[0], *space, rank))
    columns = [b.slice(theta, 2, j, 1).squeeze(2) for j in range(rank + 1)]
    body: Expr = Read(rank)
    for j, (letter, size) in enumerate(zip(reversed(out[1:-1]), reversed(space), strict=True)):
        if letter is None:
            continue  # the centre of one element is 0
        step, first = (2 / (size - 1), -1.0) if corners else (2 / size, 1 / size - 1)
        place = call("add", call("mul", Coord(letter), step), first)
        body = call("add", body, call("mul", Read(j), place))
    reads = [Operand(column, (out[0], out[-1])) for column in columns]
    return b.loop("affine_grid", letters, reads, out, body, dtypes=[theta.dtype])[0]


def reverse_rows(b: GraphBuilder, x: View, lengths: View, along: int, batch: int) -> View:
    """Each batch's first `lengths[batch]` elements along a dimension in reverse, the rest as is."""
    if x.shape[along] == 1:
        return x
    letters, out = dim_letters(x.shape)
    step, row = out[along], out[batch]
    assert step is not None
    mirrored = call("sub", call("sub", Read(0), 1.0), Coord(step))
    body = call("where", call("lt", Coord(step), Read(0)), mirrored, Coord(step))
    named = {name: letters[name] for name in (step, row) if name is not None}
    (source,) = b.loop(
        "reverse.source", named, [Operand(lengths, (row,))], [step, row], body, dtypes=["int32"]
    )
    where: list[Where] = list(out)
    where[along] = Index(lookup=0)
    reads = [Operand(source, (step, row)), Operand(x, tuple(where))]
    return b.loop("reverse", letters, reads, out, Read(1), dtypes=[x.dtype])[0]


def write_rows(
    b: GraphBuilder, x: View, update: View, starts: View | None, along: int, *, circular: bool
) -> View:
    """`x` with `update` in place of the elements from `starts[batch]` (0 where None) along a
    dimension, past the end at the beginning where `circular`: appending to a key-value cache."""
    letters, out = dim_letters(x.shape)
    step, size, count = out[along], x.shape[along], update.shape[along]
    if step is None:
        return update
    reads: list[Operand] = []
    named = {step: size}
    row: str | None = None
    since: Expr = Coord(step)
    if starts is not None:
        row = out[0]
        named |= {row: letters[row]} if row is not None else {}
        reads.append(Operand(starts, (row,)))
        since = call("sub", since, Read(0))
    since = call("mod", since, float(size)) if circular else since
    fresh = call("and", call("ge", since, 0.0), call("lt", since, float(count)))
    (source,) = b.loop(
        "write.source", named, reads, [row, step], call("where", fresh, since, float(count)),
        dtypes=["int32"],
    )  # fmt: skip
    where: list[Where] = list(out)
    where[along] = Index(lookup=0)
    reads = [Operand(source, (row, step)), Operand(update, tuple(where), 0.0)]
    reads.append(Operand(x, tuple(out)))
    body = call("where", call("lt", Read(0), float(count)), Read(1), Read(2))
    return b.loop("write", letters, reads, out, body, dtypes=[x.dtype])[0]
