"""ONNX normalisations: a statistic and what applies it."""

from __future__ import annotations

from math import prod

from fuseledger.frontends.onnx_pointwise import cast
from fuseledger.frontends.onnx_site import Lowerer, Site, Unlowered
from fuseledger.graph import compose
from fuseledger.graph.axis import Index
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.operand import Operand, Where
from fuseledger.graph.scalar import Const, Expr, Read, call
from fuseledger.graph.view import View


def normalised(
    s: Site,
    label: str,
    x: View,
    over: list[int],
    scale: View | None,
    shift: View | None,
    eps: float,
) -> tuple[View, View, View]:
    """((x − mean)·rsqrt(M2/N + eps)·scale + shift, mean, M2); scale and shift broadcast."""
    return compose.normalise(s.b, label, x, over, scale, shift, eps, dtype=s.dtype)


def layer_norm(
    s: Site, x: View, scale: View | None, shift: View | None, axis: int
) -> list[View | None]:
    """(Y, Mean, InvStdDev) over the dimensions from `axis` on."""
    over = list(range(axis, len(x.shape)))
    count = prod(x.shape[axis:])
    eps = float(s.get("epsilon", 1e-5))
    result, centre, m2 = normalised(s, "layer_norm", x, over, scale, shift, eps)
    inverse = None
    if s.is_read(2):
        body = call("rsqrt", call("fma", Read(0), 1.0 / max(count, 1), eps))
        inverse = s.b.map("layer_norm.inverse", [m2], body=body, dtype="fp32")
    return [result, centre, inverse]


def _layer_norm(s: Site) -> list[View | None]:
    x = s.view()
    return layer_norm(s, x, s.view(1), s.maybe(2), s.axis(len(x.shape), -1))


def _rms_norm(s: Site) -> View:
    x = s.view()
    axis = s.axis(len(x.shape), -1)
    return compose.rms_norm(s.b, x, len(x.shape) - axis, s.view(1), float(s.get("epsilon", 1e-5)))


def _instance_norm(s: Site) -> View:
    x = s.view()
    eps = float(s.get("epsilon", 1e-5))
    return compose.group_norm(s.b, x, x.shape[1], s.view(1), s.view(2), eps)


def _group_norm(s: Site) -> View:
    """Scale and shift are one number per channel since opset 21, per group before."""
    x, groups = s.view(), int(s.get("num_groups", 1))
    batch, channels, *space = x.shape
    width = channels // groups
    split = s.b.reshape(x, [batch, groups, width, *space])

    def spread(view: View) -> View:
        inner = width if view.elements == channels else 1
        return s.b.reshape(view, [1, groups, inner, *([1] * len(space))])

    over = list(range(2, len(split.shape)))
    eps = float(s.get("epsilon", 1e-5))
    result = normalised(s, "group_norm", split, over, spread(s.view(1)), spread(s.view(2)), eps)[0]
    return s.b.reshape(result, x.shape)


def _batch_norm(s: Site) -> list[View | None]:
    """A per-channel affine in inference; in training the batch's statistics, and running ones."""
    x, scale, shift, centre, variance = (s.view(i) for i in range(5))
    eps = float(s.get("epsilon", 1e-5))
    if not s.get("training_mode", 0):
        return [compose.batch_norm(s.b, x, scale, shift, centre, variance, eps, training=False)]
    rank = len(x.shape)
    over = [dim for dim in range(rank) if dim != 1]
    count = prod(x.shape[dim] for dim in over)
    wide = [s.b.reshape(v, [v.elements, *([1] * (rank - 2))]) for v in (scale, shift)]
    result, mean, m2 = normalised(s, "batch_norm", x, over, wide[0], wide[1], eps)
    keep = float(s.get("momentum", 0.9))
    running: list[View | None] = []
    for position, (old, new, factor) in enumerate(
        ((centre, mean, 1.0), (variance, m2, 1.0 / count)), 1
    ):
        body = call("fma", Read(0), keep, call("mul", Read(1), (1.0 - keep) * factor))
        flat = s.b.reshape(new, [new.elements])
        running.append(s.b.map("running", [old, flat], body=body) if s.is_read(position) else None)
    return [result, *running]


def _mean_variance_norm(s: Site) -> View:
    """(x − mean) / √(variance + 1e-9) over `axes`, which do not default to all."""
    x = s.view()
    over = sorted(axis % len(x.shape) for axis in s.ints("axes") or [0, 2, 3])
    return normalised(s, "mean_variance_norm", x, over, None, None, 1e-9)[0]


def _lp_norm(s: Site) -> View:
    """x over its 1- or 2-norm along `axis`; 0 where the norm is 0."""
    x, order = s.view(), int(s.get("p", 2))
    dim = s.axis(len(x.shape), -1)
    with s.b.labelled("lp_norm"):
        power = call("abs" if order == 1 else "square", Read(0))
        (total,) = s.b.reduce(
            "lp_norm.statistic", [x], [dim], "sum", body=power, keepdim=True, dtypes=["fp32"]
        )
        length: Expr = Read(1) if order == 1 else call("sqrt", Read(1))
        body = call("where", call("eq", Read(1), 0.0), 0.0, call("div", Read(0), length))
        return s.b.map("lp_norm.apply", [x, total], body=body, dtype=s.dtype)


def _lrn(s: Site) -> View:
    """x / (bias + alpha/size · Σ x² over a window of channels)^beta."""
    x, size = s.view(), int(s.get("size", 1))
    alpha, beta, bias = (
        float(s.get(n, d)) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    with s.b.labelled("lrn"):
        letters, out = dim_letters(x.shape)
        channel = out[1]
        if channel is None or size == 1:
            total = s.b.map("square", [x], body=call("square", Read(0)), dtype="fp32")
        else:
            where: list[Where] = list(out)
            where[1] = Index(((channel, 1), ("r", 1)), -((size - 1) // 2))
            (total,) = s.b.loop(
                "lrn.statistic", {**letters, "r": size}, [Operand(x, tuple(where), 0.0)], out,
                call("square", Read(0)), dtypes=["fp32"], combine="sum",
            )  # fmt: skip
        spread = call("pow", call("fma", Read(1), alpha / size, Const(bias)), -beta)
        return s.b.map("lrn.apply", [x, total], body=call("mul", Read(0), spread), dtype=s.dtype)


def _simplified_layer_norm(s: Site) -> View:
    if s.is_read(1):
        raise Unlowered("inv_std_var")
    return cast(s, _rms_norm(s), s.dtype)


NORMS: dict[str, Lowerer] = {
    "LayerNormalization": _layer_norm, "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _simplified_layer_norm,
    "InstanceNormalization": _instance_norm, "GroupNormalization": _group_norm,
    "BatchNormalization": _batch_norm, "MeanVarianceNormalization": _mean_variance_norm,
    "LpNormalization": _lp_norm, "LRN": _lrn,
}  # fmt: skip
