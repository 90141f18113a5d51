"""The library clock on problems that nobody fitted: one part of the corpus predicts another.

`python benchmarks/clock_halves.py FOLDER` with a KernelBench folder; levels 1 and 2, eager and
`compile-default` rows. Coefficients of one part predict the rows of the other as they are, and, in
brackets, where `validate` starts from them and refits in folds. Prints a Markdown table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fuseledger.clock.library import Fit
from fuseledger.clock.library_fit import PRIORS, design_of, deviations, fit, predict, prior_of
from fuseledger.validate.corpus import Measured
from fuseledger.validate.folds import by_problem, fold_of, rows_of, weights_of
from fuseledger.validate.kernelbench import read_kernelbench
from fuseledger.validate.run import start_from

Part = Callable[[Measured], bool]
COLUMNS = (
    ("v0.1", "h100-sxm"), ("v0.1", "h100-pcie"), ("v0 ", "a100-sxm-80"), ("v0 ", "l40s"),
    ("v0 ", "h100-sxm"),
)  # fmt: skip


def _quarter(remainder: int) -> Part:
    return lambda m: int(m.problem.split("/")[1]) % 4 == remainder


def _half(seed: int, *, first: bool) -> Part:
    """One of two halves of the problems, drawn at random."""

    def holds(m: Measured) -> bool:
        key = f"{seed} {m.problem}"
        return (fold_of(key, 2) == 0) == first

    return holds


PARTS: dict[str, tuple[Part, Part]] = {
    "problems 1 mod 4 → 3 mod 4": (_quarter(1), _quarter(3)),
    "3 mod 4 → 1 mod 4": (_quarter(3), _quarter(1)),
    **{
        f"a half, drawn at random, → the other ({seed})": (
            _half(seed, first=True),
            _half(seed, first=False),
        )
        for seed in (1, 2)
    },
    "H100s → A100, L40S": (
        lambda m: m.setting.device.name.startswith("h100"),
        lambda m: not m.setting.device.name.startswith("h100"),
    ),
    "all but convolutions → convolutions": (
        lambda m: m.class_ != "conv",
        lambda m: m.class_ == "conv",
    ),
}


def main(folder: str) -> None:
    """Print the table."""
    rows = [
        m
        for m in read_kernelbench(Path(folder)).rows
        if m.setting.mode in ("eager", "compile-default") and m.problem[0] in "12"
    ]
    print("| fitted on → checked on | v0.1 SXM eager / compiled | v0.1 PCIe | v0 A100 | v0 L40S |",
          "v0 H100 |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    for name, (seen, unseen) in PARTS.items():
        first, second = [m for m in rows if seen(m)], [m for m in rows if unseen(m)]
        design = design_of(rows_of(first))
        times = np.array([m.time_us for m in first])
        weights = weights_of(first)
        at = fit(design, times, PRIORS, weights)
        found = dict(zip(design.names, at.tolist(), strict=True))
        left = deviations(design, times, at, PRIORS, weights)
        open_ = dict(zip(design.names, left.tolist(), strict=True))
        seen_fit = Fit(fitted_on=name, problems=(), coefficients=found, deviations=open_, errors={})
        other = design_of(rows_of(second))
        theta = np.array([found.get(n, prior_of(n, PRIORS).mean) for n in other.names])
        straight = predict(other, theta).total_us
        refitted = by_problem(second, start_from(seen_fit, PRIORS)).times_us
        cells = [_cell(second, straight, refitted, *column) for column in COLUMNS]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _cell(
    rows: Sequence[Measured], straight: np.ndarray, refitted: np.ndarray, sizes: str, device: str
) -> str:
    words: list[str] = []
    for predicted in (straight, refitted):
        errors: list[str] = []
        for mode in ("eager", "compile-default"):
            of = [
                i
                for i, m in enumerate(rows)
                if sizes in m.corpus and (m.setting.device.name, m.setting.mode) == (device, mode)
            ]
            if not of:
                return "–"
            times = np.array([rows[i].time_us for i in of])
            errors.append(f"{100 * np.median(np.abs(predicted[of] - times) / times):.1f}")
        words.append(" / ".join(errors))
    return f"{words[0]} % ({words[1]})"


if __name__ == "__main__":
    main(sys.argv[1])
