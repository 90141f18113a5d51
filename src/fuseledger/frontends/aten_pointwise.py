"""ATen pointwise operators."""

from __future__ import annotations

from math import pi

from fuseledger.frontends.aten_site import Lowerer, Site, Unlowered
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.operand import Operand
from fuseledger.graph.scalar import Const, Coord, Expr, Read, call
from fuseledger.graph.tensor import is_float
from fuseledger.graph.view import View

_SAME_NAME = """
    relu relu6 sigmoid silu mish softsign selu hardswish hardsigmoid tanh erf exp exp2 expm1 log
    log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh asinh acosh atanh
    abs neg sign square floor ceil trunc isnan isinf
"""

UNARY: dict[str, str] = {
    **{name: name for name in _SAME_NAME.split()},
    "logical_not": "not",
    "special_expm1": "expm1",
    "fix": "trunc",
    "sgn": "sign",
    "absolute": "abs",
    "negative": "neg",
    "special_erf": "erf",
}
"""ATen's operator of one tensor → scalar function."""

BINARY: dict[str, str] = {
    "mul": "mul", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    "fmod": "fmod", "atan2": "atan2", "xlogy": "xlogy", "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or", "maximum": "max", "minimum": "min", "max.other": "max",
    "min.other": "min", "fmax": "max",
    "fmin": "min", "multiply": "mul", "logical_and": "and", "logical_or": "or",
    "logical_xor": "xor", "remainder": "mod", "floor_divide": "floor_div", "true_divide": "div",
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor",
    "greater": "gt", "less": "lt",
    "greater_equal": "ge", "less_equal": "le", "not_equal": "ne", "bitwise_xor": "bitwise_xor",
    "bitwise_left_shift": "shift_left", "bitwise_right_shift": "shift_right",
    "__lshift__": "shift_left", "__rshift__": "shift_right",
}  # fmt: skip
"""ATen's operator of two tensors, or of a tensor and a number → scalar function."""


def _unary(function: str) -> Lowerer:
    return lambda s: s.map(function, [s.view()])


def _operands(s: Site, *names: str) -> list[View | float]:
    return [s.maybe(name) or s.number(name) for name in names]


def _binary(function: str) -> Lowerer:
    on_bools = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}

    def lower(s: Site) -> View:
        chosen = on_bools.get(function, function) if s.out.dtype == "bool" else function
        return s.map(chosen, _operands(s, "self", "other"))

    return lower


def _sum_like(function: str, *, reverse: bool = False) -> Lowerer:
    """`self ± alpha·other`; reversed for rsub."""

    def lower(s: Site) -> View:
        alpha = s.number("alpha", 1.0)

        def body(x: Expr, y: Expr) -> Expr:
            left, right = (y, x) if reverse else (x, y)
            return call(function, left, right if alpha == 1 else call("mul", right, alpha))

        return s.map(function, _operands(s, "self", "other"), body(Read(0), Read(1)))

    return lower


def _round(s: Site) -> View:
    if s.get("decimals", 0):
        raise Unlowered("decimals")
    return s.map("round", [s.view()])


def _div(s: Site) -> View:
    function = {None: "div", "floor": "floor_div", "trunc": "trunc_div"}[s.get("rounding_mode")]
    return s.map(function, _operands(s, "self", "other"))


def _pow(s: Site) -> View:
    exponent = s.get("exponent")
    if exponent == 2:
        return s.map("square", [s.view()])
    if exponent == 3:
        return s.map("pow", [s.view()], call("mul", call("square", Read(0)), Read(0)))
    if exponent == 0.5:
        return s.map("sqrt", [s.view()])
    if exponent == -0.5:
        return s.map("rsqrt", [s.view()])
    return s.map("pow", _operands(s, "self", "exponent"))


def _bitwise_not(s: Site) -> View:
    function = "not" if s.out.dtype == "bool" else "bitwise_not"
    return s.map(function, [s.view()])


def _clamp(s: Site) -> View:
    """`min` and `max`: number, tensor or missing."""
    args: list[View | float] = [s.view()]
    functions: list[str] = []
    for name, function in (("min", "max"), ("max", "min")):
        bound = s.get(name)
        if bound is not None:
            args.append(bound if isinstance(bound, View) else float(bound))
            functions.append(function)

    def body(x: Expr, *bounds: Expr) -> Expr:
        for function, bound in zip(functions, bounds, strict=True):
            x = call(function, x, bound)
        return x

    return s.map("clamp", args, body(Read(0), *map(Read, range(1, len(args)))))


def _hardtanh(s: Site) -> View:
    low, high = s.number("min_val", -1.0), s.number("max_val", 1.0)
    return s.map("clamp", [s.view()], call("clamp", Read(0), low, high))


def _gelu(s: Site) -> View:
    function = "gelu_tanh" if s.get("approximate", "none") == "tanh" else "gelu"
    return s.map(function, [s.view()])


def _elu(s: Site) -> View:
    alpha, scale = s.number("alpha", 1.0), s.number("scale", 1.0)
    if s.number("input_scale", 1.0) != 1:
        raise Unlowered("input_scale")

    def body(x: Expr) -> Expr:
        return call("elu", x, alpha) if scale == 1 else call("mul", call("elu", x, alpha), scale)

    return s.map("elu", [s.view()], body(Read(0)))


def _softplus(s: Site) -> View:
    beta, threshold = s.number("beta", 1.0), s.number("threshold", 20.0)

    def body(x: Expr) -> Expr:
        scaled = x if beta == 1 else call("mul", x, beta)
        return call("where", call("gt", scaled, threshold), x, call("softplus", x, beta))

    return s.map("softplus", [s.view()], body(Read(0)))


def _with(function: str, name: str, default: float) -> Lowerer:
    """A function of one tensor and one number."""

    def lower(s: Site) -> View:
        value = s.number(name, default)
        return s.map(function, [s.view()], call(function, Read(0), value))

    return lower


def _prelu(s: Site) -> View:
    x, weight = s.view(), s.view("weight")
    if weight.elements != 1 and len(x.shape) > 1:
        weight = s.b.reshape(weight, [weight.elements, *([1] * (len(x.shape) - 2))])
    return s.map("leaky_relu", [x, weight])


def _threshold(s: Site) -> View:
    limit, value = s.number("threshold"), s.number("value")
    return s.map("threshold", [s.view()], call("where", call("gt", Read(0), limit), Read(0), value))


def _shrink(*, soft: bool) -> Lowerer:
    def lower(s: Site) -> View:
        lam = s.number("lambd", 0.5)

        def body(x: Expr) -> Expr:
            inner = call("sub", x, call("mul", call("sign", x), lam)) if soft else x
            return call("where", call("gt", call("abs", x), lam), inner, 0.0)

        return s.map("softshrink" if soft else "hardshrink", [s.view()], body(Read(0)))

    return lower


def _log_sigmoid(s: Site) -> View:
    return s.map(
        "log_sigmoid", [s.view()], call("neg", call("softplus", call("neg", Read(0)), 1.0))
    )


def _logit(s: Site) -> View:
    eps = s.get("eps")

    def body(x: Expr) -> Expr:
        p = x if eps is None else call("clamp", x, float(eps), 1.0 - float(eps))
        return call("log", call("div", p, call("sub", Const(1.0), p)))

    return s.map("logit", [s.view()], body(Read(0)))


def _where(s: Site) -> View:
    args: list[View | float] = [s.view("condition"), *_operands(s, "self", "other")]
    return s.map("where", args)


def _masked_fill(s: Site) -> View:
    value = s.get("value")
    filled = value if isinstance(value, View) else s.number("value")
    return s.map(
        "masked_fill", [s.view(), s.view("mask"), filled], call("where", Read(1), Read(2), Read(0))
    )


def _addc(function: str) -> Lowerer:
    """`self + value·(tensor1 ∘ tensor2)`."""

    def lower(s: Site) -> View:
        value = s.number("value", 1.0)

        def body(x: Expr, y: Expr, z: Expr) -> Expr:
            inner = call(function, y, z)
            return call("add", x, inner if value == 1 else call("mul", inner, value))

        return s.map(
            f"addc{function}",
            [s.view(), s.view("tensor1"), s.view("tensor2")],
            body(Read(0), Read(1), Read(2)),
        )

    return lower


def _lerp(s: Site) -> View:
    args: list[View | float] = [s.view(), *_operands(s, "end", "weight")]
    return s.map("lerp", args, call("fma", Read(2), call("sub", Read(1), Read(0)), Read(0)))


def _glu(s: Site) -> View:
    x = s.view()
    dim = int(s.get("dim", -1)) % len(x.shape)
    half = x.shape[dim] // 2
    left, right = (s.b.slice(x, dim, i * half, half) for i in (0, 1))
    return s.map("glu", [left, right], call("mul", Read(0), call("sigmoid", Read(1))))


def cast(s: Site, x: View, dtype: str) -> View:
    """The view in another dtype: itself where nothing changes."""
    if dtype == x.dtype:
        return x
    if dtype == "bool":
        return s.map("cast", [x], call("cast_bool", Read(0)), dtype=dtype)
    to_int = not is_float(dtype) and is_float(x.dtype)
    function = "cast_int" if to_int and not dtype.startswith("complex") else "identity"
    return s.map("cast", [x], call(function, Read(0)), dtype=dtype)


def _to(s: Site) -> View:
    return cast(s, s.view("self" if "self" in s.args else "input"), s.out.dtype)


def _copy(s: Site) -> View:
    source = cast(s, s.view("src"), s.out.dtype)
    return source.expand(s.out.shape)


def _triangle(*, upper: bool) -> Lowerer:
    """tril and triu: zero where column − row is beyond `diagonal`."""

    def lower(s: Site) -> View:
        x = s.view()
        letters, out = dim_letters(x.shape)
        row, column = (Coord(letter) if letter else Const(0.0) for letter in out[-2:])
        offset = call("sub", column, row)
        keep = call("ge" if upper else "le", offset, float(s.number("diagonal")))
        body = call("where", keep, Read(0), 0.0)
        name = "triu" if upper else "tril"
        return s.b.loop(name, letters, [Operand(x, tuple(out))], out, body, dtypes=[x.dtype])[0]

    return lower


def _isfinite(s: Site) -> View:
    def body(x: Expr) -> Expr:
        return call("not", call("or", call("isnan", x), call("isinf", x)))

    return s.map("isfinite", [s.view()], body(Read(0)))


def _scale(factor: float) -> Lowerer:
    return lambda s: s.map("mul", [s.view()], call("mul", Read(0), factor))


def _erfc(s: Site) -> View:
    return s.map("erfc", [s.view()], call("sub", 1.0, call("erf", Read(0))))


def _hypot(s: Site) -> View:
    def body(x: Expr, y: Expr) -> Expr:
        return call("sqrt", call("add", call("square", x), call("square", y)))

    return s.map("hypot", [s.view(), s.view("other")], body(Read(0), Read(1)))


def _logaddexp(s: Site) -> View:
    def body(x: Expr, y: Expr) -> Expr:
        return call("add", x, call("softplus", call("sub", y, x), 1.0))

    return s.map("logaddexp", [s.view(), s.view("other")], body(Read(0), Read(1)))


POINTWISE: dict[str, Lowerer] = {
    **{name: _unary(function) for name, function in UNARY.items()},
    **{name: _binary(function) for name, function in BINARY.items()},
    "add": _sum_like("add"), "sub": _sum_like("sub"), "subtract": _sum_like("sub"),
    "rsub": _sum_like("sub", reverse=True), "div": _div, "round": _round,
    "divide": _div, "pow": _pow,
    "bitwise_not": _bitwise_not, "clamp": _clamp, "clip": _clamp, "clamp_min": _clamp,
    "clamp_max": _clamp, "hardtanh": _hardtanh, "gelu": _gelu, "elu": _elu, "softplus": _softplus,
    "celu": _with("celu", "alpha", 1.0), "leaky_relu": _with("leaky_relu", "negative_slope", 0.01),
    "prelu": _prelu, "_prelu_kernel": _prelu, "threshold": _threshold,
    "softshrink": _shrink(soft=True), "hardshrink": _shrink(soft=False),
    "log_sigmoid": _log_sigmoid,
    "log_sigmoid_forward": _log_sigmoid, "logit": _logit, "where": _where,
    "masked_fill": _masked_fill, "addcmul": _addc("mul"), "addcdiv": _addc("div"), "lerp": _lerp,
    "glu": _glu, "to": _to, "_to_copy": _to, "type_as": _to, "float": _to, "half": _to,
    "bfloat16": _to, "copy": _copy, "tril": _triangle(upper=False), "triu": _triangle(upper=True),
    "isfinite": _isfinite,
    "erfc": _erfc, "hypot": _hypot, "logaddexp": _logaddexp,
    "deg2rad": _scale(pi / 180.0), "rad2deg": _scale(180.0 / pi),
}  # fmt: skip
