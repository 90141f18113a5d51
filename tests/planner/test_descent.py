"""The search over tiles, against every choice of tiles."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from fuseledger.clock.roofline import Roofline
from fuseledger.devices import load, names
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.graph.view import View
from fuseledger.graph.window import Window, convolution, pool
from fuseledger.ledger.kernel import SHALLOW, Pipeline
from fuseledger.ledger.nest import analyse
from fuseledger.ledger.price import Price
from fuseledger.ledger.pricer import Pricer
from fuseledger.ledger.products import STEPS
from fuseledger.ledger.staging import STAGES
from fuseledger.ledger.tiles import TileLimits
from fuseledger.planner.descent import Descent, Key
from fuseledger.planner.plan import PlanOptions, make_plan, new_search

Build = Callable[[GraphBuilder], View]
DEVICE = load("h100-sxm")
CLOCK = Roofline(DEVICE)
SMS = 132


def skinny(b: GraphBuilder) -> View:
    """128×128×16384: one tile of 128×128, unless k is split."""
    x, w = b.input("x", (128, 16384), "fp16"), b.weight("w", (16384, 128), "fp16")
    return b.contract("gemm", "mk,kn->mn", [x, w])


def square(b: GraphBuilder) -> View:
    """4096×4096×4096."""
    x, w = b.input("x", (4096, 4096), "fp16"), b.weight("w", (4096, 4096), "fp16")
    return b.contract("gemm", "mk,kn->mn", [x, w])


def no_library_has(b: GraphBuilder, m: int, k: int, n: int) -> View:
    """A product with an epilogue that no library has."""
    x, w = b.input("x", (m, k), "fp16"), b.weight("w", (k, n), "fp16")
    return b.map("tanh", [b.map("silu", [b.contract("gemm", "mk,kn->mn", [x, w])])])


def few_rows(b: GraphBuilder) -> View:
    """With a short pipeline, larger tiles of few rows wait more."""
    return no_library_has(b, 128, 1024, 2048)


def statistic(b: GraphBuilder, batch: int = 16, channels: int = 8) -> View:
    """A convolution and the sums of its channels, whose rows are parts."""
    x = b.input("x", (batch, channels, 64, 64), "fp32")
    w = b.weight("w", (16, channels, 3, 3), "fp32")
    y = convolution(b, x, w, [Window(kernel=3, before=1, after=1)] * 2)
    (total,) = b.reduce("sum", [b.map("relu", [y])], [0, 2, 3], "sum")
    return total


def least_of_a_row(b: GraphBuilder) -> View:
    """The least of each row, added to another axis: tiles of that axis compute the least again."""
    x, bias = b.input("x", (1024, 8192), "fp32"), b.weight("bias", (8192, 1), "fp32")
    (least,) = b.reduce("min", [x], [1], "min")
    return b.map("add", [bias, least])


def pooled(b: GraphBuilder) -> View:
    """A pool in two axes, without a halo."""
    x = b.input("x", (8, 16, 64, 64), "fp32")
    return pool(b, b.map("exp", [x]), [Window(kernel=2, stride=2)] * 2, "max")


def never(_: Price) -> bool:
    """Every walk is taken."""
    return False


def by_time(price: Price) -> Key:
    """Fits; then time."""
    return (len(price.vetoes), CLOCK.time(price).total_us)


def by_bytes(price: Price) -> Key:
    """Fits, covers the SMs, computes little again; then bytes."""
    shortage = max(1.0, SMS / price.blocks)
    return (len(price.vetoes), shortage, price.extra_flops, price.dram_bytes)


@pytest.mark.parametrize("key", [by_time, by_bytes])
@pytest.mark.parametrize("build", [skinny, few_rows, statistic, least_of_a_row, pooled])
def test_no_choice_of_tiles_is_better(build: Build, key: Callable[[Price], Key]) -> None:
    """No tiles that are powers of two, or whole axes, with any pipeline, cost 1 % less than those
    found."""
    graph = graph_of(build)
    pricer = Pricer(analyse(graph, tuple(range(len(graph.ops)))), DEVICE)
    limits = TileLimits(pricer)
    found, _ = Descent(
        pricer=pricer, limits=limits, walks=1, sms=SMS, key=key, clock=CLOCK,
        is_enough=never, is_hopeless=never,
    ).best()  # fmt: skip
    nest = pricer.nest
    best = min(
        key(pricer.price(tiles, pipeline=pipeline))
        for pipeline in (Pipeline(*each) for each in product(STEPS, STAGES))
        for each in product(*(powers(nest.sizes[name]) for name in nest.open_axes))
        if limits.allows(tiles := dict(zip(nest.open_axes, each, strict=True)))
    )
    assert found[:-1] == best[:-1]
    assert found[-1] <= 1.01 * best[-1]


def test_generated_code_has_the_pipeline_that_it_waits_for() -> None:
    """A product that no library has, with a long sum, on a grid that covers a quarter of the SMs:
    with one step of 64 bytes in flight, trips to memory are the slowest term. The search takes a
    pipeline with which they are not, or the deepest that any is."""

    graph = graph_of(lambda b: no_library_has(b, 64, 8192, 512))
    search = new_search(graph, DEVICE, PlanOptions())
    price = search.price(tuple(range(len(graph.ops))))
    assert price.pipeline != SHALLOW
    shallow = Pricer(analyse(graph, (0, 1, 2)), DEVICE).price(price.tiles)
    assert CLOCK.time(shallow).slowest[0] == "pipeline"
    assert CLOCK.time(price).total_us < CLOCK.time(shallow).total_us


def test_what_waits_for_other_things_has_a_short_pipeline() -> None:
    """A large product waits for the matrix units: two stages of 64 bytes are enough, though the
    search starts from more; nothing that loads less ahead is as fast."""

    graph = graph_of(lambda b: no_library_has(b, 2048, 2048, 2048))
    search = new_search(graph, DEVICE, PlanOptions())
    price = search.price(tuple(range(len(graph.ops))))
    assert CLOCK.time(price).slowest[0] == "matrix"
    assert price.pipeline == SHALLOW


def test_what_has_no_product_has_no_pipeline_to_choose() -> None:
    """Rows and their least are walked without operands: two stages, as launches have."""
    graph = graph_of(least_of_a_row)
    search = new_search(graph, DEVICE, PlanOptions())
    assert search.price(tuple(range(len(graph.ops)))).pipeline == SHALLOW


def test_few_bytes_are_no_reason_to_be_slow() -> None:
    """Where bytes are minimised, a statistic has as many parts as the machine needs: no plan is
    twice as slow for the sake of a few kilobytes in 268 MB."""
    graph = graph_of(lambda b: statistic(b, 256, 64))
    group = tuple(range(len(graph.ops)))
    fast = new_search(graph, DEVICE, PlanOptions(objective="time")).choose(group)
    lean = new_search(graph, DEVICE, PlanOptions(objective="bytes")).choose(group)
    assert lean.usable
    assert lean.bytes <= 1.0001 * fast.bytes
    assert lean.time_us <= 1.05 * fast.time_us


@pytest.mark.parametrize("name", [name for name in names() if name != "textbook"])
def test_tiles_of_a_large_product_are_as_large_as_l2_asks(name: str) -> None:
    """A square tile of side s loads 4n³/s bytes for 2n³ FLOPs in 16 bits, so peak and L2 balance
    at s = 2·peak/L2; what a library's blocks load for each other counts three quarters."""
    device = load(name)
    kernel = make_plan(graph_of(square), device).kernels[0]
    tiles = {axis: each.tile for axis, each in kernel.kernel.schedule.axes}
    side = 2 / (1 / tiles["m"] + 1 / tiles["n"])
    reached = device.peak_for("fp16", matrix=True) * device.library_share("gemm")
    shared = 0.75 if device.require("multicast_blocks") > 1 else 1.0
    balance = 2 * shared * reached / (device.require("l2_bandwidth_gbs") * 1e9)
    assert side > 0.95 * balance


def graph_of(build: Build) -> Graph:
    """The graph of one output."""
    b = GraphBuilder("test")
    b.output(build(b), "out")
    return b.finish()


def powers(size: int) -> list[int]:
    """Powers of two below the size, and the size."""
    return [*(1 << k for k in range(size.bit_length()) if 1 << k < size), size]
