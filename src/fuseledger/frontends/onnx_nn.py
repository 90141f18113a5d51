"""ONNX contractions, convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuseledger.frontends.onnx_site import Lowerer, Site, Unlowered, X, Y
from fuseledger.graph import columns, compose, window
from fuseledger.graph.scalar import Expr, Read, call
from fuseledger.graph.view import View
from fuseledger.graph.window import Window


def _matmul(s: Site) -> View:
    return compose.matmul(s.b, s.view(0), s.view(1), dtype=s.dtype)


def _gemm(s: Site) -> View:
    """alpha·A·B + beta·C: a gemm and a bias."""
    left = "km" if s.get("transA", 0) else "mk"
    right = "nk" if s.get("transB", 0) else "kn"
    product = s.b.contract("gemm", f"{left},{right}->mn", [s.view(0), s.view(1)], dtype=s.dtype)
    alpha, beta = float(s.get("alpha", 1.0)), float(s.get("beta", 1.0))
    bias = s.maybe(2) if beta else None
    if bias is None:
        return product if alpha == 1 else s.map("scale", [product], call("mul", X, alpha))
    scaled: Expr = X if alpha == 1 else call("mul", X, alpha)
    body = call("add", scaled, Y) if beta == 1 else call("fma", Y, beta, scaled)
    return s.map("bias", [product, bias], body)


def _einsum(s: Site) -> View:
    """An equation without repeated letters in one operand; `...` is spelled out."""
    equation = str(s.get("equation")).replace(" ", "")
    operands = s.views()
    words, arrow, result = equation.partition("->")
    parts = words.split(",")
    letters = sorted(set(words) - set(",."))
    spare = [x for x in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if x not in equation]
    ranks = [len(v.shape) - len(p.replace("...", "")) for v, p in zip(operands, parts, strict=True)]
    dots = "".join(
        spare[: max((r for r, p in zip(ranks, parts, strict=True) if "..." in p), default=0)]
    )
    parts = [p.replace("...", dots[len(dots) - r :]) for p, r in zip(parts, ranks, strict=True)]
    if not arrow:
        result = dots + "".join(x for x in letters if words.count(x) == 1)
    result = result.replace("...", dots)
    if any(len(set(part)) != len(part) for part in parts) or len(operands) > 2:
        raise Unlowered("equation")
    sums = any(letter not in result for part in parts for letter in part)
    name = ("gemm" if sums else "mul") if len(parts) > 1 else ("sum" if sums else "move")
    return s.b.contract(name, f"{','.join(parts)}->{result}", operands, dtype=s.dtype)


# -- windows -------------------------------------------------------------------------------------


def _same(size: int, kernel: int, stride: int, dilation: int, *, upper: bool) -> tuple[int, int]:
    """(before, after) so that the output has ⌈size / stride⌉ elements."""
    total = max((-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


def windows(s: Site, space: Sequence[int], kernel: Sequence[int]) -> list[Window]:
    """The windows of a convolution or pool over `space`, padding worked out."""
    rank = len(kernel)
    strides, dilations = s.ints("strides") or [1] * rank, s.ints("dilations") or [1] * rank
    pads = s.ints("pads") or [0] * (2 * rank)
    auto = s.get("auto_pad", "NOTSET")
    ends = list(zip(pads[:rank], pads[rank:], strict=True))
    if auto.startswith("SAME"):
        upper = auto == "SAME_UPPER"
        sizes = zip(space, kernel, strides, dilations, strict=True)
        ends = [_same(n, k, st, d, upper=upper) for n, k, st, d in sizes]
    elif auto == "VALID":
        ends = [(0, 0)] * rank
    return [
        Window(kernel=k, stride=st, before=lo, after=hi, dilation=d)
        for k, st, d, (lo, hi) in zip(kernel, strides, dilations, ends, strict=True)
    ]


def biased(s: Site, x: View, bias: View | None) -> View:
    """Plus one number per channel, as an op of its own."""
    if bias is None:
        return x
    per_channel = s.b.reshape(bias, [bias.elements, *([1] * (len(x.shape) - 2))])
    return s.map("bias", [x, per_channel], call("add", X, Y))


def _conv(s: Site) -> View:
    x, weight = s.view(0), s.view(1)
    result = window.convolution(
        s.b, x, weight, windows(s, x.shape[2:], weight.shape[2:]),
        groups=int(s.get("group", 1)), dtype=s.dtype,
    )  # fmt: skip
    return biased(s, result, s.maybe(2))


def _conv_transpose(s: Site) -> View:
    """Padding follows from the output's size: whatever the window would spill over it is cut."""
    x, weight = s.view(0), s.view(1)
    space, kernel = x.shape[2:], weight.shape[2:]
    rank = len(kernel)
    strides, dilations = s.ints("strides") or [1] * rank, s.ints("dilations") or [1] * rank
    extra = s.ints("output_padding") or [0] * rank
    pads = s.ints("pads")
    auto = s.get("auto_pad", "NOTSET")
    by_size = auto.startswith("SAME") or s.get("output_shape") is not None
    found: list[Window] = []
    for i in range(rank):
        full = strides[i] * (space[i] - 1) + extra[i] + dilations[i] * (kernel[i] - 1) + 1
        before, after = (pads[i], pads[i + rank]) if pads and auto == "NOTSET" else (0, 0)
        if by_size:
            total = full - s.shape[2 + i]
            small, large = total // 2, total - total // 2
            before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
        found.append(
            Window(
                kernel=kernel[i],
                stride=strides[i],
                before=before,
                after=after,
                dilation=dilations[i],
            )
        )
    groups = int(s.get("group", 1))
    result = window.transposed_convolution(
        s.b, x, weight, found, extra, groups=groups, dtype=s.dtype
    )
    return biased(s, result, s.maybe(2))


def _pool(combine: str) -> Lowerer:
    """MaxPool and AveragePool; a max pool's indices vanish unless they are read."""

    def lower(s: Site) -> list[View | None]:
        x = s.view()
        found = windows(s, x.shape[2:], s.ints("kernel_shape") or [])
        counts = bool(s.get("count_include_pad", 0))
        spread = any(w.dilation > 1 for w in found) and any(w.before or w.after for w in found)
        ceil = bool(s.get("ceil_mode", 0)) and not s.get("auto_pad", "NOTSET").startswith("SAME")
        if combine == "sum" and (spread or (ceil and any(w.dilation > 1 for w in found))):
            raise Unlowered("dilations")
        return [window.pool(s.b, x, found, combine, ceil=ceil, count_padding=counts), None]

    return lower


def _lp_pool(s: Site) -> View:
    """(Σ|x|^p)^(1/p) over each window."""
    x, order = s.view(), float(s.get("p", 2))
    found = windows(s, x.shape[2:], s.ints("kernel_shape") or [])
    with s.b.labelled("lp_pool"):
        powers = s.map("power", [x], call("pow", call("abs", X), order))
        total = window.pool(s.b, powers, found, "sum", scale=1.0, ceil=bool(s.get("ceil_mode", 0)))
        return s.map("root", [total], call("pow", X, 1.0 / order))


def _global(combine: str) -> Lowerer:
    def lower(s: Site) -> View:
        x = s.view()
        space = list(range(2, len(x.shape)))
        if prod(x.shape[2:]) == 1:
            return x
        if combine == "mean":
            return compose.mean(s.b, x, space, keepdim=True, dtype=s.dtype)
        return s.b.reduce("max_pool", [x], space, combine, keepdim=True, dtypes=[s.dtype])[0]

    return lower


def _global_lp_pool(s: Site) -> View:
    x, order = s.view(), float(s.get("p", 2))
    body = call("pow", call("abs", Read(0)), order)
    (total,) = s.b.reduce(
        "lp_pool",
        [x],
        list(range(2, len(x.shape))),
        "sum",
        body=body,
        keepdim=True,
        dtypes=[s.dtype],
    )
    return s.map("root", [total], call("pow", X, 1.0 / order))


def _col2im(s: Site) -> View:
    x = s.view()
    image, block = s.ints("image_shape", 1), s.ints("block_shape", 2)
    if image is None or block is None:
        raise Unlowered("image_shape")
    return columns.fold(s.b, x, image, windows(s, image, block))


NN: dict[str, Lowerer] = {
    "MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum, "Conv": _conv,
    "ConvTranspose": _conv_transpose, "MaxPool": _pool("max"), "AveragePool": _pool("sum"),
    "LpPool": _lp_pool, "GlobalAveragePool": _global("mean"), "GlobalMaxPool": _global("max"),
    "GlobalLpPool": _global_lp_pool, "Col2Im": _col2im,
}  # fmt: skip
