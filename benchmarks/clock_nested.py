"""How much choosing among variants of the clock flatters it, and how much the draw of folds moves.

`python benchmarks/clock_nested.py FOLDER [--draws N]` with a KernelBench folder; levels 1 and 2,
eager and `compile-default` rows. Variants are other priors: widths, and groups of coefficients held
at a factor of one. *Chosen on the folds* is the variant of the least error out of fold, as one who
looks at these figures picks it, with that error. *Chosen within* is picked anew in each fold, from
errors of inner folds of its training part alone, so what it is judged on had no say. Each draw
deals the problems into folds anew. Prints Markdown tables; errors are mean |log error|, those above
100 % counted as such, and the medians that the targets are of.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from clock_rows import MODES, cell, first_levels, percent_off, times_of
from fuseledger.clock.library_fit import PRIORS, Design, Prior, design_of, fit, predict, prior_of
from fuseledger.validate.corpus import Measured
from fuseledger.validate.folds import fold_of, rows_of, weights_of
from fuseledger.validate.score import pairs

OUTER, INNER = 5, 3
OFF = Prior(0.0, 1e-4)
"""A coefficient that cannot leave zero."""
SWITCHES: dict[str, tuple[str, ...]] = {
    "no cells of convolutions": ("conv.cell:",),
    "layouts of convolutions at their bytes": ("conv.layout",),
    "repeated operators and arguments as any launch": ("host.again", "host.argument"),
    "no loads and power of fp32 products": ("gemm.loads", "gemm.power"),
}
"""Variant → what the names of features begin with whose coefficients stay at a factor of one."""


def variants(names: Sequence[str]) -> dict[str, Mapping[str, Prior]]:
    """Variant → its priors."""
    found: dict[str, Mapping[str, Prior]] = {"as it is": PRIORS}
    for words, factor in (("widths halved", 0.5), ("widths doubled", 2.0)):
        found[words] = {
            name: Prior(prior.mean, factor * prior.deviation)
            for name in (*names, *PRIORS)
            for prior in (prior_of(name, PRIORS),)
        }
    for words, stems in SWITCHES.items():
        found[words] = {**PRIORS, **dict.fromkeys((n for n in names if n.startswith(stems)), OFF)}
    return found


class Trial:
    """Rows to fit and to judge."""

    def __init__(self, rows: Sequence[Measured]) -> None:
        self.rows = rows
        self.design: Design = design_of(rows_of(rows))
        self.times = times_of(rows)
        self.weights = weights_of(rows)
        self.problems = np.array([m.problem for m in rows])

    def out_of_fold(
        self, prior: Mapping[str, Prior], draw: str, folds: int, within: np.ndarray
    ) -> np.ndarray:
        """Predictions of the rows `within`, each from a fit on the other folds of them."""
        part = np.array([fold_of(problem, folds, draw) for problem in self.problems])
        made = np.full(len(self.times), np.nan)
        for fold in range(folds):
            out = within & (part == fold)
            theta = fit(self.design, self.times, prior, self.weights * (within & ~out))
            made[out] = predict(self.design, theta).total_us[out]
        return made

    def error(self, made: np.ndarray) -> float:
        """Mean |log error| of the rows that have a prediction."""
        there = ~np.isnan(made)
        errors = np.abs(np.log(made[there] / self.times[there]))
        return float(100 * np.minimum(errors, 1.0).mean())


def nested(trial: Trial, options: Mapping[str, Mapping[str, Prior]], draw: str) -> np.ndarray:
    """Predictions of the variant that is best within each fold's training part."""
    part = np.array([fold_of(problem, OUTER, draw) for problem in trial.problems])
    made = np.zeros(len(trial.times))
    for fold in range(OUTER):
        seen = part != fold
        errors = {
            name: trial.error(trial.out_of_fold(prior, f"{draw} inner", INNER, seen))
            for name, prior in options.items()
        }
        best = min(errors, key=lambda name: errors[name])
        theta = fit(trial.design, trial.times, options[best], trial.weights * seen)
        made[~seen] = predict(trial.design, theta).total_us[~seen]
    return made


def figures(trial: Trial, made: np.ndarray) -> list[float]:
    """What the targets are of: medians of v0.1 and v0, ratios of level 2, fusions called right."""
    rows = trial.rows
    found = [
        percent_off(made, rows, cell(rows, sizes, mode))
        for sizes in ("v0.1", "v0")
        for mode in MODES
    ]
    for device in ("h100-sxm", "h100-pcie"):
        true, said = _gains(trial, made, "v0.1", device, levels="2")
        found.append(float(np.median(np.abs(np.log(said / true)))))
    for device in ("a100-sxm-80", "l40s", "h100-sxm"):
        true, said = _gains(trial, made, "v0", device, levels="12")
        found.append(float(np.mean((said > 1.1) == (true > 1.1))))
    return found


def _gains(
    trial: Trial, made: np.ndarray, sizes: str, device: str, levels: str
) -> tuple[np.ndarray, np.ndarray]:
    """Measured and predicted gains of being compiled."""
    here = cell(trial.rows, sizes, MODES[1], device)
    paired = {
        fused: plain
        for fused, plain in pairs(trial.rows).items()
        if here[fused] and trial.rows[fused].problem[0] in levels
    }
    fused, plain = list(paired), list(paired.values())
    return trial.times[plain] / trial.times[fused], made[plain] / made[fused]


def _line(name: str, error: float, found: Sequence[float]) -> str:
    medians = " / ".join(f"{value:.1f}" for value in found[:4])
    ratios = " / ".join(f"{value:.3f}" for value in found[4:6])
    right = " / ".join(f"{value:.2f}" for value in found[6:])
    return f"| {name} | {error:.1f} % | {medians} % | {ratios} | {right} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    given = parser.parse_args()
    rows = first_levels(given.folder)
    trial = Trial(rows)
    options = variants(trial.design.names)
    every = np.ones(len(rows), dtype=bool)
    print("| draw, variant | error | v0.1 eager / compiled, v0 eager / compiled | ratio SXM / PCIe "
          "| pays A100 / L40S / H100 |")  # fmt: skip
    print("|---|---|---|---|---|")
    for draw in map(str, range(1, given.draws + 1)):
        made = {
            name: trial.out_of_fold(prior, draw, OUTER, every) for name, prior in options.items()
        }
        errors = {name: trial.error(each) for name, each in made.items()}
        for name, each in made.items():
            print(_line(f"{draw}, {name}", errors[name], figures(trial, each)), flush=True)
        best = min(errors, key=lambda name: errors[name])
        print(_line(f"{draw}, chosen on the folds: {best}", errors[best],
                    figures(trial, made[best])))  # fmt: skip
        within = nested(trial, options, draw)
        print(_line(f"{draw}, chosen within", trial.error(within), figures(trial, within)),
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
