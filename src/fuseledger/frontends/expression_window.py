"""Convolutions and pools as functions of expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuseledger.frontends.expression_pointwise import X
from fuseledger.frontends.expression_syntax import Mistake
from fuseledger.frontends.expression_table import Function, Param, Result, Scope, shape_of
from fuseledger.graph.view import View
from fuseledger.graph.window import Window, convolution, pool, transposed_convolution


def _each(name: str, values: tuple[int, ...], rank: int, least: int) -> tuple[int, ...]:
    """One value per spatial axis; a single one holds for all."""
    spread = values * rank if len(values) == 1 else values
    if len(spread) != rank:
        raise Mistake(f"{name} has {len(values)} values for {rank} spatial axes")
    if min(spread) < least:
        raise Mistake(f"{name} must be at least {least}")
    return spread


def _windows(
    x: View, kernel: Sequence[int], stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> list[Window]:  # fmt: skip
    rank = len(kernel)
    every = zip(
        kernel, _each("stride", stride, rank, 1), _each("padding", padding, rank, 0),
        _each("dilation", dilation, rank, 1), strict=True,
    )  # fmt: skip
    return [
        Window(kernel=size, stride=step, before=pad, after=pad, dilation=gap)
        for size, step, pad, gap in every
    ]


def _must_fit(x: View, windows: Sequence[Window], *, ceil: bool = False) -> None:
    space = x.shape[len(x.shape) - len(windows) :]
    for w, size in zip(windows, space, strict=True):
        if w.outputs(size, ceil=ceil) < 1:
            raise Mistake(
                f"a window of {w.kernel} is larger than axis {size} of {shape_of(x.shape)}"
            )


def _conv(
    s: Scope, x: View, w: View, stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...], groups: int,
) -> View:  # fmt: skip
    _convolvable("conv", x, w)
    if w.shape[1] * groups != x.shape[1] or w.shape[0] % groups:
        raise Mistake(_misfit("conv", x, w, groups))
    windows = _windows(x, w.shape[2:], stride, padding, dilation)
    _must_fit(x, windows)
    return convolution(s.b, x, w, windows, groups=groups, dtype=s.accumulated(x.dtype))


def _conv_transpose(
    s: Scope, x: View, w: View, stride: tuple[int, ...], padding: tuple[int, ...],
    output_padding: tuple[int, ...], dilation: tuple[int, ...], groups: int,
) -> View:  # fmt: skip
    _convolvable("conv_transpose", x, w)
    if w.shape[0] != x.shape[1] or x.shape[1] % groups:
        raise Mistake(_misfit("conv_transpose", x, w, groups))
    windows = _windows(x, w.shape[2:], stride, padding, dilation)
    extra = _each("output_padding", output_padding, len(windows), 0)
    for window, size, more in zip(windows, x.shape[2:], extra, strict=True):
        reach = (size - 1) * window.stride - 2 * window.before
        if reach + window.dilation * (window.kernel - 1) + more + 1 < 1:
            raise Mistake(f"padding {window.before} leaves nothing of {shape_of(x.shape)}")
    return transposed_convolution(
        s.b, x, w, windows, extra, groups=groups, dtype=s.accumulated(x.dtype)
    )


def _convolvable(label: str, x: View, w: View) -> None:
    if len(x.shape) < 3 or len(x.shape) > 5 or len(w.shape) != len(x.shape):
        raise Mistake(
            f"{label} needs [batch, channels, …] and a weight of its rank, not "
            f"{shape_of(x.shape)} and {shape_of(w.shape)}"
        )


def _misfit(label: str, x: View, w: View, groups: int) -> str:
    shapes = f"weight {shape_of(w.shape)} does not fit {shape_of(x.shape)}"
    return f"{label}: {shapes} with {groups} groups"


def _pooled(combine: str) -> Callable[..., Result]:
    def lower(
        s: Scope, x: View, kernel: tuple[int, ...], stride: tuple[int, ...] | None,
        padding: tuple[int, ...], ceil: bool, dilation: tuple[int, ...] = (1,),
        count_padding: bool = True,
    ) -> View:  # fmt: skip
        if len(x.shape) < 3:
            raise Mistake(f"a pool needs [batch, channels, …], not {shape_of(x.shape)}")
        kernel = _each("kernel", kernel, len(x.shape) - 2, 1)
        windows = _windows(x, kernel, stride or kernel, padding, dilation)
        if any(2 * w.before > w.kernel for w in windows):
            raise Mistake("padding must be at most half the kernel")
        _must_fit(x, windows, ceil=ceil)
        return pool(s.b, x, windows, combine, ceil=ceil, count_padding=count_padding)

    return lower


def _ints(name: str, default: object) -> Param:
    return Param(name, "integers", default)


_GROUPS = Param("groups", "size", 1)

WINDOWS: list[Function] = [
    Function(
        "conv",
        (
            X,
            Param("w", "weight"),
            _ints("stride", 1),
            _ints("padding", 0),
            _ints("dilation", 1),
            _GROUPS,
        ),
        _conv,
        aliases=("conv1d", "conv2d", "conv3d"),
        meaning="[batch, channels, …] ⋆ w[out, channels/groups, …]",
    ),
    Function(
        "conv_transpose",
        (
            X,
            Param("w", "weight"),
            _ints("stride", 1),
            _ints("padding", 0),
            _ints("output_padding", 0),
            _ints("dilation", 1),
            _GROUPS,
        ),
        _conv_transpose,
        meaning="transposed convolution with w[channels, out/groups, …]",
    ),
    Function(
        "max_pool",
        (
            X,
            Param("kernel", "integers"),
            _ints("stride", None),
            _ints("padding", 0),
            Param("ceil", "flag", False),
            _ints("dilation", 1),
        ),
        _pooled("max"),
        meaning="largest per window; stride is the kernel by default",
    ),
    Function(
        "avg_pool",
        (
            X,
            Param("kernel", "integers"),
            _ints("stride", None),
            _ints("padding", 0),
            Param("ceil", "flag", False),
            Param("count_padding", "flag", True),
        ),
        _pooled("sum"),
        meaning="mean per window",
    ),
]
