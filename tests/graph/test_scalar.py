"""The table of scalar functions: every meaning runs, and PyTorch agrees."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

from fuseledger.graph.scalar import FUNCTIONS, Call, Const, Coord, Read, call, rename, walk, work

POINTS = np.linspace(0.1, 0.9, 12).reshape(3, 4)
GRID = np.array([[-3.0, -1.5, -0.5, -0.0], [0.0, 0.25, 1.0, 2.5], [3.0, 6.0, 7.5, -7.0]])


def arity(name: str) -> int:
    """Arguments that the meaning needs."""
    parameters = inspect.signature(FUNCTIONS[name].meaning).parameters.values()
    return sum(p.default is p.empty for p in parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_runs_on_arrays(name: str):
    """Each meaning maps arrays to an array of the same shape, finite inside its domain."""
    points = POINTS + 1.0 if name == "acosh" else POINTS
    result = FUNCTIONS[name].meaning(*[points] * arity(name))
    assert np.asarray(result).shape == POINTS.shape
    assert np.isfinite(result).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_work_is_finite_and_not_negative(name: str):
    """Work is a whole number of operations; only a copy has none."""
    function = FUNCTIONS[name]
    assert isinstance(function.flops, int)
    assert isinstance(function.special, int)
    assert function.flops >= 0
    assert function.special >= 0
    assert (function.flops + function.special == 0) == (name == "identity")


UNARY = {
    "neg": "neg", "abs": "abs", "sign": "sign", "square": "square", "floor": "floor",
    "ceil": "ceil", "round": "round", "trunc": "trunc", "exp": "exp", "exp2": "exp2",
    "expm1": "expm1", "sin": "sin", "cos": "cos", "tan": "tan", "atan": "atan", "sinh": "sinh",
    "cosh": "cosh", "asinh": "asinh", "tanh": "tanh", "erf": "erf", "relu": "relu",
    "relu6": "nn.functional.relu6", "sigmoid": "sigmoid", "silu": "nn.functional.silu",
    "gelu": "nn.functional.gelu", "mish": "nn.functional.mish",
    "softplus": "nn.functional.softplus", "softsign": "nn.functional.softsign",
    "hardswish": "nn.functional.hardswish", "hardsigmoid": "nn.functional.hardsigmoid",
    "selu": "nn.functional.selu", "isnan": "isnan", "isinf": "isinf", "not": "logical_not",
}  # fmt: skip
POSITIVE = {
    "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "reciprocal": "reciprocal", "asin": "asin", "acos": "acos",
    "atanh": "atanh",
}  # fmt: skip
BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "max": "maximum", "min": "minimum",
    "mod": "remainder", "fmod": "fmod", "floor_div": "floor_divide", "atan2": "atan2",
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "and": "logical_and",
    "or": "logical_or", "xor": "logical_xor",
}  # fmt: skip


def torch_function(path: str) -> Any:
    """A function of torch by its dotted path."""
    found: Any = pytest.importorskip("torch")
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.torch
@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
def test_unary_functions_agree_with_torch(name: str):
    """A function of one argument means what PyTorch's of that name does, to 1e-12."""
    torch = pytest.importorskip("torch")
    points = POINTS if name in POSITIVE else GRID
    expected = torch_function({**UNARY, **POSITIVE}[name])(torch.from_numpy(points)).double()
    np.testing.assert_allclose(FUNCTIONS[name].meaning(points), expected.numpy(), atol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_agree_with_torch(name: str):
    """A function of two arguments means what PyTorch's does, signs included."""
    torch = pytest.importorskip("torch")
    other = np.roll(np.where(GRID == 0, 1.5, GRID), 5)
    arguments = [torch.from_numpy(GRID), torch.from_numpy(other)]
    expected = torch_function(BINARY[name])(*arguments).double()
    np.testing.assert_allclose(FUNCTIONS[name].meaning(GRID, other), expected.numpy(), atol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "path", "extra"),
    [
        ("leaky_relu", "nn.functional.leaky_relu", (0.1,)),
        ("elu", "nn.functional.elu", (1.5,)),
        ("celu", "nn.functional.celu", (1.5,)),
        ("clamp", "clamp", (-1.0, 2.0)),
    ],
)
def test_functions_with_parameters_agree_with_torch(name: str, path: str, extra: tuple[float, ...]):
    """Slopes and limits are further arguments."""
    torch = pytest.importorskip("torch")
    expected = torch_function(path)(torch.from_numpy(GRID), *extra)
    np.testing.assert_allclose(FUNCTIONS[name].meaning(GRID, *extra), expected.numpy(), atol=1e-12)


@pytest.mark.torch
def test_gelu_of_the_tanh_form_agrees_with_torch():
    """gelu_tanh is PyTorch's approximate GELU, 4.7e-4 from the exact one at most."""
    torch = pytest.importorskip("torch")
    x = np.linspace(-6, 6, 4001)
    approximate = torch.nn.functional.gelu(torch.from_numpy(x), approximate="tanh").numpy()
    found = FUNCTIONS["gelu_tanh"].meaning(x)
    np.testing.assert_allclose(found, approximate, atol=1e-12)
    assert np.abs(found - FUNCTIONS["gelu"].meaning(x)).max() == pytest.approx(4.7e-4, abs=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "dtype"), [("cast_fp8_e4m3", "float8_e4m3fn"), ("cast_fp8_e5m2", "float8_e5m2")]
)
def test_fp8_rounding_agrees_with_torch(name: str, dtype: str):
    """Rounding to fp8 is PyTorch's for every value in range, subnormals included."""
    torch = pytest.importorskip("torch")
    top = 448.0 if dtype == "float8_e4m3fn" else 57344.0
    x = np.concatenate([np.linspace(-top, top, 5001), np.linspace(-0.1, 0.1, 5001)])
    x = x.astype("float32").astype("float64")
    expected = torch.from_numpy(x).float().to(getattr(torch, dtype)).double().numpy()
    np.testing.assert_array_equal(FUNCTIONS[name].meaning(x), expected)


def test_work_adds_up():
    """silu(x)·y + 1 is 4 + 1 + 1 FLOPs and 2 special-function operations."""
    body = call("add", call("mul", call("silu", Read(0)), Read(1)), 1.0)
    assert work(body) == (6, 2)


def test_numbers_become_constants():
    """`call` wraps plain numbers, and refuses a function that is not in the table."""
    assert call("mul", Read(0), 2) == Call("mul", (Read(0), Const(2)))
    with pytest.raises(KeyError, match="no_such"):
        call("no_such", Read(0))


def test_rename_replaces_reads_and_indices():
    """Renaming touches leaves only, and leaves constants as they are."""
    body = call("where", call("lt", Coord("i"), 3.0), Read(0), Read(1))
    renamed = rename(body, slots=lambda slot: Read(slot + 1), axes=lambda axis: Coord(axis + "2"))
    assert renamed == call("where", call("lt", Coord("i2"), 3.0), Read(1), Read(2))


def test_walk_goes_parents_first():
    """A walk lists the expression before its arguments."""
    body = call("add", Read(0), call("exp", Read(1)))
    assert walk(body) == [body, Read(0), call("exp", Read(1)), Read(1)]


def test_logistic_functions_do_not_overflow():
    """Far from zero sigmoid and softplus keep their limits."""
    far = np.array([-800.0, 800.0])
    np.testing.assert_array_equal(FUNCTIONS["sigmoid"].meaning(far), [0.0, 1.0])
    np.testing.assert_array_equal(FUNCTIONS["softplus"].meaning(far), [0.0, 800.0])
    assert math.isclose(float(FUNCTIONS["xlogy"].meaning(np.float64(0), np.float64(0))), 0.0)
