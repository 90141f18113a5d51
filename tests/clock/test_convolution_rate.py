"""Convolutions in the schedule clock run at the rate that the library clock gives their shape."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from fuseledger.clock.convolution import convolution_rate
from fuseledger.clock.library import load_fit
from fuseledger.clock.library_features import STREAM_SHARE
from fuseledger.devices import load
from fuseledger.frontends.source import load as source
from fuseledger.ledger.convolution import Convolution
from fuseledger.planner.plan import PlanOptions, plan_of_groups

H100 = load("h100-sxm")
SQUARE = Convolution(
    batch=128, channels_in=128, channels_out=128, groups=1, rank=2, spatial=126 * 126, window=9,
    stride=1, dilation=1, transposed=False, channels_last=False, x_bytes=1_073_741_824,
    y_bytes=1_040_449_536,
)  # fmt: skip


def test_few_channels_sustain_less_of_the_peak() -> None:
    """Three input channels fill a small part of a tile's reduced side."""
    few = convolution_rate(replace(SQUARE, channels_in=3), H100)
    assert few.share < 0.5 * convolution_rate(SQUARE, H100).share


def test_layouts_are_two_passes_over_input_and_result() -> None:
    """2·(x + y) bytes at stream bandwidth, times the factor that the fit found for turning them."""
    bytes_us = 2 * (SQUARE.x_bytes + SQUARE.y_bytes) / (STREAM_SHARE * 3352e3)
    factor = math.exp(load_fit().coefficients["conv.layout"])
    assert convolution_rate(SQUARE, H100).layout_us == pytest.approx(bytes_us * factor, rel=0.01)


def test_channels_last_turns_nothing() -> None:
    """What lies channels last already has no such passes."""
    assert convolution_rate(replace(SQUARE, channels_last=True), H100).layout_us == 0.0


def test_a_plan_prices_a_convolution_at_its_rate() -> None:
    """FLOPs over the share of the TF32 peak, and the passes beside them, make up the time of a
    convolution that computes for longer than it streams."""
    graph = source("conv2d(x[64,256,30,30] fp32, w[512,256,3,3] fp32)")
    planned = plan_of_groups(graph, H100, [(0,)], PlanOptions(tf32=True))
    time = planned.kernels[0].time
    shape = replace(
        SQUARE, batch=64, channels_in=256, channels_out=512, spatial=28 * 28,
        x_bytes=4 * 64 * 256 * 900, y_bytes=4 * 64 * 512 * 784,
    )  # fmt: skip
    rate = convolution_rate(shape, H100)
    flops = 2 * 64 * 512 * 784 * 256 * 9
    assert time.realised == "cuDNN"
    assert dict(time.terms)["matrix"] == pytest.approx(
        flops / 494.5e6 / rate.share * rate.idle, rel=0.02
    )
    assert time.layout_us == rate.layout_us
