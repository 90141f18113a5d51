"""ATen reductions, scans and statistics."""

from __future__ import annotations

from math import prod

from fuseledger.frontends.aten_pointwise import cast
from fuseledger.frontends.aten_site import Lowerer, Site, Unlowered
from fuseledger.graph import compose
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.operand import Operand
from fuseledger.graph.scalar import Expr, Read, call
from fuseledger.graph.view import View


def reduced(
    s: Site, function: str, x: View, dims: list[int], combine: str, *, body: Expr | None = None,
    keepdim: bool = False, dtype: str | None = None,
) -> View:  # fmt: skip
    """One result of a statistic over `dims`; a body may be applied on the way in."""
    out = dtype or s.out.dtype
    if prod(x.shape[dim] for dim in dims) == 1 and x.shape:
        single = x if body is None else s.b.map(function, [x], body=body, dtype=out)
        kept = [n for i, n in enumerate(x.shape) if keepdim or i not in dims]
        return cast(s, s.b.reshape(single, kept), out)
    return s.b.reduce(function, [x], dims, combine, body=body, keepdim=keepdim, dtypes=[out])[0]


def _fold_over(combine: str) -> Lowerer:
    """sum, prod, amax, amin, any, all; over everything where no dimension is given."""

    def lower(s: Site) -> View:
        x = s.view()
        dims = s.dims(len(x.shape))
        return reduced(s, combine, x, dims, combine, keepdim=bool(s.get("keepdim", False)))

    return lower


def _mean(s: Site) -> View:
    x = s.view()
    dims = s.dims(len(x.shape))
    if not x.shape:
        return x
    return compose.mean(s.b, x, dims, keepdim=bool(s.get("keepdim", False)), dtype=s.out.dtype)


def _extreme(combine: str) -> Lowerer:
    """max.dim and min.dim: (values, indices); one value where the indices are unread."""

    def lower(s: Site) -> list[View | None]:
        x = s.view()
        if s.get("dim") is None:
            return [reduced(s, combine, x, list(range(len(x.shape))), combine)]
        dim, keep = int(s.get("dim")) % len(x.shape), bool(s.get("keepdim", False))
        if s.node.outputs[1].name not in s.lowering.read:
            return [reduced(s, combine, x, [dim], combine, keepdim=keep)]
        if x.shape[dim] == 1:
            raise Unlowered("dim")
        dtypes = [x.dtype, s.node.outputs[1].dtype]
        return [*s.b.reduce(combine, [x], [dim], f"{combine}_index", keepdim=keep, dtypes=dtypes)]

    return lower


def _arg(combine: str) -> Lowerer:
    def lower(s: Site) -> View:
        x = s.view()
        keep = bool(s.get("keepdim", False))
        if s.get("dim") is None:
            x, dims = s.b.reshape(x, [x.elements]), [0]
        else:
            dims = [int(s.get("dim")) % len(x.shape)]
        if x.shape[dims[0]] == 1:
            return s.uniform(0.0, s.out.shape, s.out.dtype)
        result = reduced(s, combine, x, dims, combine, keepdim=keep)
        return s.b.reshape(result, s.out.shape)

    return lower


def _variance(*, root: bool) -> Lowerer:
    def lower(s: Site) -> View:
        x = s.view()
        return compose.variance(
            s.b, x, s.dims(len(x.shape)), correction=_correction(s), root=root,
            keepdim=bool(s.get("keepdim", False)),
        )  # fmt: skip

    return lower


def _correction(s: Site) -> float:
    if "unbiased" in s.args:
        return 1.0 if s.args["unbiased"] else 0.0
    return s.number("correction", 1.0)


def _variance_and_mean(*, root: bool) -> Lowerer:
    """Both results from one (mean, M2) statistic."""

    def lower(s: Site) -> list[View | None]:
        x = s.view()
        dims = s.dims(len(x.shape))
        count = prod(x.shape[dim] for dim in dims)
        scale = 1.0 / max(count - _correction(s), 1e-300)
        keep = bool(s.get("keepdim", False))
        with s.b.labelled("std_mean" if root else "var_mean"):
            centre, m2 = s.b.reduce(
                "moments", [x], dims, "moments", keepdim=keep, dtypes=["fp32", "fp32"]
            )
            scaled = call("mul", Read(0), scale)
            body = call("sqrt", scaled) if root else scaled
            return [s.b.map("finish", [m2], body=body, dtype=x.dtype), cast(s, centre, x.dtype)]

    return lower


def norm(s: Site, x: View, order: float, dims: list[int], *, keepdim: bool) -> View:
    """(Σ|x|^p)^(1/p), with max, min and count for p = ∞, −∞ and 0."""
    if order in (float("inf"), float("-inf")):
        combine = "max" if order > 0 else "min"
        return reduced(s, "norm", x, dims, combine, body=call("abs", Read(0)), keepdim=keepdim)
    inner: Expr = call("pow", call("abs", Read(0)), order)
    outer: Expr | None = call("pow", Read(0), 1.0 / order) if order else None
    if order == 2:
        inner, outer = call("square", Read(0)), call("sqrt", Read(0))
    elif order == 1:
        inner, outer = call("abs", Read(0)), None
    elif order == 0:
        inner = call("ne", Read(0), 0.0)
    with s.b.labelled("norm"):
        total = reduced(s, "norm.statistic", x, dims, "sum", body=inner, keepdim=keepdim)
        return (
            total
            if outer is None
            else s.b.map("norm.finish", [total], body=outer, dtype=s.out.dtype)
        )


def _norm(s: Site) -> View:
    x = s.view()
    given = s.get("ord", s.get("p"))
    dims = s.dims(len(x.shape))
    is_matrix_norm = s.node.packet == "linalg_norm" and given is not None and len(dims) > 1
    if given == "nuc" or (is_matrix_norm and given != "fro"):
        raise Unlowered("ord")  # singular values and sums by row are no vector norm
    order = 2.0 if given in (None, "fro") else float(given)
    return norm(s, x, order, dims, keepdim=bool(s.get("keepdim", False)))


def _scan(combine: str) -> Lowerer:
    """cumsum, cumprod: an axis walked in order and kept."""

    def lower(s: Site) -> View:
        x = s.view()
        dim = int(s.get("dim")) % len(x.shape) if x.shape else 0
        letters, out = dim_letters(x.shape)
        along = out[dim] if out else None
        if along is None:
            return cast(s, x, s.out.dtype)
        return s.b.loop(
            f"cum{combine}", letters, [Operand(x, tuple(out))], out, Read(0), dtypes=[s.out.dtype],
            combine=combine, scans=[along],
        )[0]  # fmt: skip

    return lower


def _logsumexp(s: Site) -> View:
    x = s.view()
    return compose.logsumexp(s.b, x, s.dims(len(x.shape)), keepdim=bool(s.get("keepdim", False)))


def _softmax(*, log: bool) -> Lowerer:
    def lower(s: Site) -> View:
        return compose.softmax(s.b, s.view(), int(s.get("dim")), log=log, dtype=s.out.dtype)

    return lower


def _count_nonzero(s: Site) -> View:
    x = s.view()
    return reduced(
        s, "count_nonzero", x, s.dims(len(x.shape)), "sum", body=call("ne", Read(0), 0.0)
    )


REDUCTIONS: dict[str, Lowerer] = {
    "sum": _fold_over("sum"), "prod": _fold_over("prod"), "amax": _fold_over("max"),
    "amin": _fold_over("min"), "any": _fold_over("any"), "all": _fold_over("all"), "mean": _mean,
    "max": _extreme("max"), "min": _extreme("min"), "argmax": _arg("argmax"),
    "argmin": _arg("argmin"), "var": _variance(root=False), "std": _variance(root=True),
    "var_mean": _variance_and_mean(root=False), "std_mean": _variance_and_mean(root=True),
    "linalg_vector_norm": _norm, "norm": _norm, "linalg_norm": _norm, "cumsum": _scan("sum"),
    "cumprod": _scan("prod"), "logsumexp": _logsumexp, "softmax": _softmax(log=False),
    "_softmax": _softmax(log=False), "special_softmax": _softmax(log=False),
    "log_softmax": _softmax(log=True), "_log_softmax": _softmax(log=True),
    "special_log_softmax": _softmax(log=True), "_safe_softmax": _softmax(log=False),
    "count_nonzero": _count_nonzero,
}  # fmt: skip
