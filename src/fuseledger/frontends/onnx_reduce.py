"""ONNX reductions and softmaxes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from fuseledger.frontends.onnx_shape import part
from fuseledger.frontends.onnx_site import Lowerer, Site, Unlowered, X
from fuseledger.graph import compose
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.operand import Operand
from fuseledger.graph.scalar import Coord, Expr, Read, call
from fuseledger.graph.view import View


def dims(s: Site, rank: int, position: int | None = 1) -> list[int] | None:
    """Reduced dimensions: an attribute or, later, an input; all where none are named.

    None where `noop_with_empty_axes` says that nothing is reduced.
    """
    axes = s.ints("axes", position)
    if not axes:
        return None if s.get("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({axis % rank for axis in axes})


def reduced(
    s: Site, function: str, x: View, over: list[int], combine: str, *, body: Expr | None = None,
    keepdim: bool = True, dtype: str | None = None,
) -> View:  # fmt: skip
    """One result of a statistic; a body may be applied on the way in."""
    out = dtype or s.dtype
    if prod(x.shape[dim] for dim in over) == 1:
        single = x if body is None else s.b.map(function, [x], body=body, dtype=out)
        return s.b.reshape(single, [n for i, n in enumerate(x.shape) if keepdim or i not in over])
    return s.b.reduce(function, [x], over, combine, body=body, keepdim=keepdim, dtypes=[out])[0]


def _reduction(combine: str, before: str | None = None, after: str | None = None) -> Lowerer:
    """Σ, Π, max or min of a function of the elements, and a function of the result."""

    def lower(s: Site) -> View:
        x = s.view()
        over = dims(s, len(x.shape))
        keep = bool(s.get("keepdims", 1))
        body = call(before, Read(0)) if before is not None else None
        name = s.node.op_type.removeprefix("Reduce").lower()
        result = reduced(s, name, x, over or [], combine, body=body, keepdim=keep)
        if after is None:
            return result
        return s.map(f"{name}.finish", [result], call(after, X))

    return lower


def _mean(s: Site) -> View:
    x = s.view()
    over = dims(s, len(x.shape))
    if not over:
        return x
    if prod(x.shape[dim] for dim in over) == 1:
        return reduced(s, "mean", x, over, "sum", keepdim=bool(s.get("keepdims", 1)))
    return compose.mean(s.b, x, over, keepdim=bool(s.get("keepdims", 1)), dtype=s.dtype)


def _log_sum_exp(s: Site) -> View:
    x = s.view()
    over = dims(s, len(x.shape))
    if not over:
        return x
    return compose.logsumexp(s.b, x, over, keepdim=bool(s.get("keepdims", 1)))


def _arg(combine: str) -> Lowerer:
    def lower(s: Site) -> View:
        x = s.view()
        dim = s.axis(len(x.shape), 0)
        size = x.shape[dim]
        if size == 1:
            return s.values.fold(f"{s.out.name}.zero", s.shape, s.dtype)
        last = bool(s.get("select_last_index", 0))
        x = part(s, x, dim, size - 1, size, -1) if last else x
        found = reduced(s, combine, x, [dim], combine, keepdim=bool(s.get("keepdims", 1)))
        if not last:
            return found
        return s.map(f"{combine}.finish", [found], call("sub", size - 1.0, X))

    return lower


# -- softmax -------------------------------------------------------------------------------------


def _along_axis(lower: Callable[[Site, View, int], View]) -> Lowerer:
    """One dimension since opset 13; before, the dimensions from `axis` on as one."""

    def lowered(s: Site) -> View:
        x = s.view()
        if s.opset >= 13:
            return lower(s, x, s.axis(len(x.shape), -1))
        axis = s.axis(len(x.shape), 1)
        if axis == len(x.shape) - 1:
            return lower(s, x, axis)
        flat = s.b.reshape(x, [*x.shape[:axis], prod(x.shape[axis:])])
        return s.b.reshape(lower(s, flat, axis), x.shape)

    return lowered


def _softmax(s: Site, x: View, dim: int) -> View:
    return compose.softmax(s.b, x, dim, dtype=s.dtype)


def _log_softmax(s: Site, x: View, dim: int) -> View:
    return compose.softmax(s.b, x, dim, log=True, dtype=s.dtype)


def _hardmax(s: Site, x: View, dim: int) -> View:
    """1 at the first greatest element."""
    if x.shape[dim] == 1:
        raise Unlowered("axis")
    with s.b.labelled("hardmax"):
        (top,) = s.b.reduce("argmax", [x], [dim], "argmax", keepdim=True, dtypes=["int64"])
        letters, out = dim_letters(x.shape)
        letter = out[dim]
        assert letter is not None  # more than one element
        where = tuple(None if i == dim else name for i, name in enumerate(out))
        body = call("eq", Read(0), Coord(letter))
        return s.b.loop(
            "hardmax.apply", letters, [Operand(top, where)], out, body, dtypes=[s.dtype]
        )[0]


REDUCTIONS: dict[str, Lowerer] = {
    "ReduceSum": _reduction("sum"), "ReduceProd": _reduction("prod"),
    "ReduceMax": _reduction("max"), "ReduceMin": _reduction("min"),
    "ReduceL1": _reduction("sum", "abs"), "ReduceL2": _reduction("sum", "square", "sqrt"),
    "ReduceSumSquare": _reduction("sum", "square"), "ReduceLogSum": _reduction("sum", None, "log"),
    "ReduceMean": _mean, "ReduceLogSumExp": _log_sum_exp, "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"), "Softmax": _along_axis(_softmax),
    "LogSoftmax": _along_axis(_log_softmax), "Hardmax": _along_axis(_hardmax),
}  # fmt: skip
