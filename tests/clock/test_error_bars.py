"""Error bars of a plan's times: which measurements a graph is held against."""

from __future__ import annotations

import math

import pytest

from fuseledger.clock.error_bars import bars_of, dtype_of, kind_of, load_error_bars
from fuseledger.devices import names
from fuseledger.frontends.expression import parse


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("relu(x[64,64])", "pointwise"),
        ("x[64,64] | softmax", "reduction"),
        ("x[64,64] | cumsum", "scan"),
        ("max_pool(x[2,8,32,32], 3, stride=1)", "pooling"),
        ("max_pool(x[2,8,32,32], 2)", "reduction"),
        ("gemm(64,64,64) + bias | softmax", "product"),
        ("attention(q[2,4,64,32], k[2,4,64,32], v[2,4,64,32])", "attention"),
        ("gemm(64,64,64); conv(x[2,8,32,32], w[8,8,3,3])", "convolution"),
        ("conv(x[2,8,32,32], w[8,1,3,3], groups=8)", "convolution"),
        ("q = x[4,64,32] @ w[32,32]; softmax(q @ k[4,32,64]) @ v[4,64,32]", "attention"),
        ("v, i = topk(relu(x[64,64]), 2); softmax(v)", "barrier"),
        ("softmax(q[4,64,32] @ k[4,32,64]) @ v[4,64,32] @ w[32,4096]", "product"),
    ],
)
def test_the_kind_is_that_of_the_heaviest_op(source: str, kind: str) -> None:
    """By FLOPs where it multiplies: depthwise convolutions are convolutions too, and attention is
    the products on both sides of a softmax. Windows that do not overlap are a reduction."""
    assert kind_of(parse(source)) == kind


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("fp32", "fp32"), ("fp16", "16-bit"), ("bf16", "16-bit"), ("fp8", "fp8")],
)
def test_the_dtype_is_that_of_the_operands(dtype: str, expected: str) -> None:
    """Both 16-bit floats share their measurements; what a product writes does not count."""
    assert dtype_of(parse("gemm(64,64,64)", dtype=dtype)) == expected


def test_every_bar_says_where_it_was_measured() -> None:
    """Three graphs or more, on devices of the catalog; nine in ten lie no nearer than half."""
    rows = load_error_bars().rows
    assert len({(row.kind, row.dtype, row.side) for row in rows}) == len(rows)
    for row in rows:
        assert row.graphs >= 3
        assert row.against
        assert set(row.devices) <= set(names())
        assert 0 <= row.median <= row.p90
        assert abs(row.shift) <= row.p90 or math.isclose(abs(row.shift), row.p90)


def test_a_graph_that_nobody_measured_has_no_bar() -> None:
    """A product in fp64 has a kind and a dtype, and that is all."""
    found = bars_of(parse("gemm(64,64,64)", dtype="fp64"))
    assert found == ("product", "fp64", {})


def test_a_plan_comes_before_one_kernel_an_op() -> None:
    """As in the table of totals that the bars are about."""
    found = bars_of(parse("gemm(64,64,64) + bias", dtype="bf16"))
    assert found is not None
    assert list(found[2]) == ["plan", "one kernel an op"]
