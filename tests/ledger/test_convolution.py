"""The shape of a convolution is read off its loop nest."""

from __future__ import annotations

import pytest

from fuseledger.frontends.source import load
from fuseledger.ledger.convolution import Convolution
from fuseledger.ledger.library_calls import library_calls
from fuseledger.ledger.nest import analyse


def convolution(expression: str) -> Convolution | None:
    """Of the expression's first op."""
    return library_calls(analyse(load(expression), (0,)), "nvidia").convolution


@pytest.mark.parametrize(
    ("expression", "sizes"),
    [
        (
            "conv2d(x[2,16,8,8], w[32,16,3,3])",
            {"batch": 2, "channels_in": 16, "channels_out": 32, "groups": 1, "rank": 2,
             "window": 9, "spatial": 36, "stride": 1, "dilation": 1, "transposed": False},
        ),
        (
            "conv2d(x[2,16,9,9], w[32,4,3,3], stride=2, groups=4)",
            {"channels_in": 4, "channels_out": 8, "groups": 4, "stride": 4, "spatial": 16},
        ),
        (
            "conv2d(x[2,16,9,9], w[32,16,3,3], dilation=2)",
            {"dilation": 4, "spatial": 25, "window": 9},
        ),
        (
            "conv1d(x[2,16,64], w[32,16,3])",
            {"rank": 1, "window": 3, "spatial": 62},
        ),
        (
            "conv3d(x[2,16,8,8,8], w[32,16,3,3,3])",
            {"rank": 3, "window": 27, "spatial": 216},
        ),
        (
            "conv_transpose(x[2,16,8,8], w[16,32,3,3], stride=2)",
            {"transposed": True, "stride": 4, "spatial": 289, "channels_in": 16,
             "channels_out": 32, "window": 9},
        ),
        (
            "conv_transpose(x[2,16,8,8], w[16,32,3,3])",
            {"transposed": True, "stride": 1, "spatial": 100},
        ),
        (
            "conv2d(x[2,16,10,10], w[32,16,3,3]) | max_pool(2)",
            {"stride": 1, "spatial": 64, "window": 9},
        ),
    ],
)  # fmt: skip
def test_sizes_of_a_convolution(expression: str, sizes: dict[str, int]) -> None:
    """Channels of one group, and products over the dimensions; a pool behind it changes nothing."""
    found = convolution(expression)
    assert found is not None
    assert {name: getattr(found, name) for name in sizes} == sizes


def test_bytes_are_those_of_input_and_result() -> None:
    """2·16·8·8 and 2·32·6·6 elements of two bytes."""
    found = convolution("conv2d(x[2,16,8,8], w[32,16,3,3])")
    assert found is not None
    assert (found.x_bytes, found.y_bytes, found.channels_last) == (4096, 4608, False)


@pytest.mark.parametrize(
    "expression",
    ["conv2d(x[2,16,8,8], w[16,1,3,3], groups=16)", "x[64,128] @ w[128,256]"],
)
def test_no_matrix_unit_convolves_one_channel(expression: str) -> None:
    """A depthwise convolution and a matrix product have no such shape."""
    assert convolution(expression) is None
