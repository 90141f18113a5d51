"""Norms, softmax, reductions and scans as functions of expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuseledger.frontends.expression_pointwise import AXIS, X
from fuseledger.frontends.expression_syntax import Mistake
from fuseledger.frontends.expression_table import Function, Param, Result, Scope, shape_of
from fuseledger.graph import compose
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.operand import Operand
from fuseledger.graph.scalar import Read, call
from fuseledger.graph.view import View


def _norm_weights(
    s: Scope, shape: Sequence[int], x: View, affine: bool
) -> tuple[View | None, View | None]:
    if not affine:
        return None, None
    return s.weight("scale", shape, x), s.weight("shift", shape, x)


def _tail(x: View, dims: int) -> tuple[int, ...]:
    if not 1 <= dims <= len(x.shape):
        raise Mistake(f"dims is {dims}; {shape_of(x.shape)} has {len(x.shape)} axes")
    return x.shape[len(x.shape) - dims :]


def _layer_norm(s: Scope, x: View, dims: int, eps: float, affine: bool) -> View:
    scale, shift = _norm_weights(s, _tail(x, dims), x, affine)
    return compose.layer_norm(s.b, x, dims, scale, shift, eps)


def _rms_norm(s: Scope, x: View, dims: int, eps: float, affine: bool) -> View:
    shape = _tail(x, dims)
    scale = s.weight("scale", shape, x) if affine else None
    return compose.rms_norm(s.b, x, dims, scale, eps)


def _channels(label: str, x: View, least: int = 2) -> int:
    if len(x.shape) < least:
        raise Mistake(f"{label} needs [batch, channels, …], not {shape_of(x.shape)}")
    return x.shape[1]


def _group_norm(s: Scope, x: View, groups: int, eps: float, affine: bool) -> View:
    channels = _channels("group_norm", x)
    if channels % groups:
        raise Mistake(
            f"{channels} channels of {shape_of(x.shape)} do not split into {groups} groups"
        )
    scale, shift = _norm_weights(s, [channels], x, affine)
    return compose.group_norm(s.b, x, groups, scale, shift, eps)


def _instance_norm(s: Scope, x: View, eps: float, affine: bool) -> View:
    channels = _channels("instance_norm", x, 3)
    scale, shift = _norm_weights(s, [channels], x, affine)
    return compose.group_norm(s.b, x, channels, scale, shift, eps)


def _batch_norm(s: Scope, x: View, eps: float, affine: bool, training: bool) -> View:
    channels = _channels("batch_norm", x)
    scale, shift = _norm_weights(s, [channels], x, affine)
    centre = spread = None
    if not training:
        centre, spread = (s.weight(name, [channels], x) for name in ("mean", "variance"))
    return compose.batch_norm(s.b, x, scale, shift, centre, spread, eps, training=training)


def _fold(combine: str) -> Callable[..., Result]:
    def lower(s: Scope, x: View, axis: tuple[int, ...], keepdim: bool) -> View:
        return s.b.reduce(combine, [x], axis, combine, keepdim=keepdim)[0]

    return lower


def _sum(s: Scope, x: View, axis: tuple[int, ...], keepdim: bool) -> View:
    integer = not x.dtype.startswith(("fp", "bf", "complex"))
    dtype = "int64" if integer else s.accumulated(x.dtype)
    return s.b.reduce("sum", [x], axis, "sum", keepdim=keepdim, dtypes=[dtype])[0]


def _truth(combine: str) -> Callable[..., Result]:
    def lower(s: Scope, x: View, axis: tuple[int, ...], keepdim: bool) -> View:
        return s.b.reduce(combine, [x], axis, combine, keepdim=keepdim, dtypes=["bool"])[0]

    return lower


def _mean(s: Scope, x: View, axis: tuple[int, ...], keepdim: bool) -> View:
    return compose.mean(s.b, x, axis, keepdim=keepdim, dtype=s.real(x.dtype))


def _spread(*, root: bool) -> Callable[..., Result]:
    def lower(s: Scope, x: View, axis: tuple[int, ...], keepdim: bool, correction: float) -> View:
        return compose.variance(s.b, x, axis, correction=correction, keepdim=keepdim, root=root)

    return lower


def _norm(s: Scope, x: View, axis: tuple[int, ...], keepdim: bool) -> View:
    with s.b.labelled("norm"):
        body = call("square", Read(0))
        (total,) = s.b.reduce(
            "norm.statistic", [x], axis, "sum", body=body, keepdim=keepdim, dtypes=["fp32"]
        )
        return s.b.map("norm.finish", [total], body=call("sqrt", Read(0)), dtype=s.real(x.dtype))


def _logsumexp(s: Scope, x: View, axis: tuple[int, ...], keepdim: bool) -> View:
    return compose.logsumexp(s.b, x, axis, keepdim=keepdim)


def _position(combine: str) -> Callable[..., Result]:
    """argmax and argmin along one axis, or of all elements in row-major order."""

    def lower(s: Scope, x: View, axis: int | None, keepdim: bool) -> View:
        rank = len(x.shape)
        flat = x if axis is not None else s.b.reshape(x, [x.elements])
        (found,) = s.b.reduce(
            combine, [flat], [axis or 0], combine, keepdim=keepdim and axis is not None,
            dtypes=["int64"],
        )  # fmt: skip
        return s.b.reshape(found, [1] * rank) if keepdim and axis is None else found

    return lower


def _softmax(*, log: bool) -> Callable[..., Result]:
    def lower(s: Scope, x: View, axis: int) -> View:
        return compose.softmax(s.b, x, axis, log=log, dtype=s.real(x.dtype))

    return lower


def _scan(combine: str) -> Callable[..., Result]:
    """An axis walked in order and kept."""

    def lower(s: Scope, x: View, axis: int) -> View:
        letters, out = dim_letters(x.shape)
        along = out[axis]
        if along is None:
            return x
        return s.b.loop(
            f"cum{combine}", letters, [Operand(x, tuple(out))], out, Read(0), dtypes=[x.dtype],
            combine=combine, scans=[along],
        )[0]  # fmt: skip

    return lower


_AXES = Param("axis", "axes", None)
_KEEP = Param("keepdim", "flag", False)
_REDUCED = (X, _AXES, _KEEP)
_AFFINE = Param("affine", "flag", True)
_EPS = Param("eps", "number", 1e-5)
_DIMS = Param("dims", "integer", 1)

REDUCTIONS: list[Function] = [
    Function("softmax", (X, AXIS), _softmax(log=False), meaning="eˣ/Σeˣ along the axis"),
    Function("log_softmax", (X, AXIS), _softmax(log=True), meaning="x − ln Σeˣ"),
    Function(
        "layer_norm",
        (X, _DIMS, _EPS, _AFFINE),
        _layer_norm,
        meaning="over the last `dims` axes, with weights `scale` and `shift`",
    ),
    Function(
        "rms_norm",
        (X, _DIMS, Param("eps", "number", 1e-6), _AFFINE),
        _rms_norm,
        meaning="x·rsqrt(mean x² + eps)·`scale` over the last `dims` axes",
    ),
    Function(
        "group_norm",
        (X, Param("groups", "size"), _EPS, _AFFINE),
        _group_norm,
        meaning="over each group of channels of [batch, channels, …]",
    ),
    Function(
        "instance_norm",
        (X, _EPS, _AFFINE),
        _instance_norm,
        meaning="over each channel of each sample",
    ),
    Function(
        "batch_norm",
        (X, _EPS, _AFFINE, Param("training", "flag", False)),
        _batch_norm,
        meaning="per channel: by weights `mean` and `variance`, or by the "
        "batch's own when training",
    ),
    Function("sum", _REDUCED, _sum, meaning="Σ over the axes; over all where none is named"),
    Function("mean", _REDUCED, _mean, meaning="Σ/N"),
    Function("max", _REDUCED, _fold("max"), meaning="largest", aliases=("amax",)),
    Function("min", _REDUCED, _fold("min"), meaning="smallest", aliases=("amin",)),
    Function("prod", _REDUCED, _fold("prod"), meaning="product"),
    Function("any", _REDUCED, _truth("any"), meaning="whether any is not 0"),
    Function("all", _REDUCED, _truth("all"), meaning="whether none is 0"),
    Function(
        "var",
        (*_REDUCED, Param("correction", "number", 1)),
        _spread(root=False),
        meaning="variance, divided by N − correction",
    ),
    Function(
        "std", (*_REDUCED, Param("correction", "number", 1)), _spread(root=True), meaning="√var"
    ),
    Function("norm", _REDUCED, _norm, meaning="√Σx²"),
    Function("logsumexp", _REDUCED, _logsumexp, meaning="ln Σeˣ"),
    Function(
        "argmax",
        (X, Param("axis", "axis", None), _KEEP),
        _position("argmax"),
        meaning="position of the largest, along one axis or of all elements",
    ),
    Function(
        "argmin",
        (X, Param("axis", "axis", None), _KEEP),
        _position("argmin"),
        meaning="position of the smallest",
    ),
    Function("cumsum", (X, AXIS), _scan("sum"), meaning="running Σ"),
    Function("cumprod", (X, AXIS), _scan("prod"), meaning="running product"),
]
