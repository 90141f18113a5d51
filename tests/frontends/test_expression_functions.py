"""Every function of the table, evaluated over NumPy, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuseledger.frontends.expression import parse
from fuseledger.frontends.expression_functions import FUNCTIONS
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.validate import validate

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.torch

Values = dict[str, Any]
INTEGERS = {"ids": 3}
"""Inputs that hold positions, and the number of positions."""


def _inputs(graph: Any) -> Values:
    generator = torch.Generator().manual_seed(7)
    values: Values = {}
    for tensor in graph.tensors.values():
        if not tensor.is_external:
            continue
        if tensor.name in INTEGERS:
            values[tensor.name] = torch.randint(
                INTEGERS[tensor.name], tensor.shape, generator=generator
            )
        else:
            values[tensor.name] = torch.randn(
                tensor.shape, generator=generator, dtype=torch.float64
            )
        if tensor.name in ("variance", "p", "z"):  # arguments that must be positive
            values[tensor.name] = values[tensor.name].abs() + 1.1
        if tensor.name == "u":  # within (−1, 1)
            values[tensor.name] = values[tensor.name].tanh()
    return values


def _compare(text: str, reference: Callable[[Values], Any], tolerance: float = 1e-9) -> None:
    graph = validate(parse(text, dtype="fp32"))
    values = _inputs(graph)
    opaque = {"topk": _topk, "sort": _sort}
    found = evaluate(graph, {name: v.numpy() for name, v in values.items()}, opaque=opaque)
    wanted = reference(values)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert len(found) == len(wanted)
    for result, expected in zip(found.values(), wanted, strict=True):
        assert result.shape == tuple(expected.shape)
        np.testing.assert_allclose(
            result, expected.to(torch.float64).numpy(), rtol=tolerance, atol=tolerance
        )


def _topk(op: Any, arguments: list[Any]) -> list[Any]:
    found = torch.topk(torch.from_numpy(arguments[0]), op.attributes["k"], op.attributes["dim"])
    return [found.values.numpy(), found.indices.numpy()]


def _sort(op: Any, arguments: list[Any]) -> list[Any]:
    found = torch.sort(torch.from_numpy(arguments[0]), op.attributes["dim"])
    return [found.values.numpy(), found.indices.numpy()]


def _of_x(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[Values], Any]:
    return lambda v: function(v["x"], *args, **kwargs)


def _moments(v: Values, axes: list[int]) -> Any:
    x = v["x"]
    spread = x.var(axes, correction=0, keepdim=True)
    return (x - x.mean(axes, keepdim=True)) / torch.sqrt(spread + 1e-5)


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def _quantised(v: Values) -> tuple[Any, Any]:
    scale = v["x"].abs().amax(-1, keepdim=True) / 448.0
    return (v["x"] / scale).to(torch.float8_e4m3fn), scale


def _halves(v: Values) -> Any:
    return v["x"].chunk(2, -1)


CASES: dict[str, tuple[str, Callable[[Values], Any]]] = {
    "gemm": ("gemm(4,6,5)", lambda v: v["A"] @ v["B"]),
    "linear": (
        "x[2,3,8] | linear(4, bias=true)",
        lambda v: F.linear(v["x"], v["weight"], v["bias"]),
    ),
    "einsum": (
        'einsum("bmk,kn,n->bm", x[2,3,4], w[4,5], g[5])',
        lambda v: torch.einsum("bmk,kn,n->bm", v["x"], v["w"], v["g"]),
    ),
    "attention": (
        "attention(q[2,4,5,8], k[2,2,5,8], v[2,2,5,8], causal=true, scale=0.3)",
        lambda v: F.scaled_dot_product_attention(
            v["q"], v["k"], v["v"], is_causal=True, scale=0.3, enable_gqa=True
        ),
    ),
    "rope": (
        "rope(x[2,3,5,8])",
        lambda v: _rotated(v["x"], v["cos"], v["sin"]),
    ),
    "conv": (
        "conv(x[2,4,9,10], w[6,2,3,3], stride=2, padding=[1,2], dilation=2, groups=2)",
        lambda v: F.conv2d(v["x"], v["w"], None, 2, (1, 2), 2, 2),
    ),
    "conv_transpose": (
        "conv_transpose(x[2,4,5,6], w[4,3,3,3], stride=2, padding=1, output_padding=1, groups=2)",
        lambda v: F.conv_transpose2d(v["x"], v["w"], None, 2, 1, 1, 2),
    ),
    "max_pool": (
        "max_pool(x[2,3,9,10], 3, stride=2, padding=1, ceil=true)",
        _of_x(F.max_pool2d, 3, 2, 1, ceil_mode=True),
    ),
    "avg_pool": (
        "avg_pool(x[2,3,9,10], 3, stride=2, padding=1, count_padding=false)",
        _of_x(F.avg_pool2d, 3, 2, 1, count_include_pad=False),
    ),
    "softmax": ("softmax(x[3,5], axis=0)", _of_x(torch.softmax, 0)),
    "log_softmax": ("x[3,5] + log_softmax", _of_x(torch.log_softmax, -1)),
    "layer_norm": (
        "layer_norm(x[3,4,8], dims=2)",
        lambda v: F.layer_norm(v["x"], (4, 8), v["scale"], v["shift"]),
    ),
    "rms_norm": ("rms_norm(x[3,8])", lambda v: F.rms_norm(v["x"], (8,), v["scale"], 1e-6)),
    "group_norm": (
        "group_norm(x[3,4,5], 2)",
        lambda v: F.group_norm(v["x"], 2, v["scale"], v["shift"]),
    ),
    "instance_norm": (
        "instance_norm(x[3,4,5], affine=false)",
        lambda v: _moments(v, [2]),
    ),
    "batch_norm": (
        "batch_norm(x[3,4,5])",
        lambda v: F.batch_norm(v["x"], v["mean"], v["variance"], v["scale"], v["shift"]),
    ),
    "sum": ("sum(x[3,4,5], axis=[0,-1])", _of_x(torch.sum, (0, 2))),
    "mean": ("mean(x[3,4,5], axis=1, keepdim=true)", _of_x(torch.mean, 1, keepdim=True)),
    "max": ("max(x[3,4,5], axis=(1, 2))", _of_x(torch.amax, (1, 2))),
    "min": ("min(x[3,4,5])", _of_x(torch.min)),
    "prod": ("prod(x[3,4], 1)", _of_x(torch.prod, 1)),
    "any": ("any(x[3,4] > 1, 1)", lambda v: (v["x"] > 1).any(1)),
    "all": ("all(x[3,4] > -1, 1)", lambda v: (v["x"] > -1).all(1)),
    "var": ("var(x[3,4,5], axis=[0,2])", _of_x(torch.var, (0, 2))),
    "std": ("std(x[3,4,5], axis=1, correction=0)", _of_x(torch.std, 1, correction=0)),
    "norm": ("norm(x[3,4], axis=1)", _of_x(torch.linalg.vector_norm, dim=1)),
    "logsumexp": ("logsumexp(x[3,4,5], axis=[1,2])", _of_x(torch.logsumexp, (1, 2))),
    "argmax": ("argmax(x[3,4], axis=0, keepdim=true)", _of_x(torch.argmax, 0, keepdim=True)),
    "argmin": ("argmin(x[3,4])", _of_x(torch.argmin)),
    "cumsum": ("cumsum(x[3,4])", _of_x(torch.cumsum, 1)),
    "cumprod": ("cumprod(x[3,4], axis=0)", _of_x(torch.cumprod, 0)),
    "leaky_relu": ("x[3,4] + leaky_relu(0.2)", _of_x(F.leaky_relu, 0.2)),
    "elu": ("elu(x[3,4], alpha=1.5)", _of_x(F.elu, 1.5)),
    "celu": ("celu(x[3,4], alpha=1.5)", _of_x(F.celu, 1.5)),
    "clamp": ("clamp(x[3,4], -1, 0.5)", _of_x(torch.clamp, -1, 0.5)),
    "maximum": ("maximum(x[3,4], y[4])", lambda v: torch.maximum(v["x"], v["y"])),
    "minimum": ("minimum(x[3,4], y[4])", lambda v: torch.minimum(v["x"], v["y"])),
    "atan2": ("atan2(x[3,4], y[4])", lambda v: torch.atan2(v["x"], v["y"])),
    "mod": ("mod(x[3,4], y[4])", lambda v: torch.remainder(v["x"], v["y"])),
    "where": (
        "where(x[3,4] > 0, x, y[4])",
        lambda v: torch.where(v["x"] > 0, v["x"], v["y"]),
    ),
    "bias": ("x[3,4,5] + bias(axis=1)", lambda v: v["x"] + v["bias"][:, None]),
    "scale": ("x[3,4] | scale", lambda v: v["x"] * v["scale"]),
    "residual": ("relu(x[3,4]) + residual", lambda v: v["x"].relu() + v["residual"]),
    "dropout": ("relu(x[3,4]) | dropout(0)", _of_x(torch.relu)),
    "cast": ("cast(x[3,4], int32)", _of_x(torch.trunc)),
    "quantise": ("quantise(x[3,8])", _quantised),
    "swiglu": ("swiglu(x[3,8])", lambda v: F.silu(_halves(v)[0]) * _halves(v)[1]),
    "geglu": ("geglu(x[3,8], up=y[3,8])", lambda v: F.gelu(v["x"]) * v["y"]),
    "reglu": ("reglu(x[3,8])", lambda v: F.relu(_halves(v)[0]) * _halves(v)[1]),
    "glu": ("glu(x[3,8])", _of_x(F.glu)),
    "transpose": ("relu(x[2,3,4]) | transpose(0, 2, 1)", lambda v: v["x"].relu().mT),
    "reshape": ("relu(reshape(x[4,6], [2,-1,3]))", lambda v: v["x"].reshape(2, 4, 3).relu()),
    "concat": (
        "concat(x[2,3], y[2,4], x, axis=1)",
        lambda v: torch.cat([v["x"], v["y"], v["x"]], 1),
    ),
    "slice": ("relu(slice(x[3,8], 1, -1, step=2))", lambda v: v["x"][:, 1:-1:2].relu()),
    "split": (
        "a, b = split(x[3,8], 2); a * b",
        lambda v: _halves(v)[0] * _halves(v)[1],
    ),
    "embedding": ("embedding(ids[2,5], t[3,4])", lambda v: F.embedding(v["ids"], v["t"])),
    "take": (
        "take(x[2,3,4], ids[5], axis=1)",
        lambda v: torch.index_select(v["x"], 1, v["ids"]),
    ),
    "gather": ("gather(x[2,3], ids[2,5])", lambda v: torch.gather(v["x"], 1, v["ids"])),
    "topk": ("topk(x[3,8], 2)", lambda v: tuple(torch.topk(v["x"], 2))),
    "sort": ("sort(x[3,8], axis=0)", lambda v: tuple(torch.sort(v["x"], 0))),
}
"""Function → an expression that uses it, and the same in PyTorch."""

POSITIVE = {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "acosh"}
BOUNDED = {"asin", "acos", "atanh"}
UNARY: dict[str, Callable[[Any], Any]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "not": lambda x: x == 0,
}
"""Unary functions that PyTorch spells otherwise."""


def _unary_reference(name: str) -> Callable[[Any], Any]:
    return UNARY.get(name) or getattr(torch, name, None) or getattr(F, name)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_computes_what_torch_computes(name: str) -> None:
    """Each function of the table agrees with PyTorch in float64, and no function is untested."""
    if name in CASES:
        _compare(*CASES[name])
        return
    operand = "z" if name in POSITIVE else "u" if name in BOUNDED else "x"
    reference = _unary_reference(name)
    _compare(f"{name}({operand}[3,4])", lambda v: reference(v[operand]))


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (
            "gemm(4,6,5) + bias + gelu + residual",
            lambda v: F.gelu(v["A"] @ v["B"] + v["bias"]) + v["residual"],
        ),
        ("gemm(4,6,5,batch=3)", lambda v: v["A"] @ v["B"]),
        ("softmax(x[2,3,4]) @ v[2,4,5]", lambda v: torch.softmax(v["x"], -1) @ v["v"]),
        (
            "rms_norm(x[3,8]) @ w[8,5]",
            lambda v: F.rms_norm(v["x"], (8,), v["scale"], 1e-6) @ v["w"],
        ),
        (
            "h = x[8,16] @ w[16,32]; softmax(h) * h",
            lambda v: torch.softmax(v["x"] @ v["w"], -1) * (v["x"] @ v["w"]),
        ),
        ("2 - x[3,4] / 4 * -3 + x", lambda v: 2 - v["x"] / 4 * -3 + v["x"]),
        ("-x[3]**2 + 2**-1 * x**3", lambda v: -(v["x"] ** 2) + 0.5 * v["x"] ** 3),
        ("z[3]**0.5 + z**-0.5 + z**-1", lambda v: v["z"] ** 0.5 + v["z"] ** -0.5 + 1 / v["z"]),
        ("where(x[3,4] <= y[4], 1 * x, 0 * x)", lambda v: v["x"] * (v["x"] <= v["y"])),
        ("x[4] @ w[4,5] @ y[5]", lambda v: v["x"] @ v["w"] @ v["y"]),
        ("x[2,1,3,4] @ y[5,4,6]", lambda v: v["x"] @ v["y"]),
        ("softmax(x[5,1])", _of_x(torch.softmax, -1)),
        ("x[] * y[3]", lambda v: v["x"] * v["y"]),
        (
            "attention(q[4,8], k[6,8], v[6,5], mask=m[4,6])",
            lambda v: F.scaled_dot_product_attention(v["q"], v["k"], v["v"], attn_mask=v["m"]),
        ),
        (
            "batch_norm(x[3,4,5], affine=false, training=true)",
            lambda v: _moments(v, [0, 2]),
        ),
        ("einsum('ij,ij', x[3,4], y[3,4])", lambda v: (v["x"] * v["y"]).sum()),
        ("einsum('ij->ji', relu(x[3,4])) * 2", lambda v: v["x"].relu().T * 2),
        (
            "quantise(x[3,8], int8, per=tensor)",
            lambda v: (
                (v["x"] / (v["x"].abs().max() / 127)).round(),
                (v["x"].abs().max() / 127).reshape(1, 1),
            ),
        ),
    ],
)
def test_operators_and_stages_compute_what_torch_computes(
    text: str, reference: Callable[[Values], Any]
) -> None:
    """Operators, precedence, broadcasting and stages mean what they mean in PyTorch."""
    _compare(text, reference)
