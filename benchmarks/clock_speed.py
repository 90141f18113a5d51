"""How fast the library clock prices kernels: kernels a second on one core, in batches.

`python benchmarks/clock_speed.py FOLDER` with a KernelBench folder, as `fuseledger validate` takes
it. Reading graphs and listing their kernels is not counted; terms, features and times are.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from fuseledger.clock.library import load_fit
from fuseledger.clock.library_fit import PRIORS, design_of, predict, prior_of
from fuseledger.validate.folds import rows_of
from fuseledger.validate.kernelbench import read_kernelbench

KERNELS = 20_000


def main(folder: str) -> None:
    """Print one line."""
    rows = rows_of(read_kernelbench(Path(folder)).rows)
    counted = 0
    batch = []
    for row in rows:
        if counted < KERNELS:
            batch.append(row)
            counted += len(row.kernels)
    coefficients = load_fit().coefficients
    started = time.process_time()
    design = design_of(batch)
    theta = np.array([coefficients.get(n, prior_of(n, PRIORS).mean) for n in design.names])
    predict(design, theta)
    seconds = time.process_time() - started
    print(f"{counted} kernels in {seconds:.2f} s of CPU: {counted / seconds:,.0f} a second")


if __name__ == "__main__":
    main(sys.argv[1])
