"""Operators of expressions: of two numbers, of tensors, and of both."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from fuseledger.errors import ShapeError
from fuseledger.frontends.expression_syntax import Mistake
from fuseledger.frontends.expression_table import Scope
from fuseledger.graph.broadcast import promote
from fuseledger.graph.scalar import Const, Read, call
from fuseledger.graph.view import View

Value = View | float | tuple[View, ...]

_OPERATORS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "+": ("add", operator.add),
    "-": ("sub", operator.sub),
    "*": ("mul", operator.mul),
    "/": ("div", lambda x, y: x / y),
    "**": ("pow", lambda x, y: float(x) ** float(y)),
    "==": ("eq", operator.eq),
    "!=": ("ne", operator.ne),
    "<": ("lt", operator.lt),
    "<=": ("le", operator.le),
    ">": ("gt", operator.gt),
    ">=": ("ge", operator.ge),
}
"""Sign → scalar function, and its meaning for two numbers."""

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_POWERS = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
_LARGEST_NUMBER = 1e300


def one(value: Value, at: int) -> View:
    """The value as one tensor."""
    if isinstance(value, tuple):
        raise Mistake(f"{len(value)} results; name them first, as in a, b = …", at)
    if not isinstance(value, View):
        raise Mistake(f"a tensor is needed here, not the number {value:g}", at)
    return value


def operated(scope: Scope, sign: str, at: int, left: Value, right: Value) -> Value:
    """Both sides under an operator: a number of two numbers, else a tensor, broadcast."""
    function, fold = _OPERATORS[sign]
    numbers = [value for value in (left, right) if isinstance(value, int | float)]
    if len(numbers) == 2:
        return _folded(fold, numbers, at)
    if sign == "**" and isinstance(right, int | float) and right in (1, *_POWERS):
        base = one(left, at)
        return base if right == 1 else scope.b.map(_POWERS[right], [base])
    operands = [one(v, at) for v in (left, right) if not isinstance(v, int | float)]
    slots = iter(range(2))
    body = call(
        function,
        *(
            Const(float(value)) if isinstance(value, int | float) else Read(next(slots))
            for value in (left, right)
        ),
    )
    dtype = promote([view.dtype for view in operands])
    if sign == "/" or any(number != int(number) for number in numbers if abs(number) < 2**53):
        dtype = scope.real(dtype)
    with placed(at):
        out = "bool" if sign in _COMPARISONS else dtype
        return scope.b.map(function, operands, body=body, dtype=out)


def _folded(fold: Callable[[Any, Any], Any], numbers: Sequence[float], at: int) -> float:
    """Two literals as one; whole numbers stay whole."""
    try:
        result = fold(*numbers)
    except ZeroDivisionError:
        raise Mistake("a division by zero", at) from None
    except OverflowError:
        result = float("inf")
    if isinstance(result, complex):
        raise Mistake("a power of a negative number that is not real", at)
    if not abs(result) <= _LARGEST_NUMBER:
        raise Mistake("a number too large", at)
    whole = all(isinstance(number, int) for number in numbers) and result == int(result)
    return int(result) if whole else float(result)


@contextmanager
def placed(at: int) -> Generator[None]:
    """Gives mistakes that have no place this one."""
    try:
        yield
    except Mistake as mistake:
        if mistake.at is None:
            raise Mistake(mistake.message, at) from None
        raise
    except ShapeError as error:
        raise Mistake(str(error), at) from None
