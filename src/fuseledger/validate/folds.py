"""Predictions that never saw what they are held against: k-fold by problem, or device by device."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from fuseledger.clock.library_fit import (
    PRIORS,
    Design,
    Predicted,
    Prior,
    Row,
    design_of,
    fit,
    predict,
)
from fuseledger.clock.library_kernel import LibraryKernel
from fuseledger.devices import Device
from fuseledger.validate.corpus import Measured

Array = Any
FOLDS = 10


def rows_of(measured: Sequence[Measured]) -> list[Row]:
    """What the clock fits."""
    return [Row(m.setting, m.kernels) for m in measured]


def fold_of(problem: str, folds: int = FOLDS, draw: str = "") -> int:
    """The fold of a problem: the same in every run and on every machine.

    Another `draw` deals the problems anew.
    """
    dealt = f"{draw} {problem}" if draw else problem
    return int(hashlib.sha256(dealt.encode()).hexdigest(), 16) % folds


class LeftOut(Struct, frozen=True):
    """Predictions of every row from coefficients that were fitted without it."""

    times_us: Array
    design: Design
    made: Mapping[str, Predicted]
    """Part that was left out → what the fit without it says of all rows."""
    parts: Sequence[str]
    """Of each row."""

    def accounts(self, row: int) -> list[float]:
        """µs of each kernel of a row, and of the host at the end."""
        made = self.made[self.parts[row]]
        kernels = made.kernel_us[self.design.row_of_kernel == row]
        return [*kernels.tolist(), float(made.host_us[row])]


def by_problem(
    measured: Sequence[Measured], priors: Mapping[str, Prior] = PRIORS, draw: str = ""
) -> LeftOut:
    """Out of fold: all rows of a problem, on every device, are left out together."""
    return _left_out(measured, [str(fold_of(m.problem, draw=draw)) for m in measured], priors)


def by_device(measured: Sequence[Measured], priors: Mapping[str, Prior] = PRIORS) -> LeftOut:
    """Each device from a fit on the others."""
    return _left_out(measured, [m.setting.device.name for m in measured], priors)


def by_class(measured: Sequence[Measured], priors: Mapping[str, Prior] = PRIORS) -> LeftOut:
    """Each class (a family of decisions) from a fit on the others."""
    return _left_out(measured, [m.class_ for m in measured], priors)


def _left_out(
    measured: Sequence[Measured], parts: Sequence[str], priors: Mapping[str, Prior]
) -> LeftOut:
    design = design_of(rows_of(measured))
    times = np.array([m.time_us for m in measured])
    labels = np.array(parts)
    importance = weights_of(measured)
    predicted = np.zeros(len(measured))
    made: dict[str, Predicted] = {}
    for part in sorted(set(parts)):
        out = labels == part
        theta = fit(design, times, priors, weights=importance * ~out)
        made[part] = predict(design, theta)
        predicted[out] = made[part].total_us[out]
    return LeftOut(predicted, design, made, parts)


def weights_of(measured: Sequence[Measured]) -> Array:
    """One for all modes together that ran the same kernels of a problem in one setting."""
    runs = Counter((m.run, id(m.kernels)) for m in measured)
    return np.array([1.0 / runs[m.run, id(m.kernels)] for m in measured])


def naive_us(kernels: Sequence[LibraryKernel], device: Device) -> float:
    """The naive roofline: the greater of bytes over datasheet bandwidth and FLOPs over peak."""
    bandwidth = device.dram_bandwidth_gbs or device.require("stream_gbs")
    matrix = {
        "tf32": ("fp32", True), "half": ("fp16", False), "fp8": ("fp8_e4m3", False),
        "fp32": ("fp32", False),
    }  # fmt: skip
    total = 0.0
    for kernel in kernels:
        if kernel.pipe == "lanes":
            peak = device.peak_for("fp32", matrix=False)
        else:
            dtype, tf32 = matrix[kernel.pipe]
            peak = device.peak_for(dtype, matrix=True, tf32=tf32)
        total += max(kernel.bytes / bandwidth / 1e3, kernel.flops / peak * 1e6)
    return max(total, 1e-3)
