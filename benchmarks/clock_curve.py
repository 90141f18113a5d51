"""How the library clock's error falls with the problems that it has seen.

`python benchmarks/clock_curve.py FOLDER [--splits N]` with a KernelBench folder; levels 1 and 2,
eager and `compile-default` rows. Problems are drawn at random, as many of either level; all rows of
a problem are on one side. Each figure is the mean over the splits of their medians. Prints Markdown
tables.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clock_rows import COLUMNS, MODES, TITLES, cell, first_levels, times_of
from fuseledger.clock.library_fit import PRIORS, Design, design_of, fit, predict
from fuseledger.validate.corpus import Measured
from fuseledger.validate.folds import rows_of, weights_of

SHARES = (0.125, 0.25, 0.5, 0.75)
CLASSES = ("conv", "gemm", "pass", "reduce")


def drawn(problems: Sequence[str], share: float, seed: int) -> set[str]:
    """A share of the problems of each level."""
    found: set[str] = set()
    for level in "12":
        of_level = sorted(each for each in problems if each[0] == level)
        random.Random(f"{seed} {level}").shuffle(of_level)
        found |= set(of_level[: round(len(of_level) * share)])
    return found


def unseen_errors(
    rows: Sequence[Measured], design: Design, share: float, splits: int
) -> list[np.ndarray]:
    """Of each split: |log error| of every row, NaN where the fit has seen its problem."""
    times, importance = times_of(rows), weights_of(rows)
    problems = sorted({m.problem for m in rows})
    found: list[np.ndarray] = []
    for seed in range(splits):
        chosen = drawn(problems, share, seed)
        seen = np.array([m.problem in chosen for m in rows])
        theta = fit(design, times, PRIORS, importance * seen)
        error = np.abs(np.log(predict(design, theta).total_us / times))
        found.append(np.where(seen, np.nan, error))
    return found


def _median(errors: Sequence[np.ndarray], of: np.ndarray) -> float:
    """Mean over splits of the median |log error|, as a percentage of the measured time."""
    return float(100 * np.mean([np.expm1(np.nanmedian(each[of])) for each in errors]))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, default=10)
    given = parser.parse_args()
    rows = first_levels(given.folder)
    design = design_of(rows_of(rows))
    errors = {share: unseen_errors(rows, design, share, given.splits) for share in SHARES}
    print(f"| fitted on | {TITLES} |")
    print("|---|---|---|---|---|---|")
    for share in SHARES:
        cells: list[str] = []
        for sizes, device in COLUMNS:
            of = [cell(rows, sizes, mode, device) for mode in MODES]
            words = [f"{_median(errors[share], each):.1f}" for each in of]
            cells.append(f"{' / '.join(words)} %")
        print(f"| {share * 100:g} % | {' | '.join(cells)} |")
    print(f"\n| fitted on | {' | '.join(CLASSES)} |")
    print("|---|" + "---|" * len(CLASSES))
    for share in SHARES:
        words = [
            f"{_median(errors[share], np.array([m.class_ == name for m in rows])):.1f} %"
            for name in CLASSES
        ]
        print(f"| {share * 100:g} % | {' | '.join(words)} |")


if __name__ == "__main__":
    main()
