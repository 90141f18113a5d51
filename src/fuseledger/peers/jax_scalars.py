"""Scalar functions of the IR as JAX calls, as a JAX user would write them."""

# JAX is untyped here:
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from fuseledger.errors import SourceError

JNP_NAMES = {
    "abs": "abs", "sign": "sign", "square": "square", "pow": "power", "mod": "mod",
    "fmod": "fmod", "floor_div": "floor_divide", "max": "maximum", "min": "minimum",
    "floor": "floor", "ceil": "ceil", "round": "round", "trunc": "trunc", "exp": "exp",
    "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10",
    "log1p": "log1p", "sqrt": "sqrt", "reciprocal": "reciprocal", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2",
    "sinh": "sinh", "cosh": "cosh", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    "tanh": "tanh", "isnan": "isnan", "isinf": "isinf", "clamp": "clip", "and": "logical_and",
    "or": "logical_or", "xor": "logical_xor", "not": "logical_not",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
    "bitwise_not": "bitwise_not",
}  # fmt: skip
"""Ours → the function of `jax.numpy`."""

NN_NAMES = {
    "relu": "relu", "relu6": "relu6", "leaky_relu": "leaky_relu", "sigmoid": "sigmoid",
    "silu": "silu", "mish": "mish", "softsign": "soft_sign", "elu": "elu", "celu": "celu",
    "selu": "selu",
}  # fmt: skip
"""Ours → the function of `jax.nn`."""


@cache
def _jax() -> tuple[Any, Any]:
    return importlib.import_module("jax"), importlib.import_module("jax.numpy")


def _cast(x: Any, dtype: str) -> Any:
    return x.astype(getattr(_jax()[1], dtype)).astype(x.dtype)


def _random(x: Any, draw: str) -> Any:
    jax, _ = _jax()
    return getattr(jax.random, draw)(jax.random.key(0), x.shape, x.dtype)


OTHERS: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "neg": operator.neg, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "fma": lambda x, y, z: x * y + z,
    "trunc_div": lambda x, y: _jax()[1].trunc(x / y),
    "cast_bool": lambda x: x != 0,
    "cast_int": lambda x: _jax()[1].trunc(x),
    "cast_fp16": lambda x: _cast(x, "float16"),
    "cast_fp8_e4m3": lambda x: _cast(_jax()[1].clip(x, -448.0, 448.0), "float8_e4m3fn"),
    "cast_fp8_e5m2": lambda x: _cast(_jax()[1].clip(x, -57344.0, 57344.0), "float8_e5m2"),
    "rsqrt": lambda x: _jax()[0].lax.rsqrt(x),
    "erf": lambda x: _jax()[0].lax.erf(x),
    "xlogy": lambda x, y: _jax()[0].scipy.special.xlogy(x, y),
    "gelu": lambda x: _jax()[0].nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: _jax()[0].nn.gelu(x, approximate=True),
    "quick_gelu": lambda x: x * _jax()[0].nn.sigmoid(1.702 * x),
    "softplus": lambda x, b=1.0: _jax()[1].logaddexp(b * x, 0.0) / b,
    "hardswish": lambda x: x * _jax()[1].clip(x + 3.0, 0.0, 6.0) / 6.0,
    "hardsigmoid": lambda x, a=1 / 6, b=0.5: _jax()[1].clip(a * x + b, 0.0, 1.0),
    "shift_left": lambda x, y: x * 2**y,
    "shift_right": lambda x, y: x // 2**y,
    "where": lambda c, x, y: _jax()[1].where(c if c.dtype == bool else c != 0, x, y),
    "uniform": lambda x: _random(x, "uniform"),
    "normal": lambda x: _random(x, "normal"),
    "bernoulli": lambda p: _random(p, "uniform") < p,
}  # fmt: skip


def scalar(function: str, args: list[Any]) -> Any:
    """The JAX call of a scalar function; raises SourceError where there is none."""
    jax, jnp = _jax()
    if function in OTHERS:
        return OTHERS[function](*args)
    if function in NN_NAMES:
        return getattr(jax.nn, NN_NAMES[function])(*args)
    if function in JNP_NAMES:
        return getattr(jnp, JNP_NAMES[function])(*args)
    raise SourceError(f"scalar function {function} has no JAX form")
