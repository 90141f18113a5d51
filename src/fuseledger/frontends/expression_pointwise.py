"""Pointwise functions of expressions: activations, arithmetic, casts, and stages with a weight."""

from __future__ import annotations

from collections.abc import Callable

from fuseledger.frontends.expression_syntax import Mistake
from fuseledger.frontends.expression_table import (
    Function,
    Param,
    Result,
    Scope,
    shape_of,
)
from fuseledger.graph.scalar import Call, Const, Expr, Read, call
from fuseledger.graph.tensor import is_float
from fuseledger.graph.view import View

X = Param("x", "tensor")
AXIS = Param("axis", "axis", -1)

# fmt: off
_UNARY: dict[str, str] = {
    "relu": "max(x, 0)",
    "relu6": "min(max(x, 0), 6)",
    "sigmoid": "1/(1 + e⁻ˣ)",
    "silu": "x·sigmoid(x)",
    "gelu": "x·Φ(x), by the error function",
    "gelu_tanh": "GELU's tanh approximation",
    "quick_gelu": "x·sigmoid(1.702·x)",
    "mish": "x·tanh(softplus(x))",
    "softplus": "ln(1 + eˣ)",
    "softsign": "x/(1 + |x|)",
    "hardswish": "x·relu6(x + 3)/6",
    "hardsigmoid": "relu6(x + 3)/6",
    "selu": "scaled ELU with its fixed constants",
    "tanh": "hyperbolic tangent",
    "erf": "error function",
    "exp": "eˣ", "exp2": "2ˣ", "expm1": "eˣ − 1",
    "log": "natural logarithm", "log2": "binary logarithm", "log10": "decimal logarithm",
    "log1p": "ln(1 + x)",
    "sqrt": "√x", "rsqrt": "1/√x", "reciprocal": "1/x",
    "sin": "sine", "cos": "cosine", "tan": "tangent",
    "asin": "inverse sine", "acos": "inverse cosine", "atan": "inverse tangent",
    "sinh": "hyperbolic sine", "cosh": "hyperbolic cosine", "asinh": "inverse of sinh",
    "acosh": "inverse of cosh", "atanh": "inverse of tanh",
}
_EXACT: dict[str, str] = {
    "abs": "|x|", "neg": "−x", "sign": "−1, 0 or 1", "square": "x²", "floor": "rounded down",
    "ceil": "rounded up", "round": "rounded to nearest, ties to even", "trunc": "rounded to zero",
}
_PREDICATES: dict[str, str] = {
    "isnan": "whether x is not a number", "isinf": "whether x is infinite", "not": "whether x is 0",
}
_ALIASES: dict[str, tuple[str, ...]] = {
    "silu": ("swish",), "reciprocal": ("rcp",), "log": ("ln",),
}
# fmt: on


def _unary(function: str) -> Callable[..., Result]:
    def lower(s: Scope, x: View) -> View:
        return s.b.map(function, [x], dtype=s.real(x.dtype))

    return lower


def _exact(function: str) -> Callable[..., Result]:
    def lower(s: Scope, x: View) -> View:
        return s.b.map(function, [x])

    return lower


def _predicate(function: str) -> Callable[..., Result]:
    def lower(s: Scope, x: View) -> View:
        return s.b.map(function, [x], dtype="bool")

    return lower


def _scalars(function: str, *names: str) -> Callable[..., Result]:
    """A scalar function whose other arguments are numbers."""

    def lower(s: Scope, x: View, **numbers: float) -> View:
        body = call(function, Read(0), *(float(numbers[name]) for name in names))
        return s.b.map(function, [x], body=body, dtype=s.real(x.dtype))

    return lower


def _binary(function: str) -> Callable[..., Result]:
    def lower(s: Scope, x: View, y: View) -> View:
        return s.b.map(function, [x, y])

    return lower


def _where(s: Scope, condition: View, x: View, y: View) -> View:
    from fuseledger.graph.broadcast import promote

    return s.b.map("where", [condition, x, y], dtype=promote([x.dtype, y.dtype]))


def _along(s: Scope, name: str, x: View, axis: int) -> View:
    """A weight with one element per position of an axis."""
    size = x.shape[axis]
    weight = s.weight(name, [size], x)
    return s.b.reshape(weight, [size, *([1] * (len(x.shape) - axis - 1))])


def _bias(s: Scope, x: View, axis: int) -> View:
    return s.b.map("bias", [x, _along(s, "bias", x, axis)], body=call("add", Read(0), Read(1)))


def _scale(s: Scope, x: View, axis: int) -> View:
    return s.b.map("scale", [x, _along(s, "scale", x, axis)], body=call("mul", Read(0), Read(1)))


def _residual(s: Scope, x: View) -> View:
    other = s.b.input("residual", x.shape, x.dtype)
    return s.b.map("residual", [x, other], body=call("add", Read(0), Read(1)))


def _dropout(s: Scope, x: View, p: float) -> View:
    if not 0 <= p < 1:
        raise Mistake(f"p is {p:g}; a dropout probability is at least 0 and below 1")
    if p == 0:
        return x
    kept = call("mul", Read(0), call("bernoulli", 1.0 - p))
    return s.b.map("dropout", [x], body=call("mul", kept, 1.0 / (1.0 - p)))


def converted(value: Expr, before: str, after: str) -> Expr:
    """A value of one dtype rounded to another's grid, where the grid is what the op is about."""
    if after.startswith("fp8"):
        return Call(f"cast_{after}", (value,))
    if after == "bool":
        return Call("cast_bool", (value,))
    to_integer = is_float(before) and not is_float(after) and not after.startswith("complex")
    return Call("cast_int" if to_integer else "identity", (value,))


def _cast(s: Scope, x: View, dtype: str) -> View:
    if dtype == x.dtype:
        return x
    if dtype == "fp4":
        raise Mistake("a cast to fp4 has no meaning without block scales; declare x[…] fp4")
    return s.b.map("cast", [x], body=converted(Read(0), x.dtype, dtype), dtype=dtype)


_LARGEST = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0}
"""Largest value of a dtype that `quantise` scales to (OCP OFP8; symmetric int8)."""


def _quantise(s: Scope, x: View, dtype: str, per: str) -> Result:
    """(q, scale): scale = max|x|/largest per row or tensor, q = x/scale rounded to the dtype."""
    if dtype not in _LARGEST:
        raise Mistake(f"quantise knows {', '.join(_LARGEST)}, not {dtype}")
    if not x.shape:
        raise Mistake("quantise needs a tensor with at least one axis")
    axes = [len(x.shape) - 1] if per == "row" else list(range(len(x.shape)))
    limit = _LARGEST[dtype]
    with s.b.labelled("quantise"):
        (top,) = s.b.reduce(
            "quantise.statistic", [x], axes, "max", body=call("abs", Read(0)), keepdim=True,
            dtypes=["fp32"],
        )  # fmt: skip
        floor = call("max", Read(0), Const(1e-12))  # a row of zeros has a scale too
        scale = s.b.map(
            "quantise.scale", [top], body=call("div", floor, Const(limit)), dtype="fp32"
        )
        ratio = call("div", Read(0), Read(1))
        body = call("round", ratio) if dtype == "int8" else converted(ratio, x.dtype, dtype)
        quantised = s.b.map("quantise.apply", [x, scale], body=body, dtype=dtype)
    return quantised, scale


def _gated(label: str, gate: str) -> Callable[..., Result]:
    """gate(first half)·second half of the last axis, or of two tensors."""

    def lower(s: Scope, x: View, up: View | None) -> View:
        first, second = (x, up) if up is not None else _halves(s, label, x)
        body = call("mul", call(gate, Read(0)), Read(1))
        return s.b.map(label, [first, second], body=body)

    return lower


def _glu(s: Scope, x: View) -> View:
    first, second = _halves(s, "glu", x)
    return s.b.map("glu", [first, second], body=call("mul", Read(0), call("sigmoid", Read(1))))


def _halves(s: Scope, label: str, x: View) -> tuple[View, View]:
    if not x.shape or x.shape[-1] % 2:
        raise Mistake(f"{label} halves the last axis, which {shape_of(x.shape)} does not allow")
    last, half = len(x.shape) - 1, x.shape[-1] // 2
    return s.b.slice(x, last, 0, half), s.b.slice(x, last, half, half)


def _rows(
    meanings: dict[str, str], lowering: Callable[[str], Callable[..., Result]]
) -> list[Function]:
    return [
        Function(name, (X,), lowering(name), meaning, _ALIASES.get(name, ()))
        for name, meaning in meanings.items()
    ]  # fmt: skip


_UP = Param("up", "tensor", None)
_TWO = (X, Param("y", "tensor"))

POINTWISE: list[Function] = [
    *_rows(_UNARY, _unary),
    Function(
        "leaky_relu",
        (X, Param("slope", "number", 0.01)),
        _scalars("leaky_relu", "slope"),
        meaning="x, or slope·x below 0",
    ),
    Function(
        "elu",
        (X, Param("alpha", "number", 1.0)),
        _scalars("elu", "alpha"),
        meaning="x, or alpha·(eˣ − 1) below 0",
    ),
    Function(
        "celu",
        (X, Param("alpha", "number", 1.0)),
        _scalars("celu", "alpha"),
        meaning="x, or alpha·(exp(x/alpha) − 1) below 0",
    ),
    Function(
        "clamp",
        (X, Param("low", "number"), Param("high", "number")),
        _scalars("clamp", "low", "high"),
        meaning="min(max(x, low), high)",
        aliases=("clip",),
    ),
    *_rows(_EXACT, _exact),
    *_rows(_PREDICATES, _predicate),
    Function("maximum", _TWO, _binary("max"), meaning="the larger, point by point"),
    Function("minimum", _TWO, _binary("min"), meaning="the smaller, point by point"),
    Function("atan2", _TWO, _binary("atan2"), meaning="angle of the point (y, x)"),
    Function("mod", _TWO, _binary("mod"), meaning="remainder with y's sign"),
    Function(
        "where",
        (Param("condition", "tensor"), *_TWO),
        _where,
        meaning="x where the condition is not 0, else y",
    ),
    Function("bias", (X, AXIS), _bias, meaning="x + a weight vector along the axis"),
    Function("scale", (X, AXIS), _scale, meaning="x · a weight vector along the axis"),
    Function("residual", (X,), _residual, meaning="x + a new input of x's shape"),
    Function(
        "dropout",
        (X, Param("p", "number", 0.5)),
        _dropout,
        meaning="x·Bernoulli(1−p)/(1−p), the random number drawn in the op",
    ),
    Function("cast", (X, Param("dtype", "dtype")), _cast, meaning="x in another dtype"),
    Function(
        "quantise",
        (X, Param("dtype", "dtype", "fp8_e4m3"), Param("per", "word", "row", ("row", "tensor"))),
        _quantise,
        aliases=("quantize",),
        meaning="two results: x/scale in the dtype (fp8_e4m3, fp8_e5m2, int8), and "
        "scale = max\\|x\\|/largest over the last axis or over all",
    ),
    Function(
        "swiglu",
        (X, _UP),
        _gated("swiglu", "silu"),
        meaning="silu(first half of the last axis)·second half, or silu(x)·up",
    ),
    Function(
        "geglu",
        (X, _UP),
        _gated("geglu", "gelu"),
        meaning="gelu(first half)·second half, or gelu(x)·up",
    ),
    Function(
        "reglu",
        (X, _UP),
        _gated("reglu", "relu"),
        meaning="relu(first half)·second half, or relu(x)·up",
    ),
    Function("glu", (X,), _glu, meaning="first half·sigmoid(second half)"),
]
