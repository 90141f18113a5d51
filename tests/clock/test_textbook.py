"""The textbook clock by hand, on the textbook's machine and on one with SMs."""

from __future__ import annotations

from typing import Any

import pytest

from fuseledger.clock.textbook import declared_time
from fuseledger.devices import load, replace_figures
from fuseledger.graph.declared import declared_graph, declared_op, flat_tensor
from fuseledger.ledger.nest import Nest, analyse


def nest_of(elements: int, **declared: Any) -> Nest:
    """One declared op that reads and writes so many fp16 elements."""
    x, y = flat_tensor("x", elements, "fp16", "input"), flat_tensor("y", elements, "fp16", "output")
    op = declared_op("stage", "stage", [x], [y], declared)
    return analyse(declared_graph("chain", [op], [x, y]), (0,))


def test_bound_by_memory():
    """4.48 MB at 448 GB/s are 10 µs, and the launch is 5 µs."""
    time = declared_time(nest_of(1_120_000), load("textbook"))
    assert time.total_us == pytest.approx(15.0)
    assert time.bound == "dram"


def test_bound_by_flops():
    """8e8 FLOPs at 40 TFLOP/s are 20 µs, more than the 10 µs of memory."""
    time = declared_time(nest_of(1_120_000, flops=8e8), load("textbook"))
    assert time.total_us == pytest.approx(25.0)


@pytest.mark.parametrize(
    ("registers", "penalty", "total_us"), [(255, 3.0, 15.0), (256, 3.0, 35.0), (300, 2.0, 25.0)]
)
def test_spilling_multiplies_memory_time(registers: int, penalty: float, total_us: float):
    """Above 255 registers the 10 µs of memory are taken `spill_penalty` times."""
    nest = nest_of(1_120_000, registers=registers, spill_penalty=penalty)
    time = declared_time(nest, load("textbook"))
    assert time.total_us == pytest.approx(total_us)
    assert time.spill_us == pytest.approx(total_us - 15.0)


def test_spills_hide_behind_flops():
    """Tripled memory time of 30 µs costs 10 µs beyond 20 µs of FLOPs."""
    time = declared_time(nest_of(1_120_000, flops=8e8, registers=300), load("textbook"))
    assert time.spill_us == pytest.approx(10.0)


def test_a_declared_grid_limits_what_is_drawn():
    """66 blocks on 132 SMs draw 66 · 32 B per clock at most, and compute on half the SMs."""
    device = replace_figures(load("h100-sxm"), dram_bandwidth_gbs=4502.4)
    clock_mhz = device.require("clock_mhz")
    time = declared_time(nest_of(1 << 20, grid=66, flops=1e9), device)
    drawn_gbs = min(4502.4, 66 * 32 * clock_mhz / 1e3)
    assert dict(time.terms)["dram"] == pytest.approx((1 << 22) / drawn_gbs / 1e3)
    full_us = 1e9 / device.peak_for("fp16", matrix=True) * 1e6
    assert dict(time.terms)["lanes"] == pytest.approx(2 * full_us)


def test_more_declared_launches_cost_more():
    """Two launches of 5 µs."""
    assert declared_time(nest_of(1, launches=2), load("textbook")).launch_us == 10.0
