"""Predictions that never saw what they are held against: k-fold by problem, or device by device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fuseledger.clock.library_fit import PRIORS, Design, Prior, Row, design_of, fit, predict
from fuseledger.clock.library_kernel import LibraryKernel
from fuseledger.devices import Device
from fuseledger.validate.corpus import Measured

Array = Any
FOLDS = 10


def rows_of(measured: Sequence[Measured]) -> list[Row]:
    """What the clock fits."""
    return [Row(m.problem, m.setting, m.kernels, m.time_us) for m in measured]


def fold_of(problem: str, folds: int = FOLDS) -> int:
    """The fold of a problem: the same in every run and on every machine."""
    return int(hashlib.sha256(problem.encode()).hexdigest(), 16) % folds


def by_problem(measured: Sequence[Measured], priors: Mapping[str, Prior] = PRIORS) -> Array:
    """Out-of-fold times in µs: all rows of a problem, on every device, are left out together."""
    return _left_out(measured, lambda m: str(fold_of(m.problem)), priors)


def by_device(measured: Sequence[Measured], priors: Mapping[str, Prior] = PRIORS) -> Array:
    """Times in µs of each device from a fit on the others."""
    return _left_out(measured, lambda m: m.setting.device.name, priors)


def _left_out(
    measured: Sequence[Measured], part: Callable[[Measured], str], priors: Mapping[str, Prior]
) -> Array:
    rows = rows_of(measured)
    predicted = np.array([m.priced_us or 0.0 for m in measured])
    if all(m.priced_us is not None for m in measured):
        return predicted
    names = design_of(rows).names
    parts = np.array([part(m) for m in measured])
    for value in sorted(set(parts.tolist())):
        out = parts == value
        theta = fitted([rows[int(i)] for i in np.flatnonzero(~out)], names, priors)[1]
        held = design_of([rows[int(i)] for i in np.flatnonzero(out)], names)
        predicted[out] = predict(held, theta).total_us
    return predicted


def fitted(
    rows: Sequence[Row], names: Sequence[str] | None = None, priors: Mapping[str, Prior] = PRIORS
) -> tuple[Design, Array]:
    """The design of rows and the coefficients fitted on them; the priors where there are none."""
    from fuseledger.clock.library_fit import prior_of

    design = design_of(rows, names)
    if not rows:
        return design, np.array([prior_of(name, priors).mean for name in design.names])
    return design, fit(design, np.array([row.measured_us for row in rows]), priors)


def naive_us(kernels: Sequence[LibraryKernel], device: Device) -> float:
    """The naive roofline: the greater of bytes over datasheet bandwidth and FLOPs over peak."""
    bandwidth = device.dram_bandwidth_gbs or device.require("stream_gbs")
    matrix = {"tf32": ("fp32", True), "half": ("fp16", False), "fp32": ("fp32", False)}
    total = 0.0
    for kernel in kernels:
        if kernel.pipe == "lanes":
            peak = device.peak_for("fp32", matrix=False)
        else:
            dtype, tf32 = matrix[kernel.pipe]
            peak = device.peak_for(dtype, matrix=True, tf32=tf32)
        total += max(kernel.bytes / bandwidth / 1e3, kernel.flops / peak * 1e6)
    return max(total, 1e-3)
