"""Windows and lookups against PyTorch in float64."""

from __future__ import annotations

import pytest
from agreement import agree, built
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseledger.errors import ShapeError
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.window import (
    Window,
    adaptive_avg_pool,
    concat,
    convolution,
    pad,
    pool,
    take,
    take_along,
    transposed_convolution,
)

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.torch


def randn(*shape: int) -> torch.Tensor:
    """Normal float64 values, the same in every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 2),
    st.sampled_from([1, 2, 4]),
)
def test_convolution(kernel: int, stride: int, padding: int, dilation: int, groups: int):
    """A convolution is one op for every kernel, stride, padding, dilation and grouping."""
    window = Window(kernel=kernel, stride=stride, before=padding, after=padding, dilation=dilation)
    graph = agree(
        lambda b, x, w: convolution(b, x, w, [window] * 2, groups=groups),
        lambda x, w: F.conv2d(x, w, None, stride, padding, dilation, groups),
        randn(2, 4, 7, 8),
        randn(8, 4 // groups, kernel, kernel),
    )
    assert [op.function for op in graph.ops] == ["conv"]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 1),
    st.integers(1, 2),
    st.sampled_from([1, 2]),
    st.data(),
)
def test_transposed_convolution(
    kernel: int, stride: int, padding: int, dilation: int, groups: int, data: st.DataObject
):
    """A transposed convolution agrees for every stride, dilation and output padding."""
    extra = data.draw(st.integers(0, max(stride, dilation) - 1))
    if dilation * (kernel - 1) - 2 * padding + extra + 4 * stride + 1 < 1:
        return
    window = Window(kernel=kernel, stride=stride, before=padding, after=padding, dilation=dilation)
    agree(
        lambda b, x, w: transposed_convolution(b, x, w, [window] * 2, [extra] * 2, groups=groups),
        lambda x, w: F.conv_transpose2d(x, w, None, stride, padding, extra, groups, dilation),
        randn(2, 4, 5, 6),
        randn(4, 3, kernel, kernel),
    )


def test_transposed_convolution_works_per_phase():
    """With stride 2 in both directions a quarter of the loop points do work."""
    window = Window(kernel=2, stride=2)
    graph = built(
        lambda b, x, w: transposed_convolution(b, x, w, [window] * 2, [0, 0]),
        (2, 4, 8, 8),
        (4, 6, 2, 2),
    )
    (op,) = graph.ops
    assert op.points == 2 * 6 * 16 * 16 * 4 * 2 * 2 // 4


@pytest.mark.parametrize(("dims", "function"), [(1, "conv1d"), (3, "conv3d")])
def test_convolutions_of_other_ranks(dims: int, function: str):
    """Convolutions run over one or three dimensions alike."""
    agree(
        lambda b, x, w: convolution(b, x, w, [Window(kernel=2, stride=2)] * dims),
        lambda x, w: getattr(F, function)(x, w, None, 2),
        randn(2, 3, *[6] * dims),
        randn(4, 3, *[2] * dims),
    )


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("padding", [0, 1])
def test_max_pool(ceil: bool, padding: int):
    """A max pool takes −inf outside its input."""
    window = Window(kernel=3, stride=2, before=padding, after=padding)
    agree(
        lambda b, x: pool(b, x, [window] * 2, "max", ceil=ceil),
        lambda x: F.max_pool2d(x, 3, 2, padding, ceil_mode=ceil),
        randn(2, 4, 10, 12),
    )


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("count", [False, True])
@pytest.mark.parametrize("padding", [0, 1])
def test_avg_pool(ceil: bool, count: bool, padding: int):
    """An average pool divides by the window, or by what of it lies inside."""
    window = Window(kernel=3, stride=2, before=padding, after=padding)
    agree(
        lambda b, x: pool(b, x, [window] * 2, "sum", ceil=ceil, count_padding=count),
        lambda x: F.avg_pool2d(x, 3, 2, padding, ceil, count),
        randn(2, 4, 10, 12),
    )


@pytest.mark.parametrize("outputs", [(1, 1), (2, 3), (8, 12)])
def test_adaptive_avg_pool(outputs: tuple[int, int]):
    """An adaptive pool whose output divides its input has one window size."""
    agree(
        lambda b, x: adaptive_avg_pool(b, x, outputs),
        lambda x: F.adaptive_avg_pool2d(x, outputs),
        randn(2, 4, 8, 12),
    )


def test_adaptive_pool_of_uneven_windows():
    """Where windows would differ in size there is no single op, and None says so."""
    b = GraphBuilder("pool")
    assert adaptive_avg_pool(b, b.input("x", (2, 4, 7), "fp32"), (3,)) is None


@pytest.mark.parametrize("amounts", [(1, 2), (-1, 1), (0, -2)])
def test_pad(amounts: tuple[int, int]):
    """Padding adds a constant, and negative padding crops."""
    before, after = amounts
    agree(
        lambda b, x: pad(b, x, [0, before], [0, after], 3.0),
        lambda x: F.pad(x, (before, after), value=3.0),
        randn(4, 6),
    )


def test_concat():
    """Parts lie side by side along the dimension, views and single rows included."""
    agree(
        lambda b, x, y, z: concat(b, [b.slice(x, 1, 1, 2), y, z], 1),
        lambda x, y, z: torch.cat([x[:, 1:3], y, z], 1),
        randn(2, 4, 5),
        randn(2, 1, 5),
        randn(2, 3, 5),
    )


def test_concat_of_very_many_parts():
    """A thousand steps of a recurrence are stacked: the body that chooses is ten calls deep."""
    rows = [randn(1, 2) for _ in range(1000)]
    agree(lambda b, *parts: concat(b, parts, 0), lambda *parts: torch.cat(parts), *rows)


def test_concat_of_unlike_parts():
    """Parts that differ in another dimension are refused, naming both shapes."""
    b = GraphBuilder("cat")
    parts = [b.input("x", (2, 3), "fp32"), b.input("y", (4, 3), "fp32")]
    with pytest.raises(ShapeError, match=r"concat: \[4, 3\] beside \[2, 3\] on 1"):
        concat(b, parts, 1)


def test_take():
    """An embedding takes rows by value, and negative indices count from the end."""
    agree(
        lambda b, t, i: take(b, t, i, 0),
        lambda t, i: t[i.long()],
        randn(10, 4),
        torch.tensor([[1.0, 2.0], [-1.0, 0.0]]).double(),
    )


def test_take_along():
    """gather takes one element per element of the indices."""
    agree(
        lambda b, t, i: take_along(b, t, i, 1),
        lambda t, i: torch.gather(t, 1, i.long()),
        randn(10, 4),
        torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 1.0]]).double(),
    )


def test_wrong_weight():
    """A weight whose channels do not fit the groups is refused, naming both shapes."""
    b = GraphBuilder("conv")
    x, w = b.input("x", (1, 6, 5, 5), "fp32"), b.weight("w", (4, 2, 3, 3), "fp32")
    with pytest.raises(ShapeError, match=r"weight \[4, 2, 3, 3\] with 2 groups does not fit"):
        convolution(b, x, w, [Window(kernel=3)] * 2, groups=2)


@pytest.mark.parametrize(
    ("size", "window", "ceil", "expected"),
    [
        (63, Window(kernel=2, stride=2), False, 31),  # the odd last element is left out
        (63, Window(kernel=2, stride=2), True, 32),
        (5, Window(kernel=3, stride=1, before=1, after=1), False, 5),
        (9, Window(kernel=3, stride=2, dilation=2), False, 3),  # span 5 at 0, 2, 4
        (4, Window(kernel=1, stride=3, before=0, after=2), True, 2),  # a third would start outside
    ],
)
def test_output_sizes(size: int, window: Window, ceil: bool, expected: int):
    """Output sizes by hand."""
    assert window.outputs(size, ceil=ceil) == expected
