"""The library clock: what L2 keeps, what a fit recovers, what a prediction carries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from fuseledger.clock.library import ClassError, Fit, error_of, library_time, load_fit
from fuseledger.clock.library_features import (
    Setting,
    host_parts,
    kernel_terms,
    over,
    saturating_blocks,
)
from fuseledger.clock.library_fit import PRIORS, Row, design_of, deviations, fit, predict, prior_of
from fuseledger.clock.library_kernel import LibraryKernel, Stream
from fuseledger.clock.residency import dram_and_l2_bytes, resident_shares
from fuseledger.devices import load
from fuseledger.errors import InputError

MB = 1_000_000


def _pass(source: str, target: str, size: int, op: str = "") -> LibraryKernel:
    return LibraryKernel(
        name="elementwise", op=op or target, kind="pointwise", reads=(Stream(source, size),),
        writes=(Stream(target, size),), flops=size / 4,
    )  # fmt: skip


def _setting(**given: object) -> Setting:
    return Setting(**{"device": load("h100-sxm"), "warm_l2": False, "hidden_host_us": 1e6, **given})  # type: ignore[arg-type]


def test_a_just_written_tensor_is_read_from_l2() -> None:
    """The second pass over a tensor of a tenth of L2 reads nothing from DRAM."""
    chain = [_pass("x", "y", 5 * MB), _pass("y", "z", 5 * MB)]
    first, second = dram_and_l2_bytes(chain, 50 * MB, warm=False)
    assert first == (10 * MB, 0)
    assert second == (5 * MB, 5 * MB)


def test_a_long_row_is_split_over_blocks_by_a_reduction_alone() -> None:
    """One row of 2²⁰ elements leaves no SM idle in a sum, which gives 128 blocks a share of it; in
    moments one block walks it."""
    device = load("h100-sxm")
    shape = {"rows": 1.0, "length": 2.0**20, "inner": 1.0, "index": 0.0}
    for kind, blocks in (("reduce", 128.0), ("moments", 1.0)):
        kernel = replace(_pass("x", "y", 4 * MB), kind=kind, shape=shape)
        (stream,) = [
            t for t in kernel_terms(kernel, (8.0 * MB, 0.0), _setting()) if t.role == "stream"
        ]
        assert stream.features[f"{kind}.fill"] == pytest.approx(
            math.log(saturating_blocks(device) / blocks)
        )


def test_a_tensor_larger_than_l2_goes_to_dram_each_time() -> None:
    """Two passes over 200 MB move all 800 MB through DRAM with an L2 of 50 MB."""
    chain = [_pass("x", "y", 200 * MB), _pass("y", "z", 200 * MB)]
    assert sum(dram for dram, _ in dram_and_l2_bytes(chain, 50 * MB, warm=True)) == 800 * MB


def test_the_resident_share_falls_from_half_to_a_little_above_capacity() -> None:
    """All of it below half of L2, none beyond 1.1 of it, half midway."""
    shares = [resident_shares(f * 100, 100) for f in (0.5, 0.8, 1.1)]
    assert shares == pytest.approx([1.0, 0.5, 0.0])


def test_the_gradient_is_that_of_the_prediction() -> None:
    """Each analytic derivative of log time agrees with a central difference."""
    gemm = LibraryKernel(
        name="gemm", op="mm", kind="gemm", reads=(Stream("a", MB),), writes=(Stream("c", MB),),
        flops=1e9, pipe="fp32",
        shape={"m": 300, "n": 200, "k": 100, "batch": 1, "transposed": 0},
    )  # fmt: skip
    rows = [Row(_setting(hidden_host_us=0.0), [gemm, _pass("c", "d", MB)])]
    design = design_of(rows)
    theta = np.array([prior_of(name, PRIORS).mean + 0.1 for name in design.names])
    gradient = predict(design, theta, gradient=True).gradient
    assert gradient is not None
    for i in range(len(theta)):
        step = np.zeros(len(theta))
        step[i] = 1e-5
        up, down = (np.log(predict(design, theta + s).total_us[0]) for s in (step, -step))
        assert gradient[0, i] == pytest.approx((up - down) / 2e-5, abs=1e-6)


def test_a_fit_finds_the_efficiency_that_made_the_times() -> None:
    """Passes timed at 1.5 times the prior's time are predicted again within 2 %."""
    rows = [
        Row(_setting(), [_pass(f"x{i}", f"y{i}", size * MB)])
        for i, size in enumerate((300, 500, 900, 1500, 2500))
    ]
    design = design_of(rows)
    prior = np.array([prior_of(name, PRIORS).mean for name in design.names])
    measured = 1.5 * predict(design, prior).total_us
    theta = fit(design, measured, PRIORS)
    assert predict(design, theta).total_us == pytest.approx(measured, rel=0.02)


def test_a_slow_host_hides_the_gpu() -> None:
    """Ten passes over 4 kB take what the host takes to launch them."""
    tiny = [_pass(f"t{i}", f"t{i + 1}", 4096) for i in range(10)]
    made = library_time(tiny, _setting(hidden_host_us=0.0, host_floor_us=60.0, warm_l2=True))
    assert made.bound == "host"
    assert made.total_us == pytest.approx(made.host_us, rel=0.1)


def test_a_prediction_carries_the_error_of_its_class() -> None:
    """The bar's ends are the time divided and multiplied by the class's 90 % error."""
    fitted = Fit(
        fitted_on="nothing", problems=(), coefficients={},
        errors={"pass:eager": ClassError(9, 0.1, math.log(2))},
    )  # fmt: skip
    made = library_time([_pass("x", "y", 100 * MB)], _setting(), fitted)
    assert made.low_us == pytest.approx(made.total_us / 2)
    assert made.high_us == pytest.approx(made.total_us * 2)


def test_an_unmeasured_class_takes_the_error_of_all() -> None:
    """`error_of` falls back from class and mode to the mode, then to all."""
    errors = {"all": ClassError(5, 0.2, 0.6), "all:eager": ClassError(3, 0.1, 0.4)}
    assert error_of(errors, "scan", "eager").p90 == 0.4
    assert error_of(errors, "scan", "compile-default").p90 == 0.6


def test_the_shipped_fit_says_what_it_was_fitted_on() -> None:
    """It names its devices and problems, and every class's error has rows behind it."""
    shipped = load_fit()
    assert "h100-sxm" in shipped.fitted_on
    assert len(shipped.problems) == 125
    assert all(error.n >= 5 for error in shipped.errors.values())


def test_a_large_copy_takes_the_stream_time() -> None:
    """With the shipped fit 8 GB of pointwise traffic on an H100 SXM runs at 2.3 to 3.35 TB/s."""
    made = library_time([_pass("x", "y", 4000 * MB)], _setting())
    assert 8e9 / 3.35e6 < made.total_us < 8e9 / 2.3e6


def test_a_missing_fit_is_one_clear_line() -> None:
    """The message names the file."""
    with pytest.raises(InputError, match=r"nowhere\.json: cannot be read"):
        load_fit("nowhere.json")


def test_over_is_zero_from_the_top_up() -> None:
    """`over(top, value)` is log(top/value) below the top, else nothing."""
    assert over(8, 2) == pytest.approx(math.log(4))
    assert over(8, 8) == over(8, 99) == 0


def test_a_slower_memory_needs_fewer_blocks() -> None:
    """Bandwidth over 8 B per clock and block: 211 on an H100 SXM, which moves 3,350 GB/s at 1.98
    GHz, 43 on an L40S, 864 GB/s at 2.52 GHz."""
    assert saturating_blocks(load("h100-sxm")) == pytest.approx(211.5, rel=0.01)
    assert saturating_blocks(load("l40s")) == pytest.approx(42.9, rel=0.01)


def test_a_board_short_of_power_is_slow_at_fp32_products() -> None:
    """The feature is log(10 W / board power per TFLOP/s): 0.96 on an L40S, nothing on an A100."""
    gemm = LibraryKernel(
        name="gemm", op="mm", kind="gemm", reads=(), writes=(), flops=1e12, pipe="fp32",
        shape={"m": 4096, "n": 4096, "k": 4096, "batch": 1, "transposed": 0},
    )  # fmt: skip

    def short(device: str) -> float:
        terms = kernel_terms(gemm, (0.0, 0.0), _setting(device=load(device)))
        (compute,) = [term for term in terms if term.role == "compute"]
        return compute.features.get("gemm.power", 0.0)

    assert short("l40s") == pytest.approx(math.log(10 / (350 / 91.6)), rel=0.01)
    assert short("a100-sxm-80") == 0.0


def test_a_row_major_convolution_turns_its_operands() -> None:
    """A layout term of input and output read and written; none where they lie channels last."""
    shape = {
        "batch": 1.0, "channels_in": 64.0, "channels_out": 64.0, "groups": 1.0, "rank": 2.0,
        "window": 9.0, "spatial": 4096.0, "stride": 1.0, "dilation": 1.0, "transposed": 0.0,
        "depthwise": 0.0, "x_bytes": 300e6, "y_bytes": 200e6, "even": 1.0,
    }  # fmt: skip

    def roles(**given: float) -> dict[str, float]:
        conv = LibraryKernel(
            name="conv", op="conv", kind="conv", reads=(), writes=(), flops=1e9, pipe="tf32",
            shape={**shape, **given},
        )  # fmt: skip
        return {t.role: t.base_us for t in kernel_terms(conv, (0.0, 0.0), _setting())}

    assert roles()["layout"] == pytest.approx(2 * 500e6 / (0.89 * 3350e3), rel=0.01)
    assert "layout" not in roles(channels_last=1.0)


def test_an_eager_call_costs_the_floor_of_its_host() -> None:
    """The constant of an eager call has no coefficient: only its launches have."""
    (_, constant), *launches = host_parts([_pass("x", "y", MB)], _setting(host="somewhere"))
    assert constant == {}
    assert all("host.launch:eager" in features for _, features in launches)


def test_a_compiled_call_pays_for_each_argument() -> None:
    """Nine tensors handed over are nine units; eager mode checks none."""
    compiled = host_parts([_pass("x", "y", MB)], _setting(mode="compile-default", arguments=9))
    assert [n for n, f in compiled if "host.argument:compiled" in f] == [9.0]
    eager = host_parts([_pass("x", "y", MB)], _setting(arguments=9))
    assert not any("argument" in name for _, features in eager for name in features)


def test_the_same_operator_again_is_cheaper_for_the_host() -> None:
    """Of three additions in an eager sequence the first pays the whole call, two the warm one; a
    compiled sequence makes no such difference."""
    chain = [_pass("x", f"y{i}", MB, f"aten.add (n{i})") for i in range(3)]
    _, cold, warm = host_parts(chain, _setting())
    assert (cold[0], warm[0]) == (1.0, 2.0)
    assert set(warm[1]) - set(cold[1]) == {"host.again:eager"}
    assert len(host_parts(chain, _setting(mode="compile-default"))) == 2


def test_steps_of_a_recurrent_layer_have_a_launch_of_their_own() -> None:
    """Of 41 launches the first is a call, 40 are steps, on the host as on the GPU."""
    kernel = replace(_pass("x", "y", MB), kind="rnn", launches=41)
    _, call, steps = host_parts([kernel], _setting())
    assert (call[0], steps[0]) == (1.0, 40.0)
    assert "host.step:eager" in steps[1]
    launch = kernel_terms(kernel, (1.0, 0.0), _setting())[0]
    assert launch.base_us == pytest.approx(41 * load("h100-sxm").launch_us("queued"))
    assert launch.features["rnn.step"] == 1.0


def _pool() -> LibraryKernel:
    return replace(
        _pass("x", "y", 4 * MB), kind="pool", flops=27.0 * MB,
        shape={"window": 27.0, "results": 1.0 * MB, "index": 1.0},
    )  # fmt: skip


def _compute_us(kernel: LibraryKernel, device: str) -> float:
    terms = kernel_terms(kernel, (1.0, 0.0), _setting(device=load(device)))
    (compute,) = [term for term in terms if term.role == "compute"]
    return compute.base_us


def test_a_pooled_result_takes_its_window_and_a_set_up() -> None:
    """27 elements and a set-up of eight, 40 lane instructions each, of which each of 132 SMs issues
    four warps' worth a clock of 1,980 MHz."""
    issued_per_us = 132 * 4 * 32 * 1980
    assert _compute_us(_pool(), "h100-sxm") == pytest.approx(35 * MB * 40 / issued_per_us)


def test_half_the_lanes_issue_as_many_instructions() -> None:
    """An A100, with 64 FP32 lanes an SM in place of 128, pools as fast an SM and clock."""
    ratio = _compute_us(_pool(), "a100-sxm-80") / _compute_us(_pool(), "h100-sxm")
    assert ratio == pytest.approx(132 * 1980 / (108 * 1410))


def test_a_convolution_on_hopper_computes_at_the_rate_of_synchronous_products() -> None:
    """0.629 of 494.7 TFLOP/s on an H100, all of 156 on an A100."""
    shape = {
        "batch": 1.0, "channels_in": 64.0, "channels_out": 64.0, "groups": 1.0, "rank": 2.0,
        "window": 9.0, "spatial": 4096.0, "stride": 1.0, "dilation": 1.0, "transposed": 0.0,
        "depthwise": 0.0, "x_bytes": 4.0 * MB, "y_bytes": 4.0 * MB, "even": 1.0, "unrolled": 1.0,
    }  # fmt: skip
    kernel = replace(_pass("x", "y", MB), kind="conv", pipe="tf32", flops=1e12, shape=shape)
    assert _compute_us(kernel, "h100-sxm") == pytest.approx(1e6 / (0.629 * 494.7))
    assert _compute_us(kernel, "a100-sxm-80") == pytest.approx(1e6 / 156)


def test_lanes_that_share_a_load_unit_wait_for_it() -> None:
    """Two lanes a load/store unit on an A100, four on an H100, eight on an L40S: a half, one and
    two times Hopper's."""
    shape = {"m": 4096.0, "n": 4096.0, "k": 4096.0, "batch": 1.0, "transposed": 0.0}
    kernel = replace(_pass("x", "y", MB), kind="gemm", pipe="fp32", flops=1e12, shape=shape)
    for device, factor in (("a100-sxm-80", 0.5), ("h100-sxm", 1.0), ("l40s", 2.0)):
        terms = kernel_terms(kernel, (1.0, 0.0), _setting(device=load(device)))
        (compute,) = [term for term in terms if term.role == "compute"]
        found = compute.features.get("gemm.loads", 0.0)
        assert found == pytest.approx(math.log(factor), abs=0.01)


def test_what_rows_say_of_a_coefficient_narrows_it() -> None:
    """A term that a hundred rows measure is known better than its prior; one that no row has is as
    open as before."""
    rows = [Row(_setting(), [_pass("x", "y", 100 * MB)]) for _ in range(100)]
    design = design_of(rows, ["pointwise.stream", "softmax.fill"])
    times = np.full(100, 80.0)
    theta = fit(design, times, PRIORS)
    known, unknown = deviations(design, times, theta, PRIORS)
    assert known < 0.1 * prior_of("pointwise.stream", PRIORS).deviation
    assert unknown == pytest.approx(prior_of("softmax.fill", PRIORS).deviation)


def test_a_wait_costs_calls_of_its_own_host() -> None:
    """The same kernels on hosts of 10 and 30 µs a call wait for three of them each."""
    waits = [replace(_pass("x", "y", MB), shape={"syncs": 1.0})]
    rows = [Row(_setting(host_floor_us=floor), waits) for floor in (10.0, 30.0)]
    design = design_of(rows)
    idle = design.base[design.features.row[design.features.column == design.names.index("sync")]]
    assert idle.tolist() == [3 * 10.0, 3 * 30.0]


def test_a_call_that_launches_nothing_is_the_host_alone() -> None:
    """A model of views has no kernel: its time is the host's, and the fit's gradient is finite."""
    design = design_of([Row(_setting(hidden_host_us=0.0), [])])
    made = predict(design, np.zeros(len(design.names)), gradient=True)
    assert made.total_us == made.host_us
    assert np.isfinite(made.gradient).all()
