"""Masks by position: `where(n ≤ m + c, score, −inf)`, and what of an attention they leave."""

from __future__ import annotations

from math import inf

from fuseledger.graph.op import Op
from fuseledger.graph.scalar import Call, Const, Coord, Expr
from fuseledger.ledger.nest import Nest

_AT_MOST = {"le": 0, "lt": -1}
_AT_LEAST = {"ge": 0, "gt": -1}


def unmasked_share(nest: Nest, tile: int) -> float:
    """Share of an attention's points in tiles of so many rows and columns that its mask does not
    hide whole; 1 without a mask by position."""
    walked = {name for op in nest.ops.values() if op.combine == "max_sumexp" for name in op.reduces}
    for op in nest.ops.values():
        bound = _bound(op)
        if bound is not None and bound[0] in walked:
            column, row, ahead = bound
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


def _bound(op: Op) -> tuple[str, str, int] | None:
    """(column, row, ahead) of a body that is −inf unless column ≤ row + ahead."""
    body = op.body
    if not (isinstance(body, Call) and body.function == "where" and body.args[2] == Const(-inf)):
        return None
    return _compared(body.args[0])


def _compared(condition: Expr) -> tuple[str, str, int] | None:
    if not isinstance(condition, Call):
        return None
    if condition.function == "and":
        return next(filter(None, map(_compared, condition.args)), None)
    small, large = condition.args[:1], condition.args[1:]
    if condition.function in _AT_LEAST:
        small, large = large, small
    elif condition.function not in _AT_MOST:
        return None
    strict = (_AT_MOST | _AT_LEAST)[condition.function]
    column, row = _place(small[0]), _place(large[0])
    if column is None or row is None:
        return None
    return column[0], row[0], row[1] - column[1] + strict


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
