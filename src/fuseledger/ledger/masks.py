"""Masks by position: `where(n ≤ m + c, score, −inf)`, and what of an attention they leave."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from fuseledger.graph.op import Op
from fuseledger.graph.scalar import Call, Const, Coord, Expr
from fuseledger.ledger.nest import Nest

_COMPARED = {"le": 0, "lt": -1, "ge": 0, "gt": -1}
"""Comparison → what it allows beyond equality of whole numbers."""


def unmasked_share(nest: Nest, tile: int) -> float:
    """Share of an attention's points in tiles of so many rows and columns that its mask does not
    hide whole; 1 without a mask by position."""
    walked = {name for op in nest.ops.values() if op.combine == "max_sumexp" for name in op.reduces}
    for op in nest.ops.values():
        for column, row, ahead in _bounds(op):
            if column in walked:
                return _share(op.sizes[row], op.sizes[column], ahead, tile)
    return 1.0


def _share(rows: int, columns: int, ahead: int, tile: int) -> float:
    """Points in tiles that hold one with `column ≤ row + ahead`, over all points."""
    kept = 0
    for first in range(0, rows, tile):
        end = min(rows, first + tile)
        seen = -(-max(0, end + ahead) // tile) * tile
        kept += (end - first) * min(columns, seen)
    return kept / max(1, rows * columns)


def _bounds(op: Op) -> Iterator[tuple[str, str, int]]:
    """(column, row, ahead) of a body that is −inf unless column ≤ row + ahead."""
    body = op.body
    if isinstance(body, Call) and body.function == "where" and body.args[2] == Const(-inf):
        yield from compared(body.args[0])


def compared(condition: Expr) -> Iterator[tuple[str, str, int]]:
    """(column, row, ahead) of each `column ≤ row + ahead` that a condition asks for."""
    if not isinstance(condition, Call):
        return
    if condition.function == "and":
        for each in condition.args:
            yield from compared(each)
    elif condition.function in _COMPARED:
        strict, places = _COMPARED[condition.function], [_place(each) for each in condition.args]
        small, large = places if condition.function in ("le", "lt") else reversed(places)
        if small is not None and large is not None:
            yield small[0], large[0], large[1] - small[1] + strict


def _place(expr: Expr) -> tuple[str, int] | None:
    """(axis, constant) of `axis + constant`."""
    if isinstance(expr, Coord):
        return expr.axis, 0
    if isinstance(expr, Call) and expr.function in ("add", "sub") and len(expr.args) == 2:
        first, second = expr.args
        if isinstance(first, Const) and expr.function == "add":
            first, second = second, first
        place = _place(first)
        if place is not None and isinstance(second, Const):
            sign = 1 if expr.function == "add" else -1
            return place[0], place[1] + sign * int(second.value)
    return None
