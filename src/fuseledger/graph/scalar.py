"""Scalar expressions: what an op computes at one point of its loops.

`FUNCTIONS` is the table of scalar functions: the meaning in NumPy, and the work in floating-point
operations on the FMA pipe and in special-function operations (exp2, log2, rcp, rsqrt, sin, tanh).
"""

# The meanings are one-line lambdas over arrays, whose types pyright cannot infer:
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

Array = Any


class Read(Struct, frozen=True):
    """The value that read number `slot` delivers at this point."""

    slot: int


class Const(Struct, frozen=True):
    """A literal."""

    value: float


class Coord(Struct, frozen=True):
    """The value of a loop index (iota, causal masks)."""

    axis: str


class Call(Struct, frozen=True):
    """A scalar function of `FUNCTIONS` applied to expressions."""

    function: str
    args: tuple[Expr, ...]


Expr = Read | Const | Coord | Call


class Function(Struct, frozen=True):
    """One scalar function: its NumPy meaning and its work per point."""

    meaning: Callable[..., Array]
    flops: int
    special: int = 0


def call(function: str, *args: Expr | float) -> Call:
    """`Call`, with plain numbers taken as constants; raises KeyError for an unknown function."""
    if function not in FUNCTIONS:
        raise KeyError(function)
    wrapped = (Const(arg) if isinstance(arg, int | float) else arg for arg in args)
    return Call(function, tuple(wrapped))


def walk(expr: Expr) -> list[Expr]:
    """The expression and all below it, parents first."""
    found: list[Expr] = [expr]
    if isinstance(expr, Call):
        for arg in expr.args:
            found.extend(walk(arg))
    return found


def work(expr: Expr) -> tuple[int, int]:
    """(FLOPs, special-function operations) of one evaluation."""
    calls = [FUNCTIONS[e.function] for e in walk(expr) if isinstance(e, Call)]
    return sum(c.flops for c in calls), sum(c.special for c in calls)


def rename(expr: Expr, *, slots: Callable[[int], Expr], axes: Callable[[str], Expr]) -> Expr:
    """The expression with reads and loop indices replaced."""
    if isinstance(expr, Read):
        return slots(expr.slot)
    if isinstance(expr, Coord):
        return axes(expr.axis)
    if isinstance(expr, Call):
        return Call(expr.function, tuple(rename(a, slots=slots, axes=axes) for a in expr.args))
    return expr


def _np() -> Any:
    import numpy as np

    return np


def _erf(x: Array) -> Array:
    """Error function of an array: `math.erf`, element by element, where SciPy is not needed."""
    from math import erf

    np = _np()
    return np.vectorize(erf, otypes=[float])(x)


def _sigmoid(x: Array) -> Array:
    np = _np()
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return _np().logaddexp(0.0, x)


def _gelu_tanh(x: Array) -> Array:
    np = _np()
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def _xlogy(x: Array, y: Array) -> Array:
    np = _np()
    return np.where(x == 0, 0.0, x * np.log(np.where(x == 0, 1.0, y)))


def _selu(x: Array) -> Array:
    np = _np()
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def _round_half_even(x: Array) -> Array:
    return _np().rint(x)


def _cdiv_trunc(x: Array, y: Array) -> Array:
    return _np().trunc(x / y)


def _cast_int(x: Array) -> Array:
    return _np().trunc(x)


def _to_fp8(x: Array, mantissa: int, low: int, top: float) -> Array:
    """Round to a float8 grid: `mantissa` bits, least exponent `low`, saturated at ±`top`."""
    np = _np()
    magnitude = np.abs(x)
    exponent = np.maximum(np.floor(np.log2(np.where(magnitude == 0, 1.0, magnitude))), low)
    step = 2.0 ** (exponent - mantissa)
    return np.clip(np.rint(x / step) * step, -top, top)


# fmt: off
FUNCTIONS: dict[str, Function] = {
    # moving values
    "identity": Function(lambda x: x, 0),
    "cast_int": Function(_cast_int, 1),
    "cast_bool": Function(lambda x: (x != 0) * 1.0, 1),
    "cast_fp16": Function(lambda x: x.astype("float16").astype("float64"), 1),
    "cast_fp8_e4m3": Function(lambda x: _to_fp8(x, 3, -6, 448.0), 1),
    "cast_fp8_e5m2": Function(lambda x: _to_fp8(x, 2, -14, 57344.0), 1),
    # arithmetic
    "add": Function(lambda x, y: x + y, 1),
    "sub": Function(lambda x, y: x - y, 1),
    "mul": Function(lambda x, y: x * y, 1),
    "div": Function(lambda x, y: x / y, 4, 1),
    "fma": Function(lambda x, y, z: x * y + z, 2),
    "neg": Function(lambda x: -x, 1),
    "abs": Function(lambda x: _np().abs(x), 1),
    "sign": Function(lambda x: _np().sign(x), 2),
    "square": Function(lambda x: x * x, 1),
    "pow": Function(lambda x, y: _np().power(x, y), 2, 2),
    "mod": Function(lambda x, y: _np().mod(x, y), 4, 1),
    "fmod": Function(lambda x, y: _np().fmod(x, y), 4, 1),
    "floor_div": Function(lambda x, y: _np().floor_divide(x, y), 4, 1),
    "trunc_div": Function(_cdiv_trunc, 4, 1),
    "max": Function(lambda x, y: _np().maximum(x, y), 1),
    "min": Function(lambda x, y: _np().minimum(x, y), 1),
    "floor": Function(lambda x: _np().floor(x), 1),
    "ceil": Function(lambda x: _np().ceil(x), 1),
    "round": Function(_round_half_even, 1),
    "trunc": Function(lambda x: _np().trunc(x), 1),
    # transcendental
    "exp": Function(lambda x: _np().exp(x), 1, 1),
    "exp2": Function(lambda x: _np().exp2(x), 0, 1),
    "expm1": Function(lambda x: _np().expm1(x), 6, 1),
    "log": Function(lambda x: _np().log(x), 1, 1),
    "log2": Function(lambda x: _np().log2(x), 0, 1),
    "log10": Function(lambda x: _np().log10(x), 1, 1),
    "log1p": Function(lambda x: _np().log1p(x), 6, 1),
    "xlogy": Function(_xlogy, 3, 1),
    "sqrt": Function(lambda x: _np().sqrt(x), 2, 1),
    "rsqrt": Function(lambda x: 1.0 / _np().sqrt(x), 1, 1),
    "reciprocal": Function(lambda x: 1.0 / x, 1, 1),
    "sin": Function(lambda x: _np().sin(x), 2, 1),
    "cos": Function(lambda x: _np().cos(x), 2, 1),
    "tan": Function(lambda x: _np().tan(x), 4, 3),
    "asin": Function(lambda x: _np().arcsin(x), 12, 1),
    "acos": Function(lambda x: _np().arccos(x), 12, 1),
    "atan": Function(lambda x: _np().arctan(x), 12, 1),
    "atan2": Function(lambda x, y: _np().arctan2(x, y), 16, 1),
    "sinh": Function(lambda x: _np().sinh(x), 4, 2),
    "cosh": Function(lambda x: _np().cosh(x), 4, 2),
    "asinh": Function(lambda x: _np().arcsinh(x), 6, 2),
    "acosh": Function(lambda x: _np().arccosh(x), 6, 2),
    "atanh": Function(lambda x: _np().arctanh(x), 6, 2),
    "tanh": Function(lambda x: _np().tanh(x), 6, 2),
    "erf": Function(_erf, 12, 1),
    # activations
    "relu": Function(lambda x: _np().maximum(x, 0.0), 1),
    "relu6": Function(lambda x: _np().clip(x, 0.0, 6.0), 2),
    "leaky_relu": Function(lambda x, a: _np().where(x > 0, x, a * x), 2),
    "sigmoid": Function(_sigmoid, 3, 2),
    "silu": Function(lambda x: x * _sigmoid(x), 4, 2),
    "gelu": Function(lambda x: 0.5 * x * (1.0 + _erf(x / 2.0**0.5)), 15, 1),
    "gelu_tanh": Function(_gelu_tanh, 12, 2),
    "quick_gelu": Function(lambda x: x * _sigmoid(1.702 * x), 5, 2),
    "mish": Function(lambda x: x * _np().tanh(_softplus(x)), 10, 4),
    "softplus": Function(lambda x, b=1.0: _softplus(b * x) / b, 5, 2),
    "softsign": Function(lambda x: x / (1.0 + _np().abs(x)), 3, 1),
    "hardswish": Function(lambda x: x * _np().clip(x + 3.0, 0.0, 6.0) / 6.0, 4),
    "hardsigmoid": Function(lambda x, a=1/6, b=0.5: _np().clip(a * x + b, 0.0, 1.0), 4),
    "elu": Function(lambda x, a: _np().where(x > 0, x, a * _np().expm1(_np().minimum(x, 0))), 4, 1),
    "celu": Function(
        lambda x, a: _np().maximum(x, 0) + _np().minimum(0, a * _np().expm1(x / a)), 6, 1),
    "selu": Function(_selu, 5, 1),
    "clamp": Function(lambda x, lo, hi: _np().minimum(_np().maximum(x, lo), hi), 2),
    # logic
    "eq": Function(lambda x, y: (x == y) * 1.0, 1),
    "ne": Function(lambda x, y: (x != y) * 1.0, 1),
    "lt": Function(lambda x, y: (x < y) * 1.0, 1),
    "le": Function(lambda x, y: (x <= y) * 1.0, 1),
    "gt": Function(lambda x, y: (x > y) * 1.0, 1),
    "ge": Function(lambda x, y: (x >= y) * 1.0, 1),
    "and": Function(lambda x, y: ((x != 0) & (y != 0)) * 1.0, 1),
    "or": Function(lambda x, y: ((x != 0) | (y != 0)) * 1.0, 1),
    "xor": Function(lambda x, y: ((x != 0) ^ (y != 0)) * 1.0, 1),
    "not": Function(lambda x: (x == 0) * 1.0, 1),
    "bitwise_and": Function(lambda x, y: (x.astype("int64") & y.astype("int64")) * 1.0, 1),
    "bitwise_or": Function(lambda x, y: (x.astype("int64") | y.astype("int64")) * 1.0, 1),
    "bitwise_xor": Function(lambda x, y: (x.astype("int64") ^ y.astype("int64")) * 1.0, 1),
    "bitwise_not": Function(lambda x: (~x.astype("int64")) * 1.0, 1),
    "shift_left": Function(lambda x, y: x * 2.0**y, 1),
    "shift_right": Function(lambda x, y: _np().floor(x / 2.0**y), 1),
    "isnan": Function(lambda x: _np().isnan(x) * 1.0, 1),
    "isinf": Function(lambda x: _np().isinf(x) * 1.0, 1),
    "where": Function(lambda c, x, y: _np().where(c != 0, x, y), 1),
    # random numbers have no fixed meaning; Philox costs about ten integer rounds
    "bernoulli": Function(lambda p: (_np().random.default_rng(0).random(p.shape) < p) * 1.0, 20),
    "uniform": Function(lambda x: _np().random.default_rng(0).random(x.shape), 20),
    "normal": Function(lambda x: _np().random.default_rng(0).standard_normal(x.shape), 30, 3),
}
SPECIAL = frozenset(name for name, function in FUNCTIONS.items() if function.special)
"""Functions that take the special function unit."""
DIVIDES = frozenset({
    "div", "mod", "fmod", "floor_div", "trunc_div", "reciprocal", "expm1", "log1p", "tan", "sinh",
    "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "tanh", "sigmoid", "silu",
    "gelu_tanh", "quick_gelu", "mish", "softplus", "softsign", "hardswish", "elu", "celu", "selu",
    "shift_right",
})
"""Functions that take a quotient on the way."""
BRANCHES = frozenset({
    "erf", "gelu", "log", "log10", "log1p", "softplus", "mish", "xlogy", "sin", "cos", "tan",
    "asinh", "acosh", "atanh",
})
"""Functions that take different steps by their argument (CUDA's libdevice and AMD's ocml)."""
# fmt: on
