"""Windows as columns, against PyTorch in float64."""

from __future__ import annotations

import pytest
from agreement import agree
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseledger.graph.columns import fold, unfold
from fuseledger.graph.window import Window

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.torch

KERNEL, IMAGE = (2, 3), (7, 8)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(0, 2), st.integers(1, 2))
def test_unfold_and_fold(stride: int, padding: int, dilation: int):
    """Every window is a column; folded back, each element sums the windows that hold it.

    The bounds of a window's rows and columns cannot both be kept by one stored dimension, so that
    folding splits it first: a move.
    """
    windows = [
        Window(kernel=k, stride=stride, before=padding, after=padding, dilation=dilation)
        for k in KERNEL
    ]
    x = torch.arange(2 * 3 * 7 * 8, dtype=torch.float64).reshape(2, 3, 7, 8).sin()
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    graph = agree(lambda b, x: unfold(b, x, windows), lambda x: F.unfold(x, KERNEL, **options), x)
    assert [op.function for op in graph.ops] == ["im2col"]
    graph = agree(
        lambda b, y: fold(b, y, IMAGE, windows),
        lambda y: F.fold(y, IMAGE, KERNEL, **options),
        F.unfold(x, KERNEL, **options),
    )
    assert [op.function for op in graph.ops] == ["move", "col2im"]
