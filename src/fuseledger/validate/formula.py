"""Arithmetic formulas over named numbers, as the families of decisions state them."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

_OPERATORS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b, ast.Pow: lambda a, b: a**b,
    ast.Lt: operator.lt, ast.Gt: operator.gt, ast.Eq: operator.eq,
}  # fmt: skip


def evaluate(formula: str, letters: Mapping[str, float]) -> float:
    """Value of an arithmetic formula, finite.

    Raises NameError naming an unknown letter, ValueError naming a formula that has no such value.
    """
    try:
        value = float(_value(ast.parse(formula, mode="eval").body, letters))
    except SyntaxError:
        raise ValueError(f"{formula} is no arithmetic") from None
    except (ArithmeticError, TypeError) as error:  # of complex numbers: the root of a negative one
        raise ValueError(f"{formula}: {error}") from None
    if not math.isfinite(value):
        raise ValueError(f"{formula} is {value}")
    return value


def _value(node: ast.expr, letters: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name):
        if node.id not in letters:
            raise NameError(node.id)
        return letters[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, letters), _value(node.right, letters))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        (right,) = node.comparators
        holds = _OPERATORS[type(node.ops[0])](_value(node.left, letters), _value(right, letters))
        return float(holds)
    if isinstance(node, ast.IfExp):
        chosen = node.body if _value(node.test, letters) else node.orelse
        return _value(chosen, letters)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "ceil" and len(node.args) == 1:
        return math.ceil(_value(node.args[0], letters))
    raise ValueError(f"{ast.unparse(node)} is no arithmetic")
