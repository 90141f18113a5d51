"""ONNX pointwise operators: arithmetic, activations, comparison, logic, casts."""

from __future__ import annotations

from fuseledger.frontends.onnx_site import Lowerer, Site, Unlowered, X, Y, Z
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.scalar import Expr, Read, call
from fuseledger.graph.tensor import is_float
from fuseledger.graph.view import View

UNARY: dict[str, str] = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "HardSwish": "hardswish", "IsNaN": "isnan", "Log": "log",
    "Mish": "mish", "Neg": "neg", "Not": "not", "Reciprocal": "reciprocal", "Relu": "relu",
    "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh",
    "Softplus": "softplus", "Softsign": "softsign", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip

BINARY: dict[str, str] = {
    "Add": "add", "And": "and", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge",
    "Less": "lt", "LessOrEqual": "le", "Mul": "mul", "Or": "or", "Sub": "sub", "Xor": "xor",
}  # fmt: skip

WITH_ATTRIBUTES: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "Celu": ("celu", (("alpha", 1.0),)),
    "Elu": ("elu", (("alpha", 1.0),)),
    "HardSigmoid": ("hardsigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "LeakyRelu": ("leaky_relu", (("alpha", 0.01),)),
}
"""Operator → scalar function, and the attributes that are its further arguments."""

VARIADIC: dict[str, str] = {"Sum": "add", "Max": "max", "Min": "min"}


def _unary(function: str) -> Lowerer:
    return lambda s: s.map(function, [s.operand(0)], call(function, X))


def _binary(function: str) -> Lowerer:
    def lower(s: Site) -> View:
        return s.map(function, s.operands(), call(function, X, Y))

    return lower


def _with_attributes(function: str, attributes: tuple[tuple[str, float], ...]) -> Lowerer:
    def lower(s: Site) -> View:
        extra = [float(s.get(name, default)) for name, default in attributes]
        return s.map(function, [s.operand(0)], call(function, X, *extra))

    return lower


def _variadic(function: str, *, mean: bool = False) -> Lowerer:
    """One op over all inputs, however many."""

    def lower(s: Site) -> View:
        count = len(s.operands())
        if count == 1:
            return s.view()
        total: Expr = X
        for slot in range(1, count):
            total = call(function, total, Read(slot))
        body = call("div", total, count) if mean else total
        return s.map("mean" if mean else function, s.operands(), body)

    return lower


def _div(s: Site) -> View:
    function = "div" if is_float(s.dtype) else "trunc_div"
    return s.map("div", s.operands(), call(function, X, Y))


def _mod(s: Site) -> View:
    function = "fmod" if s.get("fmod", 0) else "mod"
    return s.map("mod", s.operands(), call(function, X, Y))


def _pow(s: Site) -> View:
    """A known exponent of 2, 1/2 or −1 is the cheaper function that compilers make of it."""
    known = s.operand(1).array
    exponent = float(known.reshape(-1)[0]) if known is not None and known.size == 1 else None
    cheaper = {2.0: "square", 0.5: "sqrt", -1.0: "reciprocal"}.get(exponent or 0.0)
    if cheaper is not None and is_float(s.dtype):
        return s.map("pow", s.operands(), call(cheaper, X))
    power = call("pow", X, Y)
    body = power if is_float(s.dtype) else call("trunc", power)
    return s.map("pow", s.operands(), body)


def _bit_shift(s: Site) -> View:
    function = "shift_left" if s.get("direction") == "LEFT" else "shift_right"
    return s.map(function, s.operands(), call(function, X, Y))


def _bitwise_not(s: Site) -> View:
    """−1 − x, or 2ⁿ − 1 − x where the type is unsigned."""
    top = 2.0 ** _UNSIGNED[s.dtype] - 1 if s.dtype in _UNSIGNED else -1.0
    return s.map("bitwise_not", [s.operand(0)], call("sub", top, X))


def _clip(s: Site) -> View:
    """Bounds are attributes until opset 10, optional inputs since."""
    args = [s.operand(0)]
    ends: list[tuple[str, Expr | float]] = []
    for position, (name, function) in enumerate((("min", "max"), ("max", "min")), start=1):
        if name in s.attributes:
            ends.append((function, float(s.get(name))))
        elif (bound := s.given(position)) is not None:
            args.append(bound)
            ends.append((function, Read(len(args) - 1)))
    body: Expr = X
    for function, end in ends:
        body = call(function, body, end)
    return s.map("clip", args, body) if ends else s.view()


def _gelu(s: Site) -> View:
    function = "gelu_tanh" if s.get("approximate", "none") == "tanh" else "gelu"
    return s.map("gelu", [s.operand(0)], call(function, X))


def _swish(s: Site) -> View:
    alpha = float(s.get("alpha", 1.0))
    general = call("mul", X, call("sigmoid", call("mul", X, alpha)))
    body = call("silu", X) if alpha == 1 else general
    return s.map("silu", [s.operand(0)], body)


def _selu(s: Site) -> View:
    alpha, gamma = (
        float(s.get("alpha", 1.6732632423543772)),
        float(s.get("gamma", 1.0507009873554805)),
    )
    return s.map("selu", [s.operand(0)], call("mul", call("elu", X, alpha), gamma))


def _prelu(s: Site) -> View:
    """A slope per channel until opset 6; one that broadcasts to the input since."""
    if s.opset >= 7:
        return s.map("prelu", s.operands(), call("leaky_relu", X, Y))
    x, slope = s.view(0), s.view(1)
    if slope.shape == x.shape[1:2]:
        slope = s.b.reshape(slope, [*slope.shape, *[1] * (len(x.shape) - 2)])
    return s.map("prelu", [x, slope], call("leaky_relu", X, Y))


def _thresholded_relu(s: Site) -> View:
    alpha = float(s.get("alpha", 1.0))
    return s.map("thresholded_relu", [s.operand(0)], call("where", call("gt", X, alpha), X, 0.0))


def _shrink(s: Site) -> View:
    bias, lambd = float(s.get("bias", 0.0)), float(s.get("lambd", 0.5))
    below = call("where", call("lt", X, -lambd), call("add", X, bias), 0.0)
    body = call("where", call("gt", X, lambd), call("sub", X, bias), below)
    return s.map("shrink", [s.operand(0)], body)


def _is_inf(s: Site) -> View:
    signs = [(s.get("detect_positive", 1), "gt"), (s.get("detect_negative", 1), "lt")]
    infinite: Expr = call("isinf", X)
    for wanted, side in signs:
        if not wanted:
            infinite = call("and", infinite, call("not", call(side, X, 0.0)))
    return s.map("isinf", [s.operand(0)], infinite)


def _where(s: Site) -> View:
    return s.map("where", s.operands(), call("where", X, Y, Z))


_ROUNDING = {"fp16": "cast_fp16", "fp8_e4m3": "cast_fp8_e4m3", "fp8_e5m2": "cast_fp8_e5m2"}
_UNSIGNED = {"uint4": 4, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
"""Bits of the types in which a negative integer wraps around."""


def cast(s: Site, x: View, target: str) -> View:
    """The tensor in another dtype; the tensor itself where it has that dtype."""
    if x.dtype == target:
        return x
    return s.map("cast", [x], _converted(x.dtype, target), dtype=target)


def _converted(source: str, target: str) -> Expr:
    """The first argument in another dtype: rounded, cut towards 0, wrapped around."""
    if target == "bool":
        return call("cast_bool", X)
    if is_float(target):
        return call(_ROUNDING.get(target, "identity"), X)
    whole = call("cast_int" if is_float(source) else "identity", X)
    if target in _UNSIGNED:
        return call("mod", whole, 2.0 ** _UNSIGNED[target])
    return whole


def _cast(s: Site) -> View:
    if s.view().dtype.startswith("complex") or s.dtype.startswith("complex"):
        raise Unlowered("to")
    return cast(s, s.view(), s.dtype)


def _random(function: str, first: str, second: str, default: tuple[float, float]) -> Lowerer:
    """Random numbers drawn in the op: uniform in [low, high), or normal by mean and deviation."""

    def lower(s: Site) -> View:
        low, high = float(s.get(first, default[0])), float(s.get(second, default[1]))
        scale = high - low if function == "uniform" else high
        letters, out = dim_letters(s.shape)
        body = call("fma", call(function, 0.0), scale, low)
        return s.b.loop(function, letters, [], out, body, dtypes=[s.dtype])[0]

    return lower


def _bernoulli(s: Site) -> View:
    return s.map("bernoulli", [s.view()], call("bernoulli", X))


def dropout(s: Site) -> list[View | None]:
    """The tensor itself in inference; in training what is kept of it, scaled, and the mask."""
    x = s.view()
    training = s.given(2) is not None and bool(s.number(2, 0.0))
    ratio = s.number(1, 0.5) if s.given(1) is not None else float(s.get("ratio", 0.5))
    if training and ratio > 0:
        if s.is_read(1):
            raise Unlowered("mask")
        keep, scale = 1.0 - ratio, 1.0 / (1.0 - ratio) if ratio < 1 else 0.0
        body = call("mul", call("mul", X, call("bernoulli", keep)), scale)
        return [s.map("dropout", [x], body), None]
    if not s.is_read(1):
        return [x, None]
    mask = s.results[1]
    assert mask is not None  # it is read
    return [x, s.values.fold(mask.name, x.shape, "bool" if s.opset >= 10 else x.dtype)]


POINTWISE: dict[str, Lowerer] = {
    **{name: _unary(function) for name, function in UNARY.items()},
    **{name: _binary(function) for name, function in BINARY.items()},
    **{name: _with_attributes(*entry) for name, entry in WITH_ATTRIBUTES.items()},
    **{name: _variadic(function) for name, function in VARIADIC.items()},
    "Mean": _variadic("add", mean=True), "Div": _div, "Mod": _mod, "Pow": _pow,
    "BitShift": _bit_shift, "BitwiseNot": _bitwise_not, "Clip": _clip, "Gelu": _gelu,
    "Swish": _swish, "Selu": _selu, "PRelu": _prelu, "ThresholdedRelu": _thresholded_relu,
    "Shrink": _shrink, "IsInf": _is_inf, "Where": _where, "Cast": _cast, "CastLike": _cast,
    "Dropout": dropout, "Bernoulli": _bernoulli,
    "RandomUniform": _random("uniform", "low", "high", (0.0, 1.0)),
    "RandomUniformLike": _random("uniform", "low", "high", (0.0, 1.0)),
    "RandomNormal": _random("normal", "mean", "scale", (0.0, 1.0)),
    "RandomNormalLike": _random("normal", "mean", "scale", (0.0, 1.0)),
}  # fmt: skip
