"""Scalar functions as Triton text: a table, and the small helpers that some entries call.

Every entry is a template over its arguments' texts. Values are fp32 (integers stay integers);
entries of `CONDITIONS` give a truth value, which becomes 0 or 1 wherever a number is wanted.
"""

from __future__ import annotations

import re

from fuseledger.graph.scalar import Const, Expr

# fmt: off
TEMPLATES: dict[str, str] = {
    "identity": "{0}",
    "cast_int": "truncate({0})",
    "cast_fp16": "({0}).to(tl.float16).to(tl.float32)",
    "cast_fp8_e4m3": "tl.clamp({0}, -448.0, 448.0).to(tl.float8e4nv).to(tl.float32)",
    "cast_fp8_e5m2": "tl.clamp({0}, -57344.0, 57344.0).to(tl.float8e5).to(tl.float32)",
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "fma": "({0} * {1} + {2})",
    "neg": "(-{0})",
    "abs": "tl.abs({0})",
    "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, {0}))",
    "square": "({0} * {0})",
    "pow": "power({0}, {1})",
    "xlogy": "tl.where({0} == 0.0, 0.0, {0} * tl.log(tl.where({0} == 0.0, 1.0, {1})))",
    "mod": "({0} - tl.floor({0} / {1}) * {1})",
    "fmod": "({0} - truncate({0} / {1}) * {1})",
    "floor_div": "tl.floor({0} / {1})",
    "trunc_div": "truncate({0} / {1})",
    "max": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "min": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "trunc": "truncate({0})",
    "round": "round_half_even({0})",
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "expm1": "expm1({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    "log10": "(tl.log({0}) * 0.4342944819032518)",
    "log1p": "log1p({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "reciprocal": "(1.0 / {0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "tan": "(tl.sin({0}) / tl.cos({0}))",
    "sinh": "(0.5 * (expm1({0}) - expm1(-{0})))",
    "cosh": "(0.5 * (tl.exp({0}) + tl.exp(-{0})))",
    "asin": "atan2({0}, tl.sqrt((1.0 - {0}) * (1.0 + {0})))",
    "acos": "atan2(tl.sqrt((1.0 - {0}) * (1.0 + {0})), {0})",
    "atan": "atan({0})",
    "atan2": "atan2({0}, {1})",
    "asinh": "asinh({0})",
    "acosh": "acosh({0})",
    "atanh": "(0.5 * (log1p({0}) - log1p(-{0})))",
    "shift_left": "({0} * tl.exp2({1}))",
    "shift_right": "tl.floor({0} / tl.exp2({1}))",
    "tanh": "tanh({0})",
    "erf": "tl.erf({0})",
    "relu": "relu({0})",
    "relu6": "tl.minimum(relu({0}), 6.0, propagate_nan=tl.PropagateNan.ALL)",
    "leaky_relu": "tl.where({0} > 0, {0}, {1} * {0})",
    "sigmoid": "tl.sigmoid({0})",
    "silu": "({0} * tl.sigmoid({0}))",
    "gelu": "gelu({0})",
    "gelu_tanh": "gelu_tanh({0})",
    "quick_gelu": "({0} * tl.sigmoid(1.702 * {0}))",
    "mish": "({0} * tanh(softplus({0}, 1.0)))",
    "softplus": "softplus({0}, {1})",
    "softsign": "({0} / (1.0 + tl.abs({0})))",
    "hardswish": "({0} * tl.clamp({0} + 3.0, 0.0, 6.0) / 6.0)",
    "hardsigmoid": "tl.clamp({1} * {0} + {2}, 0.0, 1.0)",
    "elu": "tl.where({0} > 0, {0}, {1} * expm1(tl.minimum({0}, 0.0)))",
    "celu": "tl.where({0} > 0, {0}, {1} * expm1(tl.minimum({0}, 0.0) / {1}))",
    "selu": "(1.0507009873554805 * tl.where({0} > 0, {0}, "
            "1.6732632423543772 * expm1(tl.minimum({0}, 0.0))))",
    "clamp": "tl.minimum(tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL), {2}, "
             "propagate_nan=tl.PropagateNan.ALL)",
    "where": "tl.where({0}, {1}, {2})",
}
BITWISE: dict[str, str] = {
    "bitwise_and": "({0} & {1})",
    "bitwise_or": "({0} | {1})",
    "bitwise_xor": "({0} ^ {1})",
    "bitwise_not": "(~{0})",
}
"""Functions of whole numbers, whose arguments stay so."""
CONDITIONS: dict[str, str] = {
    "cast_bool": "({0} != 0)",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "not": "(not_({0}))",
    "isnan": "({0} != {0})",
    "isinf": '(tl.abs({0}) == float("inf"))',
}
TAKES_CONDITIONS: dict[str, frozenset[int]] = {
    "where": frozenset({0}),
    "and": frozenset({0, 1}),
    "or": frozenset({0, 1}),
    "xor": frozenset({0, 1}),
    "not": frozenset({0}),
}
"""Function → positions of the arguments that are truth values."""
DEFAULTS: dict[str, tuple[str, ...]] = {
    "softplus": ("1.0",),
    "hardsigmoid": ("(1.0 / 6.0)", "0.5"),
}
"""Values of trailing arguments that a call may leave out."""

HELPERS: dict[str, str] = {
    "relu": """
@triton.jit
def relu(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
""",
    "gelu": """
@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
""",
    "gelu_tanh": """
@triton.jit
def gelu_tanh(x):
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
""",
    "tanh": """
@triton.jit
def tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0
""",
    "softplus": """
@triton.jit
def softplus(x, beta):
    scaled = beta * x
    return (tl.maximum(scaled, 0.0) + log1p(tl.exp(-tl.abs(scaled)))) / beta
""",
    "log1p": """
@triton.jit
def log1p(x):
    # the rounding of 1 + x is undone by the quotient (Kahan)
    up = 1.0 + x
    near = tl.log(up) * (x / (up - 1.0))
    return tl.where(up == 1.0, x, tl.where(up == float("inf"), up, near))
""",
    "expm1": """
@triton.jit
def expm1(x):
    series = 1.0 + x / 7.0 * (1.0 + x / 8.0)
    series = 1.0 + x / 4.0 * (1.0 + x / 5.0 * (1.0 + x / 6.0 * series))
    series = x * (1.0 + x / 2.0 * (1.0 + x / 3.0 * series))
    return tl.where(tl.abs(x) < 0.5, series, tl.exp(x) - 1.0)
""",
    "atan": """
@triton.jit
def atan(x):
    # Cephes: reduced to |t| <= tan(pi/8), then an odd polynomial
    a = tl.abs(x)
    far, mid = a > 2.414213562373095, a > 0.4142135623730950
    t = tl.where(far, -1.0 / a, tl.where(mid, (a - 1.0) / (a + 1.0), a))
    z = t * t
    poly = ((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1
    base = tl.where(far, 1.5707963267948966, tl.where(mid, 0.7853981633974483, 0.0))
    angle = base + (poly * z * t + t)
    return tl.where(x < 0, -angle, tl.where(x != x, x, angle))
""",
    "atan2": """
@triton.jit
def atan2(y, x):
    angle = tl.where((x == 0.0) & (y == 0.0), 0.0, atan(tl.abs(y) / tl.abs(x)))
    angle = tl.where(x < 0, 3.141592653589793 - angle, angle)
    return tl.where(y < 0, -angle, angle)
""",
    "asinh": """
@triton.jit
def asinh(x):
    a = tl.abs(x)
    value = log1p(a + a * a / (1.0 + tl.sqrt(a * a + 1.0)))
    return tl.where(x < 0, -value, value)
""",
    "acosh": """
@triton.jit
def acosh(x):
    above = x - 1.0
    return log1p(above + tl.sqrt(above * (x + 1.0)))
""",
    "power": """
@triton.jit
def power(x, y):
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    odd = y - 2.0 * tl.floor(0.5 * y) == 1.0
    signed = tl.where(odd, -size, tl.where(tl.floor(y) == y, size, float("nan")))
    value = tl.where(x < 0, signed, size)
    return tl.where((y == 0.0) | (x == 1.0), 1.0, value)
""",
    "truncate": """
@triton.jit
def truncate(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))
""",
    "round_half_even": """
@triton.jit
def round_half_even(x):
    low = tl.floor(x)
    odd = low - 2.0 * tl.floor(0.5 * low)
    up = (x - low > 0.5) | ((x - low == 0.5) & (odd == 1.0))
    return tl.where(up, low + 1.0, low)
""",
    "not_": """
@triton.jit
def not_(condition):
    return condition == 0
""",
    "product_of": """
@triton.jit
def product_of(x, y):
    return x * y
""",
    "larger_of": """
@triton.jit
def larger_of(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
    "smaller_of": """
@triton.jit
def smaller_of(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
    "rising": """
@triton.jit
def rising(top):
    # what exponentials are taken relative to: 0 where everything so far is -inf
    return tl.where(top == float("-inf"), 0.0, top)
""",
}
"""Small functions that templates call, put into a module only where something uses them."""
# fmt: on

POWERS: dict[float, str] = {
    0.0: "({0} * 0.0 + 1.0)",
    0.5: "tl.sqrt({0})",
    1.0: "{0}",
    1.5: "({0} * tl.sqrt({0}))",
    2.0: "({0} * {0})",
    3.0: "({0} * {0} * {0})",
    4.0: "({0} * {0} * {0} * {0})",
    -0.5: "tl.rsqrt({0})",
    -1.0: "(1.0 / {0})",
    -2.0: "(1.0 / ({0} * {0}))",
}
"""Exponents with an exact form."""


def power(exponent: Expr) -> str | None:
    """The exact template of x to a constant exponent; None where there is only the general one."""
    return POWERS.get(exponent.value) if isinstance(exponent, Const) else None


def helpers_used(source: str) -> list[str]:
    """Sources of the helpers that a text names, and of what these name, callees first."""
    found: dict[str, None] = {}

    def visit(text: str) -> None:
        for name, helper in HELPERS.items():
            used = re.search(rf"(?<![.\w])(?<!def ){name}\b(?!_)", text)
            if used and name not in found and helper != text:
                visit(helper)
                found[name] = None

    visit(source)
    return [HELPERS[name].strip() for name in found]
