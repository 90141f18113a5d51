"""What a Device says of itself, on devices small enough to check by hand."""

import msgspec
import pytest

from fuseledger.devices import Count, Device, Figure, Figures, load
from fuseledger.devices.figure import FIELDS, Fraction, Peaks
from fuseledger.errors import DeviceError


def figure(value: float) -> Figure:
    """Return a figure whose source is this test."""
    return Figure(value=value, source="this test")


def device(**figures: object) -> Device:
    """Return a device with these figures and no other."""
    table = Figures(**figures)
    return Device(name="toy", title="Toy", vendor="nvidia", arch="sm_90", figures=table)


def with_peaks(**tflops: float) -> Device:
    """Return a device with these pipes and no other."""
    return device(peak_tflops=Peaks(**{pipe: figure(value) for pipe, value in tflops.items()}))


def test_a_property_for_every_figure():
    """Every figure of the schema is a property of Device, or a method where it has parts."""
    for field in FIELDS:
        assert hasattr(Device, field.partition(".")[0])


def test_unknown_is_none():
    """A device without figures knows none of them, and none is zero."""
    toy = device()
    plain = [field for field in FIELDS if "." not in field]
    assert [getattr(toy, field) for field in plain] == [None] * len(plain)
    assert toy.stream_gbs is None
    assert toy.special_ops_per_s is None
    assert toy.peak_tflops("fma_fp32") is None


def test_counts_stay_whole():
    """A count is an int and a rate a float, also through `require`."""
    toy = device(sm_count=Count(value=132, source="this test"), clock_mhz=figure(1980.0))
    assert (toy.sm_count, type(toy.require("sm_count"))) == (132, int)
    assert (toy.clock_mhz, type(toy.require("clock_mhz"))) == (1980.0, float)


def test_require_names_device_and_field():
    """A required figure that is unknown is an error naming the device and the field."""
    with pytest.raises(DeviceError, match=r"^device toy has no figure for l2_bytes: add"):
        device().require("l2_bytes")


def test_require_derived():
    """`require` also serves the derived figures, and names them when their inputs are unknown."""
    toy = device(dram_measured_gbs=figure(3010.0))
    assert toy.require("stream_gbs") == 3010.0
    with pytest.raises(DeviceError, match="special_ops_per_s"):
        toy.require("special_ops_per_s")


def test_require_rejects_a_field_that_does_not_exist():
    """A name that no device has is told apart from a figure that this device lacks."""
    with pytest.raises(DeviceError, match="no device has a figure named 'sm_cuont'"):
        device().require("sm_cuont")
    with pytest.raises(DeviceError, match="no device has a figure named 'launch_us'"):
        device().require("launch_us")


def test_figure_keeps_its_source():
    """`figure` gives the value with its source, by the dotted name that a file would use."""
    toy = with_peaks(fma_fp32=66.9)
    assert toy.figure("peak_tflops.fma_fp32") == Figure(value=66.9, source="this test")
    assert toy.figure("peak_tflops.fma_fp64") is None


def test_special_functions():
    """16 units on each of 132 SMs at 1980 MHz start 16 × 132 × 1.98e9 functions a second."""
    toy = device(
        sm_count=Count(value=132, source="this test"),
        clock_mhz=figure(1980.0),
        sfu_ops_per_clock_per_sm=figure(16.0),
    )
    assert toy.special_ops_per_s == pytest.approx(4.18176e12)


def test_stream_is_what_was_measured():
    """A measured stream is used as it is; without one the datasheet is scaled."""
    efficiency = Fraction(value=0.9, source="this test")
    scaled = device(dram_bandwidth_gbs=figure(1000.0), stream_efficiency=efficiency)
    assert scaled.stream_gbs == pytest.approx(900.0)
    known = msgspec.structs.replace(scaled.figures, dram_measured_gbs=figure(850.0))
    assert msgspec.structs.replace(scaled, figures=known).stream_gbs == 850.0


def test_stream_is_not_guessed():
    """A datasheet figure without an efficiency gives no stream bandwidth."""
    assert device(dram_bandwidth_gbs=figure(1000.0)).stream_gbs is None


ALL_PIPES = {
    "tensor_fp4": 90.0,
    "tensor_fp8": 80.0,
    "tensor_int8": 81.0,
    "tensor_fp16": 40.0,
    "tensor_bf16": 41.0,
    "tensor_tf32": 20.0,
    "tensor_fp64": 4.0,
    "fma_fp16": 10.0,
    "fma_fp32": 5.0,
    "fma_fp64": 2.0,
}


@pytest.mark.parametrize(
    ("dtype", "tflops"),
    [
        ("fp64", 4.0),
        ("fp32", 5.0),
        ("fp16", 40.0),
        ("bf16", 41.0),
        ("fp8", 80.0),
        ("fp8_e4m3", 80.0),
        ("fp8_e5m2", 80.0),
        ("fp4", 90.0),
        ("int8", 81.0),
        ("uint8", 81.0),
        ("int16", 5.0),
        ("int32", 5.0),
        ("int64", 5.0),
        ("bool", 5.0),
    ],
)
def test_matrix_peak(dtype: str, tflops: float):
    """A matrix product of each dtype runs on its own units, in FLOP/s."""
    assert with_peaks(**ALL_PIPES).peak_for(dtype, matrix=True) == tflops * 1e12


def test_tf32_only_on_request():
    """An fp32 product uses TF32 only when told to, and TF32 changes no other dtype."""
    toy = with_peaks(**ALL_PIPES)
    assert toy.peak_for("fp32", matrix=True, tf32=True) == 20e12
    assert toy.peak_for("fp32", matrix=True) == 5e12
    assert toy.peak_for("fp32", matrix=False, tf32=True) == 5e12
    assert toy.peak_for("fp16", matrix=True, tf32=True) == 40e12


def test_full_precision_matrix_units():
    """Matrix units of full fp32 (AMD) are preferred to the lanes, for products only."""
    toy = with_peaks(tensor_fp32=47.85, fma_fp32=23.95)
    assert toy.peak_for("fp32", matrix=True) == 47.85e12
    assert toy.peak_for("fp32", matrix=True, tf32=True) == 47.85e12
    assert toy.peak_for("fp32", matrix=False) == 23.95e12


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "fp8", "fp4", "int8", "int64", "bool"])
def test_pointwise_work_runs_on_the_fp32_lanes(dtype: str):
    """Outside matrix products every dtype but fp64 is priced on the fp32 lanes."""
    assert with_peaks(**ALL_PIPES).peak_for(dtype, matrix=False) == 5e12


def test_pointwise_fp64():
    """Outside matrix products fp64 runs on the fp64 lanes."""
    assert with_peaks(**ALL_PIPES).peak_for("fp64", matrix=False) == 2e12


@pytest.mark.parametrize(
    ("dtype", "missing", "tflops"),
    [
        ("fp4", ["tensor_fp4"], 80.0),
        ("fp4", ["tensor_fp4", "tensor_fp8"], 40.0),
        ("fp8", ["tensor_fp8"], 40.0),
        ("fp16", ["tensor_fp16"], 10.0),
        ("fp16", ["tensor_fp16", "fma_fp16"], 5.0),
        ("bf16", ["tensor_bf16"], 5.0),
        ("int8", ["tensor_int8"], 40.0),
        ("fp64", ["tensor_fp64"], 2.0),
    ],
)
def test_matrix_peak_falls_back(dtype: str, missing: list[str], tflops: float):
    """Without its own units a product runs on the next slower pipe that can compute it."""
    toy = with_peaks(**{pipe: rate for pipe, rate in ALL_PIPES.items() if pipe not in missing})
    assert toy.peak_for(dtype, matrix=True) == tflops * 1e12


def test_fp64_is_never_invented():
    """Without fp64 pipes an fp64 peak is an error naming the fields that would give it."""
    with pytest.raises(DeviceError, match=r"toy states no peak for fp64: .*tensor_fp64.*fma_fp64"):
        with_peaks(fma_fp32=5.0).peak_for("fp64", matrix=True)


def test_unknown_words():
    """An unknown dtype, pipe or launch mode is an error that lists the known ones."""
    toy = load("textbook")
    with pytest.raises(DeviceError, match=r"unknown dtype 'float16': one of fp64, fp32"):
        toy.peak_for("float16", matrix=True)
    with pytest.raises(DeviceError, match=r"unknown pipe 'tensor': one of tensor_fp4"):
        toy.peak_tflops("tensor")
    with pytest.raises(DeviceError, match=r"unknown launch mode 'lazy': one of eager, queued"):
        toy.launch_us("lazy")


def test_devices_are_values():
    """Two loads of one device are equal and hash alike, so a device can key a cache."""
    assert load("h100-sxm") == load("h100-sxm")
    assert len({load("h100-sxm"), load("h100-sxm"), load("h200")}) == 2
