"""Measured splits and fusions: the side that won, by the planner's search and clock.

Sources are those of docs/decisions.md. The gain itself is held against the measured one there.
"""

from __future__ import annotations

import pytest

from fuseledger.clock.roofline import Roofline
from fuseledger.devices import load
from fuseledger.frontends.source import load as load_source
from fuseledger.planner.plan import PlanOptions, make_plan, new_search
from fuseledger.planner.splits import pieces
from fuseledger.verdict.attention import Attention
from fuseledger.verdict.gemm import Gemm
from fuseledger.verdict.split import Pricing, Question


def gain(question: Question, device: str, **how: str) -> float:
    """The best kernel without a split over the best with one."""
    pricing = Pricing(question.split(), load(device), **how)  # type: ignore[arg-type]
    split = pricing.parts.at(max(2, pricing.parts.best()))
    return pricing.parts.at(1).time.total_us / split.time.total_us


@pytest.mark.parametrize(
    ("size", "device", "split_wins"),
    [
        ((128, 128, 16384), "b200", True),
        ((128, 128, 65536), "b200", True),
        ((256, 256, 32768), "b200", True),
        ((512, 512, 16384), "b200", True),
        ((4, 8192, 1024), "rtx-pro-6000", False),
    ],
)
def test_split_k_wins_where_it_was_measured_to(
    size: tuple[int, int, int], device: str, *, split_wins: bool
):
    """Long walks of few tiles gain by more than 5 %, a short one of many loses by more."""
    m, n, k = size
    found = gain(Gemm(M=m, N=n, K=k, dtype="bf16"), device, launch="graph")
    assert found > 1.05 if split_wins else found < 1 / 1.05


@pytest.mark.parametrize(("kv", "measured"), [(16384, 2.57), (65536, 3.45), (131072, 3.68)])
def test_split_kv_gains_within_half_of_the_measured(kv: int, measured: float):
    """FlashAttention on H200, one query of 32 heads on 8: blocks compute 128 rows each, so 32 of
    them on 132 SMs gain up to 132/32 = 4.1."""
    question = Attention(heads=32, kv=kv, d=128, kv_heads=8, dtype="bf16")
    found = gain(question, "h200", realise="library")
    assert measured / 1.5 < found < measured * 1.5
    assert found < 132 / 32 * 1.02


def test_parts_are_merged_in_the_quicker_way():
    """Two parts a tile on 5,120 columns: the last block of each saves more than its ticket takes.
    16 parts of 16 tiles of 128×128, 64 KB each: 16 SMs would read 1 MB each, 256 blocks of a second
    kernel read 64 KB each."""
    narrow = Pricing(Gemm(M=1, N=5120, K=1792, dtype="bf16").split(), load("b200")).parts.at(2)
    assert narrow.price.merge == "last block"
    assert narrow.price.launches == 1
    tiled = Gemm(M=512, N=512, K=16384, dtype="bf16", tile=(128, 128))
    wide = Pricing(tiled.split(), load("b200")).parts.at(16)
    assert wide.price.merge == "launch"
    assert wide.price.launches == 2


def test_split_kv_is_found_by_the_search():
    """The search of `plan` splits the keys of decode attention: parts, online sums, and a last
    block of each head that merges them, as FlashDecoding with a semaphore does."""
    graph = Attention(heads=32, kv=65536, d=128, kv_heads=8).graph()
    search = new_search(graph, load("h200"), PlanOptions())
    ops = tuple(range(len(graph.ops)))
    schedule, price = search.kernel(ops).schedule, search.price(ops)
    assert dict(schedule.axes)["n"].treatment == "split"
    assert (price.launches, schedule.online, schedule.walks) == (1, True, 1)
    assert schedule.merge == "last block"
    statistics, sums = price.parts * 32 * 2 * 4, price.parts * 32 * 128 * 4
    assert price.partial_bytes == 2 * (statistics + sums)


def test_a_template_slower_than_the_library_can_lose():
    """SwiGLU in generated GEMMs on B200, [5120,4096] → 8192, was measured 1.34 times slower than
    library GEMMs and a pointwise kernel: the plan keeps cuBLAS."""
    graph = load_source(
        "silu(x[5120,4096] bf16 @ g[4096,8192] bf16) * (x[5120,4096] bf16 @ u[4096,8192] bf16)"
    )
    planned = make_plan(graph, load("b200"), PlanOptions())
    assert [kernel.time.realised for kernel in planned.kernels].count("cuBLAS") == 2
    search = new_search(graph, load("b200"), PlanOptions())
    search.clock = Roofline(load("b200"), realise="generated")
    fused = search.choose(tuple(range(len(graph.ops)))).time_us
    assert fused > 1.05 * planned.totals.time_us


def test_a_small_one_is_fused():
    """[5120,256] → 512 was measured 1.47 times faster fused: launches decide."""
    graph = load_source(
        "silu(x[5120,256] bf16 @ g[256,512] bf16) * (x[5120,256] bf16 @ u[256,512] bf16)"
    )
    planned = make_plan(graph, load("b200"), PlanOptions())
    assert [kernel.time.realised for kernel in planned.kernels] == ["generated"]


@pytest.mark.parametrize(("size", "parts", "found"), [(16, 4, 4), (10, 4, 4), (9, 6, 5), (5, 9, 5)])
def test_pieces(size: int, parts: int, found: int):
    """Parts are of one length but the last: 9 in parts of 2 are 5, not 6."""
    assert pieces(size, parts) == found
