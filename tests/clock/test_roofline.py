"""Terms of the roofline by hand, on a machine of round figures."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from fuseledger.clock.roofline import Roofline
from fuseledger.devices import Count, Device, Figure, Figures, replace_figures
from fuseledger.devices.figure import Launches, Peaks, Shares
from fuseledger.errors import DeviceError
from fuseledger.ledger.kernel import Pipeline
from fuseledger.ledger.library_calls import Calls, LibraryCall
from fuseledger.ledger.price import Padding, Price
from fuseledger.ledger.staging import Staged


def figure(value: float) -> Figure:
    """A figure whose source is this test."""
    return Figure(value=value, source="this test")


def count(value: int) -> Count:
    """A whole figure whose source is this test."""
    return Count(value=value, source="this test")


def machine(**changes: Any) -> Device:
    """100 SMs at 1 GHz, 1,000 GB/s in streams of 20 B per clock and SM, 1 µs a launch."""
    figures: dict[str, Any] = {
        "sm_count": count(100),
        "clock_mhz": figure(1000.0),
        "dram_measured_gbs": figure(1000.0),
        "dram_bytes_per_clock_per_sm": figure(20.0),
        "block_latency_us": figure(0.5),
        "peak_tflops": Peaks(tensor_fp16=figure(100.0), fma_fp32=figure(10.0)),
        "launch_us": Launches(queued=figure(1.0), eager=figure(9.0)),
        **changes,
    }
    table = Figures(**{name: value for name, value in figures.items() if value is not None})
    return Device(name="toy", title="Toy", vendor="nvidia", arch="sm_90", figures=table)


def price(**figures: Any) -> Price:
    """100 blocks, one an SM, that move nothing."""
    plain: dict[str, Any] = {
        "tiles": {}, "walks": 1, "blocks": 100, "read_bytes": 0, "write_bytes": 0
    }  # fmt: skip
    return Price(**{**plain, **figures})


def staged(rows: int) -> Staged:
    """Operands of so many rows, 64 bytes of each a step."""
    return Staged(step_bytes=64 * rows, is_read_there=True, rows=rows)


def test_bound_by_dram():
    """3 MB at 1,000 GB/s are 3 µs, plus a launch of 1 µs and a latency of 0.5 µs."""
    time = Roofline(machine()).time(price(read_bytes=2_000_000, write_bytes=1_000_000))
    assert dict(time.terms) == {"dram": pytest.approx(3.0)}
    assert (time.launch_us, time.latency_us, time.spill_us) == (1.0, 0.5, 0.0)
    assert time.total_us == pytest.approx(4.5)
    assert time.bound == "dram"


def test_few_blocks_cannot_draw_all_bandwidth():
    """10 SMs draw 20 B · 10 · 1 GHz = 200 GB/s: 3 MB take 15 µs."""
    time = Roofline(machine()).time(price(blocks=10, read_bytes=3_000_000))
    assert dict(time.terms)["dram"] == pytest.approx(15.0)


def test_bound_by_matrix_units():
    """1 GFLOP at 100 TFLOP/s is 10 µs on a full grid, and the slowest term alone counts."""
    time = Roofline(machine()).time(
        price(read_bytes=3_000_000, flops={"matrix:fp16": 1e9, "lanes:fp32": 1e7})
    )
    assert dict(time.terms) == {
        "dram": pytest.approx(3.0),
        "matrix": pytest.approx(10.0),
        "lanes": pytest.approx(1.0),
    }
    assert time.total_us == pytest.approx(11.5)
    assert time.bound == "matrix"


def test_bound_by_the_launch():
    """A kernel that moves 1 kB is all launch and latency."""
    time = Roofline(machine()).time(price(read_bytes=1000))
    assert time.total_us == pytest.approx(1.501)
    assert time.bound == "launch"


@pytest.mark.parametrize(
    ("blocks", "time_us"),
    [
        (100, 10.0),  # every SM has one block
        (50, 20.0),  # half the SMs idle
        (101, 10.0 * 200 / 101),  # the second wave is one block
        (200, 10.0),
        (150, 10.0 * 200 / 150),
    ],
)
def test_waves_are_whole(blocks: int, time_us: float):
    """Work is spread over whole waves of 100 SMs: 101 blocks take as long as 200 would."""
    time = Roofline(machine()).time(price(blocks=blocks, flops={"matrix:fp16": 1e9}))
    assert dict(time.terms)["matrix"] == pytest.approx(time_us)


def test_later_waves_add_a_tenth_of_the_latency():
    """900 blocks, two an SM, are 5 waves: 0.5 µs · (1 + 0.1 · 4)."""
    time = Roofline(machine()).time(price(blocks=900, blocks_per_sm=2))
    assert time.latency_us == pytest.approx(0.7)


def test_launches_by_mode():
    """Two launches cost what the mode says."""
    assert Roofline(machine()).time(price(launches=2)).launch_us == 2.0
    assert Roofline(machine(), launch="eager").time(price(launches=2)).launch_us == 18.0


def test_l2_has_a_term_of_its_own():
    """8 MB from an L2 of 4,000 GB/s are 2 µs, and twice that where half the SMs draw."""
    device = machine(l2_bandwidth_gbs=figure(4000.0))
    full = Roofline(device).time(price(l2_bytes=8_000_000))
    half = Roofline(device).time(price(l2_bytes=8_000_000, blocks=50))
    assert dict(full.terms)["l2"] == pytest.approx(2.0)
    assert dict(half.terms)["l2"] == pytest.approx(4.0)


def test_re_reads_reach_dram_where_l2_is_too_small():
    """4 MB read 30 times over an L2 of 1 MB: blocks of a wave share √100 of it, so 3 reads reach
    DRAM, 12 MB in all; with an L2 of 8 MB one does."""
    reads = price(read_bytes=4_000_000, l2_bytes=120_000_000)
    small = Roofline(machine(l2_bytes=count(1_000_000))).time(reads)
    large = Roofline(machine(l2_bytes=count(8_000_000))).time(reads)
    assert dict(small.terms)["dram"] == pytest.approx(12.0)
    assert dict(large.terms)["dram"] == pytest.approx(4.0)


def test_special_functions():
    """16 a clock on 100 SMs at 1 GHz are 1.6e12 a second: 1.6e6 take 1 µs."""
    device = machine(sfu_ops_per_clock_per_sm=figure(16.0))
    time = Roofline(device).time(price(special_ops=1.6e6))
    assert dict(time.terms)["special"] == pytest.approx(1.0)


def test_spills_are_priced_by_bytes_and_threads():
    """100 B a thread, written and read, of 100 blocks of 4 warps are 2.56 MB: 2.56 µs."""
    time = Roofline(machine()).time(price(spill_bytes=100))
    assert time.spill_us == pytest.approx(2.56)


def test_work_of_several_dtypes_shares_the_lanes():
    """10 MFLOP of fp32 and 10 of fp16 on lanes of 10 TFLOPS take 2 µs, one after the other."""
    device = machine(peak_tflops=Peaks(fma_fp32=figure(10.0), fma_fp16=figure(10.0)))
    time = Roofline(device).time(price(flops={"lanes:fp32": 1e7, "lanes:fp16": 1e7}))
    assert dict(time.terms)["lanes"] == pytest.approx(2.0)
    assert [name for name, _ in time.terms].count("lanes") == 1


def test_unknown_figures_leave_their_terms_out():
    """Without SMs there is no latency and no limit on what a block draws."""
    device = machine(sm_count=None, dram_bytes_per_clock_per_sm=None, block_latency_us=None)
    time = Roofline(device).time(price(blocks=1, read_bytes=3_000_000))
    assert dict(time.terms) == {"dram": pytest.approx(3.0)}
    assert time.latency_us == 0.0


def test_a_dtype_without_units_runs_on_fp32_lanes():
    """fp64 on a machine that states no fp64 pipe is priced on the fp32 lanes."""
    time = Roofline(machine()).time(price(flops={"lanes:fp64": 1e8}))
    assert dict(time.terms)["lanes"] == pytest.approx(10.0)


def test_changed_figures_change_the_time():
    """A device with one figure replaced has its own peaks, though it keeps its name."""
    work = price(flops={"matrix:fp16": 1e9})
    assert dict(Roofline(machine()).time(work).terms)["matrix"] == pytest.approx(10.0)
    faster = replace_figures(machine(), **{"peak_tflops.tensor_fp16": 200.0})
    assert dict(Roofline(faster).time(work).terms)["matrix"] == pytest.approx(5.0)


def test_bandwidth_is_required():
    """A device without a bandwidth cannot be priced, and the error names the figure."""
    with pytest.raises(DeviceError, match="toy has no figure for dram_bandwidth_gbs"):
        Roofline(machine(dram_measured_gbs=None)).time(price())


WALK: dict[str, Any] = {"blocks": 1, "staged": staged(128), "l2_bytes": 128 * 32_768}
"""One block of 128 rows that walks 16,384 fp16 elements, 32,768 B of each row."""


@pytest.mark.parametrize(("stages", "us"), [(2, 128.0), (3, 64.0), (5, 32.0), (1, 128.0)])
def test_generated_code_waits_for_the_trips_of_its_pipeline(stages: int, us: float):
    """Steps of 64 B, of which all stages but one are in flight: 512 trips of 0.25 µs each with one
    such step, a half and a quarter with two and four. A single stage has its own step in flight."""
    pipeline = Pipeline(step_bytes=64, stages=stages)
    time = Roofline(machine()).time(price(**WALK, pipeline=pipeline))
    assert dict(time.terms)["pipeline"] == pytest.approx(us)


def test_a_library_waits_for_the_trips_of_a_deep_pipeline():
    """1,280 B of each row in flight take a trip of 0.25 µs, so 25.6 trips are 6.4 µs; where shared
    memory holds 640 B, 12.8 µs."""
    walk = price(**WALK, calls=Calls("gemm", GEMM))
    for shared, us in ((None, 6.4), (count(128 * 640), 12.8)):
        device = machine(shared_memory_per_sm_bytes=shared)
        time = Roofline(device, realise="library").time(walk)
        assert dict(time.terms)["pipeline"] == pytest.approx(us)


def test_splits_shorten_the_walk():
    """In eight parts the same walk waits for an eighth of the trips."""
    time = Roofline(machine()).time(price(**{**WALK, "blocks": 8}))
    assert dict(time.terms)["pipeline"] == pytest.approx(16.0)


def test_partials_that_fit_stay_in_l2():
    """2 MB of partials, written and read, go to DRAM without an L2; with one of 10 MB none does,
    and a combine kernel reads half of them."""
    parts = price(partial_bytes=4_000_000, launches=2, merge="launch", parts=4)
    none = Roofline(machine(l2_bandwidth_gbs=figure(4000.0))).time(parts)
    held = Roofline(machine(l2_bandwidth_gbs=figure(4000.0), l2_bytes=count(10_000_000)))
    assert dict(none.terms)["dram"] == pytest.approx(2.0)
    assert dict(held.time(parts).terms)["dram"] == pytest.approx(0.0)
    assert held.time(parts).combine_us == pytest.approx(2e6 / 2000 / 1e3)


def test_a_combine_kernel_draws_by_its_grid():
    """2 MB of 8 parts are 62,500 results on 62 SMs, which draw all of 1,000 GB/s: 2 µs; 500 parts
    are 1,000 results, one block and 20 GB/s: 100 µs."""
    parts = {"partial_bytes": 4_000_000, "launches": 2, "merge": "launch"}
    clock = Roofline(machine())
    assert clock.time(price(**parts, parts=8)).combine_us == pytest.approx(2.0)
    assert clock.time(price(**parts, parts=500)).combine_us == pytest.approx(100.0)


def test_the_last_block_of_a_tile_waits_for_its_ticket_and_reads_the_parts_alone():
    """Three trips to L2 of 0.73 × 0.25 µs; 2 MB of parts of 4 tiles on 4 SMs at 20 GB/s: 25 µs.

    Of 100 tiles, each on an SM of its own, they come at 1,000 GB/s: 2 µs. No second launch is paid.
    """
    clock = Roofline(machine())
    parts = {"partial_bytes": 4_000_000, "parts": 8}
    launched = clock.time(price(**parts, launches=2, merge="launch"))
    few = clock.time(price(**parts, merge="last block", merging_blocks=4))
    many = clock.time(price(**parts, merge="last block", merging_blocks=100))
    assert few.combine_us == pytest.approx(25.0)
    assert many.combine_us == launched.combine_us == pytest.approx(2.0)
    assert many.latency_us - launched.latency_us == pytest.approx(3 * 0.73 * 0.25)
    assert launched.launch_us - many.launch_us == 1.0
    assert many.terms == launched.terms


GEMM = LibraryCall("cuBLAS", "gemm", "BIAS")


def shares() -> Device:
    """A library reaches 0.8 of the peak, generated code 0.9 of the library."""
    return machine(library_share=Shares(gemm=figure(0.8)), template_share=Shares(gemm=figure(0.9)))


def test_the_library_is_taken_where_there_is_a_call():
    """1 GFLOP at 100 TFLOP/s are 10 µs of peak: 12.5 µs in a library, 13.9 µs generated."""
    work = {"flops": {"matrix:fp16": 1e9}}
    library = Roofline(shares()).time(price(**work, calls=Calls("gemm", GEMM)))
    generated = Roofline(shares()).time(price(**work, calls=Calls("gemm", None, "no silu")))
    assert (library.realised, library.matrix_share) == ("cuBLAS + BIAS", 0.8)
    assert dict(library.terms)["matrix"] == pytest.approx(12.5)
    assert (generated.realised, generated.matrix_share) == ("generated", pytest.approx(0.72))
    assert dict(generated.terms)["matrix"] == pytest.approx(10 / 0.72)


def test_generated_code_is_taken_where_it_is_faster():
    """A template faster than the library is the cheaper realisation."""
    device = machine(template_share=Shares(gemm=figure(1.1)))
    time = Roofline(device).time(price(flops={"matrix:fp16": 1e9}, calls=Calls("gemm", GEMM)))
    assert (time.realised, time.matrix_share) == ("generated", pytest.approx(1.1))


def test_products_on_the_lanes_have_a_share_of_their_own():
    """fp32 without TF32 runs on the FMA lanes, of whose peak a library reaches another share."""
    device = machine(library_share=Shares(gemm=figure(0.5), lanes=figure(0.8)))
    work = price(flops={"matrix:fp32": 1e9}, calls=Calls("gemm", GEMM))
    assert Roofline(device).time(work).matrix_share == 0.8
    half = price(flops={"matrix:fp16": 1e9}, calls=Calls("gemm", GEMM))
    assert Roofline(device).time(half).matrix_share == 0.5


def test_a_kernel_without_a_product_is_generated():
    """Lanes have no template share."""
    time = Roofline(shares()).time(price(flops={"lanes:fp32": 1e7}))
    assert (time.realised, dict(time.terms)["lanes"]) == ("generated", pytest.approx(1.0))


def test_library_blocks_in_clusters_share_loads():
    """Where one load serves two blocks a library's blocks load three quarters: 8 MB from an L2 of
    4,000 GB/s take 1.5 µs in place of 2."""
    device = machine(l2_bandwidth_gbs=figure(4000.0), multicast_blocks=count(2))
    loads = {"l2_bytes": 8_000_000, "flops": {"matrix:fp16": 1e6}}
    library = Roofline(device).time(price(**loads, calls=Calls("gemm", GEMM)))
    generated = Roofline(device).time(price(**loads, calls=Calls("gemm", None)))
    assert dict(library.terms)["l2"] == pytest.approx(1.5)
    assert dict(generated.terms)["l2"] == pytest.approx(2.0)


def test_a_second_walk_of_short_rows_is_served_by_l2():
    """8 blocks that read 1 MB again each touch 8 MB: an L2 of 16 MB holds them all, one of 8 MB
    holds (1.1 − 1)/(1.1 − 0.5) of them, so of 20 MB read and 10 read again 8.33 more reach DRAM."""
    walk = {
        "blocks": 8, "walks": 2, "read_bytes": 20_000_000, "rewalked_bytes": 10_000_000,
        "rewalked_per_block": 1e6, "write_bytes": 0,
    }  # fmt: skip
    full, part, none = (
        dict(Roofline(machine(l2_bytes=l2)).time(price(**walk)).terms)["dram"]
        for l2 in (count(16_000_000), count(8_000_000), None)
    )
    assert part == pytest.approx(full + (none - full) * (1 - (1.1 - 1) / (1.1 - 0.5)))
    assert none == pytest.approx(2 * full)


def test_a_second_walk_waits_for_the_first():
    """Two walks of a block are two latencies of 0.5 µs."""
    assert Roofline(machine()).time(price(walks=2)).latency_us == 1.0


def test_a_library_call_does_not_spill():
    """8 B a thread of 100 blocks of 4 warps, written and read, take 0.2 µs of generated code's time
    and none of a library's, whose registers are its own."""
    spilling = {"spill_bytes": 8, "flops": {"matrix:fp16": 1e8}}
    own = Roofline(machine()).time(price(**spilling))
    assert own.spill_us == pytest.approx(2 * 8 * 100 * 128 / 1000e3)
    call = LibraryCall(library="cuBLAS", core="gemm", epilogue="", residual=False)
    theirs = Roofline(machine(library_share=Shares(gemm=figure(1.0)))).time(
        price(**spilling, calls=Calls(core="gemm", call=call))
    )
    assert (theirs.realised, theirs.spill_us) == ("cuBLAS", 0.0)


def test_padded_tiles_are_multiplied_whole():
    """1e9 FLOP at 100 TFLOP/s take 10 µs, 17.5 where tiles are padded by three quarters; a library
    pads its own, and has no tiles that are too large."""
    device = machine(
        library_share=Shares(gemm=figure(1.0)), template_share=Shares(gemm=figure(1.0))
    )
    cublas = Calls("gemm", LibraryCall(library="cuBLAS", core="gemm"))

    def matrix_us(calls: Calls, padding: Padding) -> tuple[str, float, float]:
        time = Roofline(device).time(
            price(flops={"matrix:fp16": 1e9}, calls=calls, padding=padding)
        )
        return time.realised, dict(time.terms)["matrix"], time.padding

    own = ("generated", pytest.approx(17.5), 1.75)
    assert matrix_us(Calls("gemm", None), Padding(1.75, 1.0)) == own
    assert matrix_us(cublas, Padding(1.75, 1.1)) == ("cuBLAS", pytest.approx(11.0), 1.1)
    assert matrix_us(cublas, Padding(1.75, inf)) == own
    flash = Calls("attention", LibraryCall(library="cuDNN", core="attention"), rows=("m",))
    time = Roofline(device).time(
        price(flops={"matrix:fp16": 1e9}, calls=flash, tiles={"m": 64}, padding=Padding(1.0, inf))
    )
    assert (time.realised, time.padding) == ("generated", 1.0)  # cuDNN takes 128 rows a block


def test_a_library_leaves_out_what_a_mask_hides():
    """1e9 FLOP at 100 TFLOP/s take 10 µs, and 6 where 60 % of the points are computed."""
    device = machine(library_share=Shares(attention=figure(1.0)))
    call = LibraryCall(library="cuDNN", core="attention")
    whole, masked = (
        Roofline(device).time(
            price(flops={"matrix:fp16": 1e9}, calls=Calls("attention", call, unmasked=share))
        )
        for share in (1.0, 0.6)
    )
    assert dict(whole.terms)["matrix"] == pytest.approx(10.0)
    assert dict(masked.terms)["matrix"] == pytest.approx(6.0)
