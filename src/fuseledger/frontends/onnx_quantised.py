"""ONNX quantisation: scale and round as pointwise ops, integer products as contractions.

An integer product subtracts its zero points before it multiplies, as an op of its own that a
schedule may fuse; where a zero point is known to be 0 there is none.
"""

from __future__ import annotations

from fuseledger.frontends.onnx_infer import Value
from fuseledger.frontends.onnx_nn import windows
from fuseledger.frontends.onnx_site import Lowerer, Site, Unlowered, X, Y, Z
from fuseledger.graph import compose, window
from fuseledger.graph.scalar import Expr, Read, call
from fuseledger.graph.view import View

RANGES: dict[str, tuple[float, float]] = {
    "uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767),
    "uint4": (0, 15), "int4": (-8, 7),
}  # fmt: skip
"""Least and greatest value of the dtypes that QuantizeLinear saturates to."""

_FLOAT8 = {"fp8_e4m3": "cast_fp8_e4m3", "fp8_e5m2": "cast_fp8_e5m2"}


def _saturated(x: Expr, dtype: str) -> Expr:
    if dtype in _FLOAT8:
        return call(_FLOAT8[dtype], x)
    if dtype not in RANGES:
        raise Unlowered(dtype)
    low, high = RANGES[dtype]
    return call("clamp", x, low, high)


def _quantised(x: Expr, scale: Expr, zero: Expr | None, dtype: str) -> Expr:
    """saturate(round(x / scale) + zero)"""
    scaled = call("div", x, scale)
    if dtype in _FLOAT8:
        return _saturated(scaled, dtype)
    whole: Expr = call("round", scaled)
    return _saturated(whole if zero is None else call("add", whole, zero), dtype)


def _zero(value: Value | None) -> Value | None:
    """A zero point, or None where it is missing or known to be 0."""
    if value is None or (value.array is not None and not value.array.astype("float64").any()):
        return None
    return value


def _along(s: Site, value: Value, rank: int, axis: int) -> View | Value:
    """A scale or zero point of one element, or with its one dimension at `axis`."""
    if value.shape is None:
        raise Unlowered(value.name)
    if all(n == 1 for n in value.shape):
        return value if value.array is not None else s.b.reshape(s.values.view(value), [])
    if len(value.shape) != 1:
        raise Unlowered(value.name)
    shape = [1] * rank
    shape[axis] = value.shape[0]
    return s.b.reshape(s.values.view(value), shape)


def _scaled(s: Site, function: str) -> View:
    """x with its scale and zero point: per tensor, per axis, or per block of an axis."""
    x, block = s.view(), int(s.get("block_size", 0))
    rank, axis = len(x.shape), s.axis(len(x.shape), 1)
    scale, zero = s.operand(1), _zero(s.given(2))
    wide: list[View | Value] = []
    if block and scale.shape is not None and len(scale.shape) == rank:
        if x.shape[axis] % block:
            raise Unlowered("block_size")
        x = s.b.reshape(x, [*x.shape[:axis], x.shape[axis] // block, block, *x.shape[axis + 1 :]])
        wide = [s.values.view(v).unsqueeze(axis + 1) for v in (scale, zero) if v is not None]
    else:
        wide = [_along(s, v, rank, axis) for v in (scale, zero) if v is not None]
    body = (
        _quantised(X, Y, Z if zero is not None else None, s.dtype)
        if function == "quantize"
        else call("mul", X if zero is None else call("sub", X, Z), Y)
    )
    return s.b.reshape(s.map(function, [x, *wide], body), s.view().shape)


def _dynamic(s: Site) -> list[View | None]:
    """Scale and zero point from the tensor's own range, 0 included: two statistics, then maps."""
    x = s.view()
    over = list(range(len(x.shape)))
    with s.b.labelled("dynamic_quantize"):
        (top,) = s.b.reduce("max", [x], over, "max", dtypes=["fp32"])
        (bottom,) = s.b.reduce("min", [x], over, "min", dtypes=["fp32"])
        low, high = call("min", Read(1), 0.0), call("max", Read(0), 0.0)
        span = call("div", call("sub", high, low), 255.0)
        scale = s.b.map("scale", [top, bottom], body=span, dtype="fp32")
        offset = call("round", call("neg", call("div", call("min", Read(0), 0.0), Read(1))))
        zero = s.b.map(
            "zero_point", [bottom, scale], body=call("clamp", offset, 0.0, 255.0), dtype="uint8"
        )
        body = _quantised(Read(0), Read(1), Read(2), "uint8")
        return [s.b.map("quantize", [x, scale, zero], body=body, dtype="uint8"), scale, zero]


# -- integer products --------------------------------------------------------------------------


def _centred(s: Site, position: int, zero_at: int, axis: int) -> View:
    """An input less its zero point, one number or one for each index along `axis`."""
    x, zero = s.view(position), _zero(s.given(zero_at))
    if zero is None:
        return x
    at = _along(s, zero, len(x.shape), axis % len(x.shape))
    wider = "int32" if x.dtype not in ("int8", "uint8") else "int16"
    return s.map("zero_point", [x, at], call("sub", X, Y), dtype=wider)


def _requantised(
    s: Site, product: View, scales: tuple[int, int, int], zero_at: int, axis: int
) -> View:
    """saturate(round(product · scale_a · scale_b / scale_y) + zero_y)"""
    rank = len(product.shape)
    args: list[View | Value] = [product]
    for position, at in zip(scales, (0, axis, 0), strict=True):
        args.append(_along(s, s.operand(position), rank, at % max(rank, 1)))
    zero = _zero(s.given(zero_at))
    if zero is not None:
        args.append(_along(s, zero, rank, axis % max(rank, 1)))
    scaled = call("mul", X, call("mul", Y, Z))
    body = _quantised(scaled, Read(3), Read(4) if zero is not None else None, s.dtype)
    return s.map("requantize", args, body)


def _matmul_integer(s: Site) -> View:
    left, right = _centred(s, 0, 2, -2), _centred(s, 1, 3, -1)
    return compose.matmul(s.b, left, right, dtype="int32")


def _qlinear_matmul(s: Site) -> View:
    left, right = _centred(s, 0, 2, -2), _centred(s, 3, 5, -1)
    product = compose.matmul(s.b, left, right, dtype="int32")
    return _requantised(s, product, (1, 4, 6), 7, -1)


def _convolved(s: Site, x: View, weight: View) -> View:
    found = windows(s, x.shape[2:], weight.shape[2:])
    return window.convolution(s.b, x, weight, found, groups=int(s.get("group", 1)), dtype="int32")


def _conv_integer(s: Site) -> View:
    return _convolved(s, _centred(s, 0, 2, 0), _centred(s, 1, 3, 0))


def _qlinear_conv(s: Site) -> View:
    product = _convolved(s, _centred(s, 0, 2, 0), _centred(s, 3, 5, 0))
    bias = s.maybe(8)
    if bias is not None:
        wide = s.b.reshape(bias, [bias.elements, *([1] * (len(product.shape) - 2))])
        product = s.map("bias", [product, wide], call("add", X, Y), dtype="int32")
    return _requantised(s, product, (1, 4, 6), 7, 1)


def _qlinear_binary(function: str) -> Lowerer:
    """com.microsoft QLinearAdd and QLinearMul: dequantise, compute, quantise, in one op."""

    def lower(s: Site) -> View:
        left = call("mul", call("sub", Read(0), Read(2)), Read(1))
        right = call("mul", call("sub", Read(3), Read(5)), Read(4))
        body = _quantised(call(function, left, right), Read(6), Read(7), s.dtype)
        return s.map(function, s.operands(), body, dtype=s.dtype)

    return lower


QUANTISED: dict[str, Lowerer] = {
    "QuantizeLinear": lambda s: _scaled(s, "quantize"),
    "DequantizeLinear": lambda s: _scaled(s, "dequantize"),
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "com.microsoft.QLinearAdd": _qlinear_binary("add"),
    "com.microsoft.QLinearMul": _qlinear_binary("mul"),
}
