"""The figures of the catalog against facts that do not come from the same table."""

import math
import statistics
from pathlib import Path

import pytest

from fuseledger.devices import Device, catalog, load, names
from fuseledger.devices.figure import FIELDS

GPUS = [name for name in names() if name != "textbook"]
NVIDIA = [name for name in GPUS if load(name).vendor == "nvidia"]

# fp32 lanes of one SM, from the SM diagrams of the architecture whitepapers. CDNA 3 and 4 issue
# two fp32 operations a lane.
LANES = {
    "sm_75": 64,
    "sm_80": 64,
    "sm_86": 128,
    "sm_89": 128,
    "sm_90": 128,
    "sm_100": 128,
    "sm_120": 128,
    "gfx90a": 64,
    "gfx942": 128,
    "gfx950": 128,
}

# Width of the memory bus in bits and rate of one pin in Gbit/s, from the memory's own standard.
MEMORY_BUS = {
    "t4": (256, 10.0),
    "a10g": (384, 12.5),
    "a100-sxm-40": (5120, 2.43),
    "a100-sxm-80": (5120, 3.186),
    "a100-pcie-40": (5120, 2.43),
    "a100-pcie-80": (5120, 3.024),
    "l4": (192, 12.5),
    "l40s": (384, 18.0),
    "h100-pcie": (5120, 3.186),
    "h100-sxm": (5120, 5.238),
    "h200": (6144, 6.25),
    "b200": (7680, 7.992),
    "gb200": (8192, 8.0),
    "rtx-3050-laptop": (128, 12.0),
    "rtx-3090": (384, 19.5),
    "rtx-4090": (384, 21.0),
    "rtx-5090": (512, 28.0),
    "rtx-pro-6000": (512, 28.0),
    "rtx-8000": (384, 14.0),
    "rtx-a6000": (384, 16.0),
    "l20": (384, 18.0),
    "h20": (6144, 5.21),
    "gh200": (6144, 5.21),
    "mi250x": (4096, 3.2),
    "mi300x": (8192, 5.2),
    "mi355x": (8192, 8.0),
}

# libcu++ arch_traits.h: threads and blocks of an SM, shared memory of an SM in KB.
ARCH_TRAITS = {
    "sm_75": (1024, 16, 64),
    "sm_80": (2048, 32, 164),
    "sm_86": (1536, 16, 100),
    "sm_89": (1536, 24, 100),
    "sm_90": (2048, 32, 228),
    "sm_100": (2048, 32, 228),
    "sm_120": (1536, 24, 100),
}


def test_the_catalog_is_complete():
    """Every device that the project promises is in the catalog."""
    assert set(MEMORY_BUS) | {"textbook"} == set(names())


@pytest.mark.parametrize("name", names())
def test_name_is_the_file_name(name: str):
    """A device is called what its file is called."""
    assert load(name).name == name


@pytest.mark.parametrize("name", names())
def test_every_figure_has_a_source(name: str):
    """Every known figure states where it comes from."""
    figures = load(name).figures.flat()
    assert figures
    assert all(figure.source.strip() for figure in figures.values())


def test_shared_files_belong_to_a_device():
    """Every shared file serves an architecture or vendor of some device in the catalog."""
    folder = Path(catalog.__file__).with_name("catalog")
    shared = {path.stem.removeprefix("_") for path in folder.glob("_*.toml")}
    assert shared == {load(name).arch for name in GPUS} | {load(name).vendor for name in GPUS}


@pytest.mark.parametrize("name", GPUS)
def test_what_is_always_known(name: str):
    """Only measured figures, pipes that a GPU may lack, a power limit and what whitepapers of
    some architectures alone say of an SM are ever unknown."""
    unknown = set(FIELDS) - set(load(name).figures.flat())
    optional = {
        "dram_measured_gbs", "board_power_w", "synchronous_mma_share", "warp_schedulers_per_sm",
        "load_store_units_per_sm",
    }  # fmt: skip
    groups = ("peak_tflops.", "library_share.", "template_share.")
    assert {field for field in unknown if not field.startswith(groups)} <= optional


def test_shares_of_matrix_products():
    """A library reaches no more than the peak, and generated code about what the library does."""
    for name in GPUS:
        gpu = load(name)
        for core in ("gemm", "conv", "attention"):
            assert 0.3 < gpu.library_share(core) <= 1.0
            assert 0.5 < gpu.template_share(core) <= 1.05


def test_nvidia_gemm_shares_are_medians():
    """NVIDIA's defaults are the medians of the architectures whose shares have a source."""
    measured = ("a100-sxm-80", "h100-sxm", "l20", "b200", "rtx-5090")
    library = statistics.median(load(name).library_share("gemm") for name in measured)
    assert load("t4").library_share("gemm") == library
    template = statistics.median(
        load(n).template_share("gemm") for n in ("a100-sxm-80", "h100-sxm", "b200")
    )
    assert load("t4").template_share("gemm") == template


def test_an_unknown_class_is_as_a_gemm():
    """No source gives Triton's convolutions: they are taken to be as its GEMMs."""
    gpu = load("b200")
    assert gpu.figure("template_share.conv") is None
    assert gpu.template_share("conv") == gpu.template_share("gemm") == 0.77
    assert load("textbook").library_share("gemm") == load("textbook").template_share("gemm") == 1.0


@pytest.mark.parametrize("name", GPUS)
def test_fp32_peak_is_lanes_times_clock(name: str):
    """The fp32 peak is two FLOPs on every lane of every SM at the boost clock."""
    gpu = load(name)
    lanes = LANES[gpu.arch] * gpu.require("sm_count")
    derived = 2 * lanes * gpu.require("clock_mhz") * 1e-6
    assert gpu.require("peak_tflops.fma_fp32") == pytest.approx(derived, rel=0.01)


@pytest.mark.parametrize("name", GPUS)
def test_tensor_peak_is_a_power_of_two_a_clock(name: str):
    """Matrix units do a power of two of fp16 FLOPs a clock and SM, at no more than boost."""
    gpu = load(name)
    cycles = gpu.require("sm_count") * gpu.require("clock_mhz") * 1e6
    per_clock = gpu.peak_for("fp16", matrix=True) / cycles
    power = 2 ** round(math.log2(per_clock))
    assert 0.9 < per_clock / power < 1.01


@pytest.mark.parametrize("name", GPUS)
def test_bandwidth_is_bus_times_rate(name: str):
    """The datasheet bandwidth is the bus width times the rate of a pin."""
    bits, gbits_per_pin = MEMORY_BUS[name]
    assert load(name).dram_bandwidth_gbs == pytest.approx(bits / 8 * gbits_per_pin, rel=0.025)


def ratio(gpu: Device, pipe: str, base: str) -> float | None:
    """Return the ratio of two peaks, or None where the GPU lacks one of the pipes."""
    peak, other = gpu.peak_tflops(pipe), gpu.peak_tflops(base)
    return None if peak is None or other is None else peak / other


@pytest.mark.parametrize("name", GPUS)
def test_half_the_bits_twice_the_rate(name: str):
    """Matrix units double their rate from fp16 to fp8 and from tf32 to fp16; bf16 is as fp16."""
    gpu = load(name)
    assert ratio(gpu, "tensor_fp8", "tensor_fp16") in (None, pytest.approx(2, rel=0.02))
    assert ratio(gpu, "tensor_fp16", "tensor_tf32") in (None, pytest.approx(2, rel=0.02))
    assert ratio(gpu, "tensor_bf16", "tensor_fp16") in (None, 1)


@pytest.mark.parametrize("name", GPUS)
def test_fp4_rate(name: str):
    """fp4 doubles fp8, or quadruples it on the GeForce that halves fp8 with fp32 accumulation."""
    expected = 4 if name == "rtx-5090" else 2
    assert ratio(load(name), "tensor_fp4", "tensor_fp8") in (
        None,
        pytest.approx(expected, rel=1e-3),
    )


@pytest.mark.parametrize("name", GPUS)
def test_fp64_is_a_power_of_two_slower(name: str):
    """fp64 lanes run at a power of two of the fp32 rate: 1, 1/2, 1/32 or 1/64.

    The H20's fp64 is capped at 1 TFLOP/s.
    """
    if name == "h20":
        assert load(name).peak_tflops("fma_fp64") == 1.0
        return
    share = ratio(load(name), "fma_fp64", "fma_fp32")
    assert share in [pytest.approx(power, rel=0.02) for power in (1, 1 / 2, 1 / 32, 1 / 64)]


@pytest.mark.parametrize("name", GPUS)
def test_bf16_from_ampere_on(name: str):
    """Only Turing has matrix units without bf16."""
    assert (load(name).peak_tflops("tensor_bf16") is None) == (load(name).arch == "sm_75")


@pytest.mark.parametrize("name", GPUS)
def test_fp8_from_ada_on(name: str):
    """fp8 matrix units come with Ada, Hopper and CDNA 3."""
    without = {"sm_75", "sm_80", "sm_86", "gfx90a"}
    assert (load(name).peak_tflops("tensor_fp8") is None) == (load(name).arch in without)


@pytest.mark.parametrize("name", GPUS)
def test_memories_get_faster_inwards(name: str):
    """No stream beats the datasheet, and L2 beats DRAM."""
    gpu = load(name)
    assert gpu.require("stream_gbs") < gpu.require("dram_bandwidth_gbs")
    assert gpu.require("l2_bandwidth_gbs") > gpu.require("dram_bandwidth_gbs")


# Bytes a clock of the last cache, from the whitepapers: A100 5,120; CDNA 2 32 channels of 128;
# CDNA 3 and 4 128 channels of 64.
L2_WIDTH = {
    "a100-sxm-80": 5120,
    "mi250x": 32 * 128,
    "mi300x": 128 * 64,
    "mi355x": 128 * 64,
}


@pytest.mark.parametrize("name", L2_WIDTH)
def test_reads_reach_most_of_the_width_of_l2(name: str):
    """Measured reads take between two thirds and four fifths of what L2 is wide."""
    gpu = load(name)
    peak_gbs = L2_WIDTH[name] * gpu.require("clock_mhz") / 1e3
    assert 2 / 3 < gpu.require("l2_bandwidth_gbs") / peak_gbs < 4 / 5


def test_l2_of_b200_against_another_measurement():
    """B300, the same SMs and L2, was measured by others: 59 B a clock and SM."""
    gpu = load("b200")
    clocks = gpu.require("sm_count") * gpu.require("clock_mhz") / 1e3
    assert gpu.require("l2_bandwidth_gbs") / clocks == pytest.approx(59, rel=0.03)


# Devices whose L2 was not measured: the one that was, and what their read bandwidths differ by.
L2_LIKE = {
    "a100-pcie-40": ("a100-sxm-80", 1.0),
    "a100-pcie-80": ("a100-sxm-80", 1.0),
    "a10g": ("rtx-3090", 1710 / 1695),
    "rtx-3050-laptop": ("rtx-3090", 128 / 384 * 1740 / 1695),  # bits of the memory bus
    "rtx-8000": ("t4", 384 / 256 * 1770 / 1590),
    "rtx-5090": ("rtx-pro-6000", 170 / 188 * 2407 / 2617),
    "gb200": ("b200", 152 / 148 * 2062 / 1965),
    "mi355x": ("mi300x", 2400 / 2100),
}


@pytest.mark.parametrize("name", L2_LIKE)
def test_l2_of_a_relative(name: str):
    """An L2 that was not measured is its relative's, by clock and by SMs or memory controllers."""
    relative, ratio = L2_LIKE[name]
    derived = ratio * load(relative).require("l2_bandwidth_gbs")
    assert load(name).l2_bandwidth_gbs == pytest.approx(derived, rel=1e-3)


def test_loads_are_shared_on_hopper_and_datacentre_blackwell():
    """One load serves blocks of a cluster on sm_90 and sm_100 alone, and none without clusters."""
    shared = {load(name).arch for name in GPUS if load(name).require("multicast_blocks") > 1}
    assert shared == {"sm_90", "sm_100"}
    for gpu in map(load, GPUS):
        assert gpu.require("multicast_blocks") <= gpu.require("clusters")


@pytest.mark.parametrize("name", NVIDIA)
def test_limits_agree_with_libcu(name: str):
    """The limits of an SM are those of NVIDIA's own C++ library."""
    gpu = load(name)
    threads, blocks, shared_kb = ARCH_TRAITS[gpu.arch]
    assert (gpu.threads_per_sm, gpu.blocks_per_sm) == (threads, blocks)
    assert gpu.shared_memory_per_sm_bytes == shared_kb * 1024
    reserved = 0 if gpu.arch == "sm_75" else 1024
    assert gpu.shared_memory_reserved_per_block_bytes == reserved
    assert gpu.shared_memory_per_block_bytes == shared_kb * 1024 - reserved
    assert (gpu.registers_per_sm, gpu.registers_per_thread_max) == (65536, 255)


@pytest.mark.parametrize("name", GPUS)
def test_accumulators_take_three_quarters(name: str):
    """Accumulators may take three quarters of a register file of 4-byte registers."""
    gpu = load(name)
    assert gpu.accumulator_bytes_per_block == gpu.require("registers_per_sm") * 4 * 3 // 4


@pytest.mark.parametrize("name", GPUS)
def test_launches_get_cheaper(name: str):
    """A launch from Python costs most, a queued one less, one in a graph least."""
    gpu = load(name)
    assert gpu.launch_us("eager") > gpu.launch_us("queued") > gpu.launch_us("graph")


def efficiency_of(name: str) -> float:
    """Return the measured share of the datasheet bandwidth of a catalog device."""
    gpu = load(name)
    return gpu.require("dram_measured_gbs") / gpu.require("dram_bandwidth_gbs")


def test_nvidia_stream_efficiency_is_the_median():
    """NVIDIA's default efficiency is the median of the measured devices, catalogued or not."""
    listed = ["a100-sxm-40", "a100-sxm-80", "h100-pcie", "h100-sxm", "h200"]
    others = [804 / 900, 658 / 696, 816 / 864]  # V100, A40, L40
    median = statistics.median([*map(efficiency_of, listed), *others])
    assert load("b200").stream_efficiency == pytest.approx(median, abs=5e-5)


def test_amd_stream_efficiency_is_the_median():
    """AMD's default efficiency is the median of the measured devices, catalogued or not."""
    others = [1044 / 1228.8, 1399 / 1638.4, 461 / 512]  # MI100, MI210, RX 6900 XT
    median = statistics.median([efficiency_of("mi300x"), *others])
    assert load("mi355x").stream_efficiency == pytest.approx(median, abs=5e-5)


def test_nvidia_launch_defaults_are_the_medians():
    """NVIDIA's launch defaults, for architectures not measured, are medians of those measured."""
    measured = [load(name) for name in ("a100-sxm-80", "h200", "l40s", "a10g")]
    for mode in ("queued", "graph"):
        median = statistics.median(gpu.launch_us(mode) for gpu in measured)
        assert load("b200").launch_us(mode) == pytest.approx(median)
    hosts = [12.5, 27.7, 27.6, 11.2, 25.8, 24.0, 21.2, 27.3, 29.9]
    assert load("h200").launch_us("eager") == statistics.median(hosts)


def test_textbook():
    """The textbook GPU is 448 GB/s, 40 TFLOP/s, 5 µs and 255 registers; the rest is unknown."""
    textbook = load("textbook")
    assert textbook.stream_gbs == 448.0
    peaks = [field for field in FIELDS if field.startswith("peak_tflops.")]
    assert {textbook.require(field) for field in peaks} == {40.0}
    assert {textbook.launch_us(mode) for mode in ("eager", "queued", "graph")} == {5.0}
    assert textbook.registers_per_thread_max == 255
    given = {"dram_bandwidth_gbs", "stream_efficiency", "registers_per_thread_max"}
    plain = {field for field in textbook.figures.flat() if "." not in field}
    assert plain == given


def test_one_die_of_the_mi250x():
    """The MI250X of the catalog is one die: half of 220 units, 128 GB and 3,276.8 GB/s."""
    die = load("mi250x")
    assert (die.sm_count, die.dram_bytes) == (220 // 2, 128 * 10**9 // 2)
    assert die.dram_bandwidth_gbs == 3276.8 / 2


@pytest.mark.parametrize(("name", "stream_gbs"), [("h100-sxm", 3010), ("h200", 3165)])
def test_measured_streams(name: str, stream_gbs: float):
    """Where a copy was measured, it is what DRAM bytes are priced at."""
    assert load(name).stream_gbs == stream_gbs
