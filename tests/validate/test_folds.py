"""Predictions out of fold: what is held out reaches no prediction of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from fuseledger.clock.library_features import Setting
from fuseledger.clock.library_kernel import LibraryKernel, Stream
from fuseledger.devices import load
from fuseledger.validate.corpus import Measured
from fuseledger.validate.folds import LeftOut, by_class, by_device, by_problem, fold_of, weights_of
from fuseledger.validate.score import bars_of_other_parts, pairs

DEVICES = ("h100-sxm", "a100-sxm-80", "l40s")


def measured(problem: int, device: str, mode: str = "eager", **given: object) -> Measured:
    """A pass over as many MB as the problem says, at 0.7 of the bandwidth and two hosts' cost."""
    size = 40_000_000 * (problem + 1)
    kernel = LibraryKernel(
        name="pass", op="aten.relu (n)", kind="pointwise", reads=(Stream("x", size),),
        writes=(Stream("y", size),),
    )  # fmt: skip
    gpu = load(device)
    made = Measured(
        corpus="made", problem=str(problem), name=str(problem), run=f"{problem} {device}",
        setting=Setting(device=gpu, host=f"host of {device}", software="2.5", mode=mode),
        class_="pass" if problem % 2 else "other", kernels=[kernel], fused=mode != "eager",
        time_us=20.0 + 2 * size / (0.7 * gpu.require("dram_bandwidth_gbs") * 1e3),
    )  # fmt: skip
    return replace(made, **given)


ROWS = [
    measured(problem, device, mode)
    for problem in range(8)
    for device in DEVICES
    for mode in ("eager", "compile-default")
]

Held = Callable[[Measured], str]
WAYS: dict[str, tuple[Callable[[Sequence[Measured]], LeftOut], Held]] = {
    "problem": (by_problem, lambda m: str(fold_of(m.problem))),
    "device": (by_device, lambda m: m.setting.device.name),
    "class": (by_class, lambda m: m.class_),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_prediction_has_not_seen_its_own_time(way: str) -> None:
    """All times of a part made four times as long: its own predictions stay to the last bit, in
    every kernel and in the host's share, and those of other parts move."""
    left_out, part_of = WAYS[way]
    part = part_of(ROWS[0])
    slow = [replace(m, time_us=4 * m.time_us) if part_of(m) == part else m for m in ROWS]
    before, after = left_out(ROWS), left_out(slow)
    own = np.array([part_of(m) == part for m in ROWS])
    assert own.any()
    assert (before.times_us[own] == after.times_us[own]).all()
    assert (before.times_us[~own] != after.times_us[~own]).all()
    held = [i for i, m in enumerate(ROWS) if part_of(m) == part]
    assert [before.accounts(i) for i in held] == [after.accounts(i) for i in held]


def test_a_problem_is_left_out_in_every_mode_and_on_every_device() -> None:
    """One row four times as long moves no prediction of its problem, whoever ran it and how."""
    slow = [replace(ROWS[0], time_us=4 * ROWS[0].time_us), *ROWS[1:]]
    same = by_problem(ROWS).times_us == by_problem(slow).times_us
    assert all(same[i] for i, m in enumerate(ROWS) if m.problem == ROWS[0].problem)


def test_an_error_bar_has_not_seen_the_time_that_it_is_held_against() -> None:
    """Errors of a fold made large leave its own bars as they are, and widen those of the others."""
    parts = [fold_of(m.problem) for m in ROWS]
    times = np.array([m.time_us for m in ROWS])
    wrong = np.where(np.array(parts) == parts[0], 3 * times, 1.01 * times)
    for part, bar in zip(parts, bars_of_other_parts(ROWS, wrong, parts), strict=True):
        assert bar is not None
        assert (bar[1] > 0.5) == (part != parts[0])


def test_modes_that_run_the_same_kernels_weigh_as_one_row() -> None:
    """Two modes of one run share a list of kernels; another run has its own."""
    first = measured(0, "l40s")
    second = replace(first, setting=replace(first.setting, mode="compile-default"))
    assert weights_of([first, second, measured(1, "l40s")]).tolist() == [0.5, 0.5, 1.0]


def test_a_gain_is_of_one_run() -> None:
    """A compiled time is paired with the eager one of its own run; without one it has no gain."""
    rows = [ROWS[1], ROWS[0], ROWS[3], measured(9, "l40s", "compile-default")]
    assert [(m.problem, m.setting.device.name) for m in rows[:2]] == [("0", "h100-sxm")] * 2
    assert pairs(rows) == {0: 1}


def test_another_draw_deals_the_problems_anew() -> None:
    """Each of a thousand problems lies in one of ten folds, a tenth of them where it lay before."""
    first, second = (
        [fold_of(str(problem), 10, draw) for problem in range(1000)] for draw in ("", "1")
    )
    assert set(first) == set(second) == set(range(10))
    assert 50 < sum(a == b for a, b in zip(first, second, strict=True)) < 150
