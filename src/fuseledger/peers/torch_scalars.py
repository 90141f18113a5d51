"""Scalar functions of the IR as torch calls."""

# torch is untyped here:
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any

from fuseledger.errors import SourceError

TORCH_NAMES = {
    "abs": "abs", "sign": "sign", "square": "square", "pow": "pow", "mod": "remainder",
    "fmod": "fmod", "max": "maximum", "min": "minimum", "floor": "floor", "ceil": "ceil",
    "round": "round", "trunc": "trunc", "exp": "exp", "exp2": "exp2", "expm1": "expm1",
    "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p", "xlogy": "xlogy",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "reciprocal": "reciprocal", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "atan2": "atan2",
    "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh",
    "tanh": "tanh", "erf": "erf", "relu": "relu", "sigmoid": "sigmoid", "isnan": "isnan",
    "isinf": "isinf", "where": "where", "clamp": "clamp", "and": "logical_and",
    "or": "logical_or", "xor": "logical_xor", "not": "logical_not",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
    "bitwise_not": "bitwise_not",
}  # fmt: skip
"""Ours → the function of `torch`."""

FUNCTIONAL_NAMES = {
    "relu6": "relu6", "leaky_relu": "leaky_relu", "silu": "silu", "gelu": "gelu", "mish": "mish",
    "softplus": "softplus", "softsign": "softsign", "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid", "elu": "elu", "celu": "celu", "selu": "selu",
}  # fmt: skip
"""Ours → the function of `torch.nn.functional`."""

OPERATORS: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "neg": operator.neg, "floor_div": operator.floordiv,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge,
    "fma": lambda x, y, z: x * y + z,
    "cast_bool": lambda x: x != 0,
    "cast_int": lambda x: x.trunc(),
    "cast_fp16": lambda x: x.half(),
    "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),
}  # fmt: skip


def scalar(function: str, args: list[Any]) -> Any:
    """The torch call of a scalar function; raises SourceError where there is none.

    Where `maximum` and its like meet a number, the clamp that PyTorch users write stands for them.
    """
    torch: Any = importlib.import_module("torch")
    numbers = [isinstance(arg, int | float) for arg in args]
    if function in ("max", "min") and any(numbers):
        tensor, number = (args[1], args[0]) if numbers[0] else (args[0], args[1])
        bound = "min" if function == "max" else "max"
        return torch.clamp(tensor, **{bound: number})
    if function in ("cast_fp8_e4m3", "cast_fp8_e5m2"):
        suffix = "float8_e4m3fn" if function.endswith("e4m3") else "float8_e5m2"
        return args[0].to(getattr(torch, suffix)).float()
    if function == "gelu_tanh":
        return torch.nn.functional.gelu(args[0], approximate="tanh")
    if function == "where" and not hasattr(args[0], "node"):
        raise SourceError("where on a constant has no torch form")
    if function in OPERATORS:
        return OPERATORS[function](*args)
    if function in FUNCTIONAL_NAMES:
        return getattr(torch.nn.functional, FUNCTIONAL_NAMES[function])(*args)
    if function not in TORCH_NAMES:
        raise SourceError(f"scalar function {function} has no torch form")
    if function == "where":
        return torch.where(args[0] != 0, *args[1:])
    return getattr(torch, TORCH_NAMES[function])(*args)
