"""Composites as loop nests: norms, softmax, losses, attention. Each keeps its name as a label.

A reduction is a *statistic* (one pass, several results, an associative combine); what uses it is
an `apply`. Every function takes the builder first and returns views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.operand import Operand
from fuseledger.graph.scalar import Const, Coord, Expr, Read, call
from fuseledger.graph.view import View


def matmul(
    b: GraphBuilder, x: View, y: View, *, function: str = "gemm", dtype: str | None = None
) -> View:
    """NumPy's matmul: batch dimensions broadcast, vectors allowed."""
    batch = "abcdefgh"
    if len(x.shape) == 1 and len(y.shape) == 1:
        return b.contract(function, "k,k->", [x, y], dtype=dtype)
    if len(x.shape) == 1:
        lead = batch[: len(y.shape) - 2]
        return b.contract(function, f"k,{lead}kn->{lead}n", [x, y], dtype=dtype)
    if len(y.shape) == 1:
        lead = batch[: len(x.shape) - 2]
        return b.contract(function, f"{lead}mk,k->{lead}m", [x, y], dtype=dtype)
    rank = max(len(x.shape), len(y.shape)) - 2
    lead = batch[:rank]
    left, right = lead[rank - len(x.shape) + 2 :], lead[rank - len(y.shape) + 2 :]
    return b.contract(function, f"{left}mk,{right}kn->{lead}mn", [x, y], dtype=dtype)


def linear(b: GraphBuilder, x: View, weight: View, bias: View | None) -> View:
    """`x · weightᵀ + bias`, weight [n, k]."""
    batch = "abcdefgh"[: len(x.shape) - 1]
    product = b.contract("gemm", f"{batch}k,nk->{batch}n", [x, weight])
    return (
        product
        if bias is None
        else b.map("bias", [product, bias], body=call("add", Read(0), Read(1)))
    )


def softmax(
    b: GraphBuilder, x: View, dim: int, *, log: bool = False, dtype: str | None = None
) -> View:
    """(t, z) = (max, Σexp) along `dim`; then exp(x−t)/z, or x − t − ln z."""
    with b.labelled("log_softmax" if log else "softmax"):
        top, total = b.reduce(
            "softmax.statistic", [x], [dim], "max_sumexp", keepdim=True, dtypes=["fp32", "fp32"]
        )
        shifted = call("sub", Read(0), Read(1))
        body = (
            call("sub", shifted, call("log", Read(2)))
            if log
            else call("div", call("exp", shifted), Read(2))
        )
        return b.map("softmax.apply", [x, top, total], body=body, dtype=dtype or x.dtype)


def logsumexp(b: GraphBuilder, x: View, dims: Sequence[int], *, keepdim: bool = False) -> View:
    """A (max, Σexp) statistic and its finish, t + ln z."""
    with b.labelled("logsumexp"):
        top, total = b.reduce(
            "logsumexp.statistic", [x], dims, "max_sumexp", keepdim=keepdim, dtypes=["fp32", "fp32"]
        )
        body = call("add", Read(0), call("log", Read(1)))
        return b.map("logsumexp.finish", [top, total], body=body, dtype=x.dtype)


def mean(
    b: GraphBuilder,
    x: View,
    dims: Sequence[int],
    *,
    keepdim: bool = False,
    dtype: str | None = None,
) -> View:
    """Σ x/N in one op."""
    count = prod(x.shape[dim] for dim in dims)
    body = call("mul", Read(0), 1.0 / count if count else float("nan"))
    return b.reduce(
        "mean", [x], dims, "sum", body=body, keepdim=keepdim, dtypes=[dtype or x.dtype]
    )[0]


def variance(
    b: GraphBuilder,
    x: View,
    dims: Sequence[int],
    *,
    correction: float = 1.0,
    keepdim: bool = False,
    root: bool = False,
) -> View:
    """Variance (or standard deviation with `root`) from one (mean, M2) statistic."""
    count = prod(x.shape[dim] for dim in dims)
    with b.labelled("std" if root else "var"):
        _, m2 = b.reduce("moments", [x], dims, "moments", keepdim=keepdim, dtypes=["fp32", "fp32"])
        scaled = call("div", Read(0), Const(max(count - correction, 0)))
        return b.map("finish", [m2], body=call("sqrt", scaled) if root else scaled, dtype=x.dtype)


def normalise(
    b: GraphBuilder,
    label: str,
    x: View,
    dims: Sequence[int],
    scale: View | None,
    shift: View | None,
    eps: float,
    *,
    dtype: str | None = None,
) -> tuple[View, View, View]:
    """(normalised, mean, M2): (x − mean)·rsqrt(M2/N + eps)·scale + shift. Operands broadcast."""
    count = prod(x.shape[dim] for dim in dims)
    with b.labelled(label):
        centre, m2 = b.reduce(
            f"{label}.statistic", [x], dims, "moments", keepdim=True, dtypes=["fp32", "fp32"]
        )
        spread = call("rsqrt", call("fma", Read(2), Const(1.0 / max(count, 1)), Const(eps)))
        body: Expr = call("mul", call("sub", Read(0), Read(1)), spread)
        operands = [x, centre, m2]
        for view, function in ((scale, "mul"), (shift, "add")):
            if view is not None:
                body = call(function, body, Read(len(operands)))
                operands.append(view)
        return b.map(f"{label}.apply", operands, body=body, dtype=dtype or x.dtype), centre, m2


def layer_norm(
    b: GraphBuilder,
    x: View,
    normalised_dims: int,
    scale: View | None,
    shift: View | None,
    eps: float,
) -> View:
    """Layer norm over the last `normalised_dims` dimensions."""
    dims = list(range(len(x.shape) - normalised_dims, len(x.shape)))
    return normalise(b, "layer_norm", x, dims, scale, shift, eps)[0]


def rms_norm(
    b: GraphBuilder, x: View, normalised_dims: int, scale: View | None, eps: float
) -> View:
    """v = Σ x²; x·rsqrt(v/H + eps)·scale over the last `normalised_dims` dimensions."""
    dims = list(range(len(x.shape) - normalised_dims, len(x.shape)))
    count = prod(x.shape[dim] for dim in dims)
    with b.labelled("rms_norm"):
        body: Expr = call("square", Read(0))
        (total,) = b.reduce(
            "rms_norm.statistic", [x], dims, "sum", body=body, keepdim=True, dtypes=["fp32"]
        )
        spread = call("rsqrt", call("fma", Read(1), Const(1.0 / max(count, 1)), Const(eps)))
        body = call("mul", Read(0), spread)
        operands = [x, total]
        if scale is not None:
            operands.append(scale)
            body = call("mul", body, Read(2))
        return b.map("rms_norm.apply", operands, body=body, dtype=x.dtype)


def group_norm(
    b: GraphBuilder, x: View, groups: int, scale: View | None, shift: View | None, eps: float
) -> View:
    """Group norm of [batch, channels, …]: channels split into `groups` axes."""
    batch, channels, *space = x.shape
    split = b.reshape(x, [batch, groups, channels // groups, *space])

    def per_channel(view: View | None) -> View | None:
        if view is None:
            return None
        return b.reshape(view, [1, groups, channels // groups, *([1] * len(space))])

    dims = list(range(2, len(split.shape)))
    label = "instance_norm" if groups == channels else "group_norm"
    result = normalise(b, label, split, dims, per_channel(scale), per_channel(shift), eps)[0]
    return b.reshape(result, x.shape)


def batch_norm(
    b: GraphBuilder,
    x: View,
    scale: View | None,
    shift: View | None,
    mean_: View | None,
    variance_: View | None,
    eps: float,
    *,
    training: bool,
) -> View:
    """Batch norm of [batch, channels, …]. Training: statistics of the batch; running statistics
    are mutations and not part of the graph. Inference: a per-channel affine of the given ones."""
    rank = len(x.shape)

    def per_channel(view: View | None) -> View | None:
        return None if view is None else b.reshape(view, [view.elements, *([1] * (rank - 2))])

    scale, shift = per_channel(scale), per_channel(shift)
    if training or mean_ is None or variance_ is None:
        dims = [dim for dim in range(rank) if dim != 1]
        return normalise(b, "batch_norm", x, dims, scale, shift, eps)[0]
    centre, spread = per_channel(mean_), per_channel(variance_)
    assert centre is not None
    assert spread is not None
    body: Expr = call(
        "mul", call("sub", Read(0), Read(1)), call("rsqrt", call("add", Read(2), Const(eps)))
    )
    operands = [x, centre, spread]
    for view, function in ((scale, "mul"), (shift, "add")):
        if view is not None:
            body = call(function, body, Read(len(operands)))
            operands.append(view)
    with b.labelled("batch_norm"):
        return b.map("batch_norm.affine", operands, body=body, dtype=x.dtype)


def attention(
    b: GraphBuilder,
    q: View,
    k: View,
    v: View,
    *,
    mask: View | None = None,
    causal: bool = False,
    scale: float | None = None,
    bias_is_bool: bool = False,
    drop: Callable[[View], View] | None = None,
) -> View:
    """softmax(q·kᵀ·scale + mask)·v for q [b,h,m,d], k and v [b,hkv,n,d]; hkv divides h (GQA).

    `causal` masks n > m + (N − M) (lower-right, as in a KV cache) without reading a mask; `drop`
    is applied to the softmax (dropout in training).
    """
    *_, heads, m, d = q.shape
    *_, kv_heads, n, _ = k.shape
    factor = scale if scale is not None else d**-0.5
    with b.labelled("attention"):
        if heads != kv_heads:
            repeat = heads // kv_heads
            q = b.reshape(q, [*q.shape[:-3], kv_heads, repeat, m, d])
            k, v = k.unsqueeze(len(k.shape) - 2), v.unsqueeze(len(v.shape) - 2)
            if mask is not None and len(mask.shape) > 2:
                shape = mask.shape
                head = [1, 1] if shape[-3] == 1 else [kv_heads, repeat]
                mask = b.reshape(mask, [*shape[:-3], *head, *shape[-2:]])
        lead = "abcde"[: len(q.shape) - 2]
        scores = b.contract("gemm.qk", f"{lead}md,{lead}nd->{lead}mn", [q, k])
        letters, out = dim_letters(scores.shape)
        body: Expr = call("mul", Read(0), Const(factor))
        operands = [scores]
        if mask is not None:
            operands.append(mask)
            body = (
                call("where", Read(1), body, Const(float("-inf")))
                if bias_is_bool
                else call("add", body, Read(1))
            )
        if causal and out[-1] is not None:
            row: Expr = Coord(out[-2]) if out[-2] is not None else Const(0)
            allowed = call("le", Coord(out[-1]), call("add", row, Const(n - m)))
            body = call("where", allowed, body, Const(float("-inf")))
        reads = [Operand.trailing(view, out) for view in operands]
        (masked,) = b.loop("scale_mask", letters, reads, out, body, dtypes=[scores.dtype])
        weights = softmax(b, masked, -1, dtype=v.dtype)
        if drop is not None:
            weights = drop(weights)
        result = b.contract("gemm.pv", f"{lead}mn,{lead}nd->{lead}md", [weights, v])
        if heads != kv_heads:
            result = b.reshape(result, [*result.shape[:-4], heads, m, result.shape[-1]])
        return result


def rope(b: GraphBuilder, x: View, cos: View, sin: View) -> View:
    """Rotary embedding, half-rotated form: x·cos + rotate_half(x)·sin; one op.

    The rotated half is read through an index map: `[-x₂, x₁]`.
    """
    *lead, size = x.shape
    half = size // 2
    halves = b.reshape(x, [*lead, 2, half])
    swapped = halves.flip(len(lead))
    assert swapped is not None  # flipping a whole dimension is a view
    letters, out = dim_letters([*lead, 2, half])
    tables = [b.reshape(t, [*t.shape[:-1], 2, half]) for t in (cos, sin)]
    sign = call("sub", call("mul", Coord(f"d{len(lead)}"), Const(2)), Const(1))
    body = call(
        "add", call("mul", Read(0), Read(2)), call("mul", call("mul", Read(1), sign), Read(3))
    )
    reads = [Operand.trailing(view, out) for view in (halves, swapped, *tables)]
    with b.labelled("rope"):
        (rotated,) = b.loop("rope", letters, reads, out, body, dtypes=[x.dtype])
    return b.reshape(rotated, x.shape)
