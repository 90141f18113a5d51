"""ATen contractions, convolutions, pools, attention and resampling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuseledger.frontends.aten_random import dropped
from fuseledger.frontends.aten_site import Lowerer, Site, Unlowered
from fuseledger.graph import columns, compose, window
from fuseledger.graph.scalar import Read, call
from fuseledger.graph.view import View
from fuseledger.graph.window import Window


def _matmul(first: str, second: str) -> Lowerer:
    return lambda s: compose.matmul(s.b, s.view(first), s.view(second), dtype=s.out.dtype)


def _added_matmul(first: str, second: str) -> Lowerer:
    """`beta·self + alpha·(first · second)`: a gemm and a bias."""

    def lower(s: Site) -> View:
        alpha, beta = s.number("alpha", 1.0), s.number("beta", 1.0)
        product = compose.matmul(s.b, s.view(first), s.view(second), dtype=s.out.dtype)
        if alpha != 1:
            product = s.map("scale", [product], call("mul", Read(0), alpha))
        if beta == 0:
            return product
        if beta == 1:
            return s.map("bias", [product, s.view()], call("add", Read(0), Read(1)))
        return s.map("bias", [product, s.view()], call("fma", Read(1), beta, Read(0)))

    return lower


def _scaled_matmul(s: Site) -> View:
    """`(first · second) · scale_a · scale_b + bias` of fp8: scales of the whole, or of each row and
    column. Scales of blocks, and results in fp8, are not covered."""
    first, second = s.view(), s.view("mat2")
    rows, columns = first.shape[0], second.shape[1]
    scales = s.view("scale_a"), s.view("scale_b")
    outer = ((rows, 1), (1, columns))
    if any(x.shape != full and prod(x.shape) != 1 for x, full in zip(scales, outer, strict=True)):
        raise Unlowered("scale_a")
    if s.maybe("scale_result") is not None or s.out.dtype.startswith("fp8"):
        raise Unlowered("scale_result")
    product = compose.matmul(s.b, first, second, dtype="fp32")
    scales = [x if len(x.shape) == 2 else s.b.reshape(x, [1, 1]) for x in scales]
    body, bias = call("mul", call("mul", Read(0), Read(1)), Read(2)), s.maybe("bias")
    if bias is None:
        return s.map("scale", [product, *scales], body)
    scaled = s.map("scale", [product, *scales], body, dtype="fp32")
    return s.map("bias", [scaled, bias], call("add", Read(0), Read(1)))


def _linear(s: Site) -> View:
    return compose.linear(s.b, s.view("input"), s.view("weight"), s.maybe("bias"))


def _outer(s: Site) -> View:
    vec = s.view("vec2" if "vec2" in s.args else "other")
    return s.map("mul", [s.view().unsqueeze(1), vec.unsqueeze(0)])


def _einsum(s: Site) -> View:
    """An equation without repeated letters in one operand; `...` is spelled out."""
    equation = str(s.get("equation")).replace(" ", "")
    operands = s.views()
    if "->" not in equation:
        letters = sorted(set(equation) - set(",."))
        equation += "->" + "".join(x for x in letters if equation.count(x) == 1)
        if "..." in equation:
            raise Unlowered("equation")
    words, result = equation.split("->")
    parts = words.split(",")
    if "..." in equation:
        spare = [x for x in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if x not in equation]
        ranks = [
            len(v.shape) - len(p.replace("...", "")) for v, p in zip(operands, parts, strict=True)
        ]
        dots = "".join(spare[: max(r for r, p in zip(ranks, parts, strict=True) if "..." in p)])
        parts = [p.replace("...", dots[len(dots) - r :]) for p, r in zip(parts, ranks, strict=True)]
        result = result.replace("...", dots)
    if any(len(set(part)) != len(part) for part in parts):
        raise Unlowered("equation")
    if len(operands) > 2:
        return _einsum_in_pairs(s, parts, result, operands)
    return s.b.contract(
        _einsum_name(parts, result), f"{','.join(parts)}->{result}", operands, dtype=s.out.dtype
    )


def _einsum_name(parts: list[str], result: str) -> str:
    """`gemm` for a contraction, else what the equation is."""
    reduces = any(letter not in result for part in parts for letter in part)
    return ("gemm" if reduces else "mul") if len(parts) > 1 else ("sum" if reduces else "move")


def _einsum_in_pairs(s: Site, parts: list[str], result: str, operands: list[View]) -> View:
    """Left to right, two at a time, as torch.einsum without a path optimiser."""
    left, left_view = parts[0], operands[0]
    for i in range(1, len(parts)):
        later = "".join(parts[i + 1 :]) + result
        kept = "".join(dict.fromkeys(x for x in left + parts[i] if x in later))
        kept = result if i == len(parts) - 1 else kept
        spec = f"{left},{parts[i]}->{kept}"
        left_view = s.b.contract(
            _einsum_name([left, parts[i]], kept), spec, [left_view, operands[i]], dtype=s.out.dtype
        )
        left = kept
    return left_view


# -- convolutions --------------------------------------------------------------------------------


def _windows(s: Site, kernel: Sequence[int]) -> list[Window]:
    rank = len(kernel)
    stride = s.ints("stride", [1], rank)
    dilation = s.ints("dilation", [1], rank)
    padding = s.get("padding", 0)
    if isinstance(padding, str):
        totals = [
            d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)
        ]
        ends = [(total // 2, total - total // 2) for total in totals]
    else:
        ends = [(p, p) for p in s.ints("padding", [0], rank)]
    return [
        Window(kernel=k, stride=st, before=lo, after=hi, dilation=d)
        for k, st, d, (lo, hi) in zip(kernel, stride, dilation, ends, strict=True)
    ]


def _convolution(s: Site) -> View:
    """convolution, conv1d … conv3d and their transposes; the bias is an op of its own."""
    x, weight, bias = s.view("input"), s.view("weight"), s.maybe("bias")
    rank = len(weight.shape) - 2
    batched = len(x.shape) == rank + 2
    x = x if batched else x.unsqueeze(0)
    windows = _windows(s, weight.shape[2:])
    groups = int(s.get("groups", 1))
    if s.get("transposed", "transpose" in s.node.packet):
        extra = s.ints("output_padding", [0], rank)
        result = window.transposed_convolution(
            s.b, x, weight, windows, extra, groups=groups, dtype=s.out.dtype
        )
    else:
        result = window.convolution(s.b, x, weight, windows, groups=groups, dtype=s.out.dtype)
    if bias is not None:
        per_channel = s.b.reshape(bias, [bias.elements, *([1] * rank)])
        result = s.map("bias", [result, per_channel], call("add", Read(0), Read(1)))
    return result if batched else result.squeeze(0)


# -- pools ---------------------------------------------------------------------------------------


def _pool(rank: int, combine: str) -> Lowerer:
    """Max and average pools; indices of a max pool vanish unless they are read."""

    def lower(s: Site) -> View:
        x = s.view()
        kernel = s.ints("kernel_size", length=rank)
        stride = s.ints("stride", kernel, rank)
        padding, dilation = s.ints("padding", [0], rank), s.ints("dilation", [1], rank)
        windows = [
            Window(kernel=k, stride=st, before=p, after=p, dilation=d)
            for k, st, p, d in zip(kernel, stride, padding, dilation, strict=True)
        ]
        divisor = s.get("divisor_override")
        return window.pool(
            s.b, x, windows, combine, ceil=bool(s.get("ceil_mode", False)),
            scale=1.0 / divisor if divisor else None,
            count_padding=bool(s.get("count_include_pad", True)),
        )  # fmt: skip

    return lower


def _adaptive(rank: int, combine: str) -> Lowerer:
    """Adaptive pools whose output divides the input; others have windows of several sizes."""

    def lower(s: Site) -> View:
        x = s.view()
        wanted = s.ints("output_size", length=rank)
        outputs = [n if n > 0 else size for n, size in zip(wanted, x.shape[-rank:], strict=True)]
        if combine == "sum":
            result = window.adaptive_avg_pool(s.b, x, outputs)
        else:
            space = x.shape[-rank:]
            even = all(size % n == 0 for size, n in zip(space, outputs, strict=True))
            strides = [size // n for size, n in zip(space, outputs, strict=True)]
            windows = [Window(kernel=n, stride=n) for n in strides]
            result = window.pool(s.b, x, windows, "max") if even else None
        if result is None:
            raise Unlowered("output_size")
        return result

    return lower


# -- attention -----------------------------------------------------------------------------------


def _attention(s: Site) -> View:
    """scaled_dot_product_attention. `is_causal` aligns at the upper left: where there are more
    keys than queries, the keys beyond the last query are never seen."""
    q, k, v = (
        s.view(long if long in s.args else short)
        for long, short in (("query", "q"), ("key", "k"), ("value", "v"))
    )
    mask, scale = s.maybe("attn_mask"), s.get("scale")
    causal = bool(s.get("is_causal", False))
    queries, keys = q.shape[-2], k.shape[-2]
    if causal and keys > queries:
        k, v = (s.b.slice(view, len(view.shape) - 2, 0, queries) for view in (k, v))
    elif causal and keys < queries:
        raise Unlowered("is_causal")
    flat = len(q.shape) == 2
    if flat:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    elif k.shape[:-3] != q.shape[:-3]:
        k, v = (view.expand([*q.shape[:-3], *view.shape[-3:]]) for view in (k, v))
    p = s.number("dropout_p", 0.0)
    result = compose.attention(
        s.b, q, k, v, mask=mask, causal=causal, scale=scale,
        bias_is_bool=mask is not None and mask.dtype == "bool",
        drop=(lambda weights: dropped(s, weights, p)) if p else None,
    )  # fmt: skip
    return result.squeeze(0) if flat else result


# -- resampling ----------------------------------------------------------------------------------


def _nearest(rank: int) -> Lowerer:
    """Nearest-neighbour upsampling by whole factors: a view with repeated dimensions."""

    def lower(s: Site) -> View:
        x = s.view("input" if "input" in s.args else "self")
        lead, space = list(x.shape[:-rank]), x.shape[-rank:]
        target = s.out.shape[-rank:]
        if any(big % small for big, small in zip(target, space, strict=True)):
            raise Unlowered("output_size")
        factors = [big // small for big, small in zip(target, space, strict=True)]
        split = s.b.reshape(x, [*lead, *(n for size in space for n in (size, 1))])
        wide = split.expand(
            [*lead, *(n for pair in zip(space, factors, strict=True) for n in pair)]
        )
        return s.b.reshape(wide, s.out.shape)

    return lower


def _column_windows(s: Site) -> list[Window]:
    kernel = s.ints("kernel_size", length=2)
    stride, padding, dilation = (
        s.ints(name, [default], 2)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    return [
        Window(kernel=k, stride=n, before=p, after=p, dilation=d)
        for k, n, p, d in zip(kernel, stride, padding, dilation, strict=True)
    ]


def _im2col(s: Site) -> View:
    """[b, c·r·s, positions]: every window of the input as a column."""
    x = s.view()
    found = columns.unfold(s.b, x if len(x.shape) == 4 else x.unsqueeze(0), _column_windows(s))
    return s.b.reshape(found, s.out.shape)


def _col2im(s: Site) -> View:
    """The inverse: what overlaps is summed."""
    x = s.view()
    image = s.ints("output_size", length=2)
    found = columns.fold(s.b, x if len(x.shape) == 3 else x.unsqueeze(0), image, _column_windows(s))
    return s.b.reshape(found, s.out.shape)


def _pixel_shuffle(s: Site) -> View:
    x, factor = s.view(), int(s.get("upscale_factor"))
    *lead, channels, height, width = x.shape
    n = len(lead)
    split = s.b.reshape(x, [*lead, channels // factor**2, factor, factor, height, width])
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return s.b.reshape(split.transpose(order), s.out.shape)


def _pixel_unshuffle(s: Site) -> View:
    x, factor = s.view(), int(s.get("downscale_factor"))
    *lead, channels, height, width = x.shape
    n = len(lead)
    split = s.b.reshape(x, [*lead, channels, height // factor, factor, width // factor, factor])
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return s.b.reshape(split.transpose(order), s.out.shape)


def _pad(s: Site) -> View:
    """Constant, reflected, replicated and circular padding; amounts last dimension first."""
    x = s.view()
    pads = s.ints("pad" if "pad" in s.args else "padding")
    mode = str(s.get("mode", _PAD_MODE.get(s.node.packet.rstrip("123d"), "constant")))
    rank = len(x.shape)
    before, after = [0] * rank, [0] * rank
    for i in range(len(pads) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = pads[2 * i], pads[2 * i + 1]
    if not any(pads):
        return x
    if mode == "constant":
        return window.pad(s.b, x, before, after, s.number("value", 0.0))
    for dim in range(rank):
        x = _padded(s, x, dim, before[dim], after[dim], mode)
    return x


_PAD_MODE = {"reflection_pad": "reflect", "replication_pad": "replicate"}


def _padded(s: Site, x: View, dim: int, before: int, after: int, mode: str) -> View:
    size = x.shape[dim]

    def end(width: int, *, first: bool) -> View:
        if mode == "circular":
            return s.b.slice(x, dim, size - width if first else 0, width)
        if mode == "replicate":
            edge = s.b.slice(x, dim, 0 if first else size - 1, 1)
            return edge.expand([*x.shape[:dim], width, *x.shape[dim + 1 :]])
        start = width if first else size - 2
        return s.b.slice(x, dim, start, width, -1)

    parts = [end(before, first=True)] if before > 0 else []
    parts.append(x)
    parts += [end(after, first=False)] if after > 0 else []
    return window.concat(s.b, parts, dim) if len(parts) > 1 else x


def _channel_shuffle(s: Site) -> View:
    x, groups = s.view(), int(s.get("groups"))
    batch, channels, *space = x.shape
    split = s.b.reshape(x, [batch, groups, channels // groups, prod(space)])
    return s.b.reshape(split.transpose([0, 2, 1, 3]), s.out.shape)


NN: dict[str, Lowerer] = {
    "mm": _matmul("self", "mat2"), "bmm": _matmul("self", "mat2"),
    "matmul": _matmul("self", "other"), "mv": _matmul("self", "vec"),
    "dot": _matmul("self", "tensor"), "inner": _matmul("self", "other"),
    "_int_mm": _matmul("self", "mat2"), "_scaled_mm": _scaled_matmul,
    "addmm": _added_matmul("mat1", "mat2"), "baddbmm": _added_matmul("batch1", "batch2"),
    "addmv": _added_matmul("mat", "vec"), "linear": _linear, "outer": _outer, "einsum": _einsum,
    **dict.fromkeys(
        ("convolution", "_convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
         "conv_transpose2d", "conv_transpose3d"), _convolution),
    **{f"max_pool{n}d{w}": _pool(n, "max") for n in (1, 2, 3) for w in ("", "_with_indices")},
    **{f"avg_pool{n}d": _pool(n, "sum") for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": _adaptive(n, "sum") for n in (1, 2, 3)},
    **{f"_adaptive_avg_pool{n}d": _adaptive(n, "sum") for n in (2, 3)},
    **{f"adaptive_max_pool{n}d": _adaptive(n, "max") for n in (1, 2, 3)},
    "scaled_dot_product_attention": _attention, "kb.sdpa": _attention,
    **{f"upsample_nearest{n}d": _nearest(n) for n in (1, 2, 3)},
    "im2col": _im2col, "col2im": _col2im, "native_channel_shuffle": _channel_shuffle,
    "pixel_shuffle": _pixel_shuffle, "pixel_unshuffle": _pixel_unshuffle,
    "channel_shuffle": _channel_shuffle, "pad": _pad, "constant_pad_nd": _pad,
    **{f"{kind}{n}d": _pad for kind in _PAD_MODE for n in (1, 2, 3)},
}  # fmt: skip
