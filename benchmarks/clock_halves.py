"""The library clock on problems that nobody fitted: one part of the corpus predicts another.

`python benchmarks/clock_halves.py FOLDER [--halves N]` with a KernelBench folder; levels 1 and 2,
eager and `compile-default` rows. Coefficients of one part predict the rows of the other as they
are, and, in brackets, where `validate` starts from them and refits in folds. Prints a Markdown
table, and the mean |log error| over N random halves, errors above 100 % counted as such.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from clock_rows import COLUMNS, MODES, TITLES, cell, first_levels, percent_off, times_of
from fuseledger.clock.library import Fit
from fuseledger.clock.library_fit import PRIORS, design_of, deviations, fit, predict, prior_of
from fuseledger.validate.corpus import Measured
from fuseledger.validate.folds import by_problem, fold_of, rows_of, weights_of
from fuseledger.validate.run import start_from

Part = Callable[[Measured], bool]


def _quarter(remainder: int) -> Part:
    return lambda m: int(m.problem.split("/")[1]) % 4 == remainder


def _half(seed: int, *, first: bool) -> Part:
    """One of two halves of the problems, drawn at random."""
    return lambda m: (fold_of(m.problem, 2, str(seed)) == 0) == first


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


def predictions(
    first: Sequence[Measured], second: Sequence[Measured]
) -> tuple[np.ndarray, np.ndarray]:
    """Of the second rows: by coefficients of the first, and refitted in folds from there."""
    design, times, weights = design_of(rows_of(first)), times_of(first), weights_of(first)
    at = fit(design, times, PRIORS, weights)
    found = dict(zip(design.names, at.tolist(), strict=True))
    left = deviations(design, times, at, PRIORS, weights)
    open_ = dict(zip(design.names, left.tolist(), strict=True))
    seen = Fit(fitted_on="", problems=(), coefficients=found, deviations=open_, errors={})
    other = design_of(rows_of(second))
    theta = np.array([found.get(n, prior_of(n, PRIORS).mean) for n in other.names])
    straight = predict(other, theta).total_us
    return straight, by_problem(second, start_from(seen, PRIORS)).times_us


def _words(
    rows: Sequence[Measured], straight: np.ndarray, refitted: np.ndarray, sizes: str, device: str
) -> str:
    cells = [cell(rows, sizes, mode, device) for mode in MODES]
    if not all(of.any() for of in cells):
        return "–"
    as_they_are, again = (
        " / ".join(f"{percent_off(predicted, rows, of):.1f}" for of in cells)
        for predicted in (straight, refitted)
    )
    return f"{as_they_are} % ({again})"


def _mean_error(rows: Sequence[Measured], predicted: np.ndarray) -> float:
    """Mean |log error| in per cent, errors above 100 % counted as such."""
    return 100 * float(np.minimum(np.abs(np.log(predicted / times_of(rows))), 1.0).mean())


def main() -> None:
    """Print the table and the means."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--halves", type=int, default=8)
    given = parser.parse_args()
    rows = first_levels(given.folder)
    first_title, *titles = TITLES.split(" | ")
    print(f"| fitted on → checked on | {first_title} eager / compiled | {' | '.join(titles)} |")
    print("|---|---|---|---|---|---|")
    for name, (seen, unseen) in PARTS.items():
        second = [m for m in rows if unseen(m)]
        made = predictions([m for m in rows if seen(m)], second)
        cells = [_words(second, *made, *column) for column in COLUMNS]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    means: list[list[float]] = []
    for seed in range(1, given.halves + 1):
        seen, unseen = _half(seed, first=True), _half(seed, first=False)
        second = [m for m in rows if unseen(m)]
        made = predictions([m for m in rows if seen(m)], second)
        means.append([_mean_error(second, predicted) for predicted in made])
    straight, refitted = np.mean(means, axis=0)
    print(f"\nMean |log error| over {given.halves} halves: {straight:.1f} % ({refitted:.1f})")


if __name__ == "__main__":
    main()
