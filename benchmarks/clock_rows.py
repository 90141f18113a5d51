"""The rows that the benchmarks of the library clock are of, and their cells in tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fuseledger.validate.corpus import Measured
from fuseledger.validate.kernelbench import read_kernelbench

MODES = ("eager", "compile-default")
COLUMNS = (
    ("v0.1", "h100-sxm"), ("v0.1", "h100-pcie"), ("v0", "a100-sxm-80"), ("v0", "l40s"),
    ("v0", "h100-sxm"),
)  # fmt: skip
"""Sizes and device of the columns of a table."""
TITLES = "v0.1 SXM | v0.1 PCIe | v0 A100 | v0 L40S | v0 H100"


def first_levels(folder: Path) -> list[Measured]:
    """The rows of levels 1 and 2 of a KernelBench folder, eager and compiled by default."""
    return [
        m for m in read_kernelbench(folder).rows if m.setting.mode in MODES and m.problem[0] in "12"
    ]


def times_of(rows: Sequence[Measured]) -> np.ndarray:
    """Measured times in µs."""
    return np.array([m.time_us for m in rows])


def cell(rows: Sequence[Measured], sizes: str, mode: str, device: str | None = None) -> np.ndarray:
    """Which rows are of these sizes and this mode, on a device or on any."""
    return np.array(
        [
            sizes == m.corpus.split()[1]
            and mode == m.setting.mode
            and device in (None, m.setting.device.name)
            for m in rows
        ]
    )


def percent_off(predicted: np.ndarray, rows: Sequence[Measured], of: np.ndarray) -> float:
    """Median absolute percentage error of some rows."""
    return 100 * float(np.median(np.abs(predicted[of] / times_of(rows)[of] - 1)))
