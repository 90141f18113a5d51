"""One validation from a corpus on disk to scores: what `fuseledger validate` reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from fuseledger.clock.library import Fit, load_fit
from fuseledger.clock.library_fit import PRIORS, Design, Prior, deviations, fit, prior_of
from fuseledger.validate.corpus import Corpus, CorpusError, Measured
from fuseledger.validate.folds import LeftOut, by_device, by_problem, fold_of, naive_us, weights_of
from fuseledger.validate.plans import PlanSource
from fuseledger.validate.score import (
    Part,
    Score,
    Worst,
    bars_of_other_parts,
    calibration,
    calibration_curves,
    class_errors,
    scores,
)

SCHEDULE_CLOCK = "which fits no time but, on half of KernelBench, the rates of convolutions"


class Point(Struct, frozen=True):
    """One row as a plot shows it."""

    class_: str
    mode: str
    measured_us: float
    predicted_us: float


class Validation(Struct, frozen=True, kw_only=True):
    """Everything that a report of a corpus shows."""

    corpus: str
    rows: list[Score]
    device_out: list[Score]
    """The same figures where each device's rows were left out of the fit; none for one device."""
    calibration: list[tuple[str, int, float, float]]
    worst: list[Worst]
    skipped: dict[str, int]
    notes: list[str]
    protocol: str
    fit: Fit | None
    """Coefficients fitted on all rows, with the out-of-fold error of every class."""
    points: list[Point]
    curves: dict[str, list[tuple[float, float]]]
    """Class → (share that a bar promises, share of times within it); bars from other folds."""


def read_corpus(path: Path, plans: PlanSource = "standin") -> Corpus:
    """A KernelBench folder or checkout, a `.jsonl` of decisions or a CSV.

    `plans` says whose plan KernelBench's compiled modes run. Raises CorpusError naming the corpus.
    """
    from fuseledger.validate.checkout import is_checkout, read_checkout
    from fuseledger.validate.decisions import read_decisions
    from fuseledger.validate.kernelbench import read_kernelbench
    from fuseledger.validate.table import read_table

    if path.is_dir():
        if (path / "times.csv").is_file():
            return read_kernelbench(path, plans)
        if is_checkout(path):
            return read_checkout(path, plans)
        raise CorpusError(
            f"{path}: holds neither times.csv, as the folder of graphs does, nor KernelBench/ and "
            "results/timing/, as a checkout does"
        )
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder")
    return read_decisions(path) if path.suffix == ".jsonl" else read_table(path)


def validate(path: Path, *, plans: PlanSource = "standin") -> Validation:
    """Out-of-fold predictions of a corpus and their scores."""
    corpus = read_corpus(path, plans)
    if not corpus.rows:
        reasons = "; ".join(f"{reason} ({n})" for reason, n in corpus.skipped.items())
        raise CorpusError(f"{path}: no row can be priced: {reasons or 'it has none'}")
    fitted = [m for m in corpus.rows if m.priced_us is None]
    priced = [m for m in corpus.rows if m.priced_us is not None]
    measured = [*fitted, *priced]
    priors, protocol = start(measured)
    naive = np.array([_naive_us(m) for m in measured])
    predicted = priced_us = np.array([m.priced_us for m in priced])
    bars = [m.bar for m in priced]
    left_out = fitted_on_all = None
    device_out: list[Score] = []
    curves: dict[str, list[tuple[float, float]]] = {}
    if fitted:
        left_out, folds = by_problem(fitted, priors), [fold_of(m.problem) for m in fitted]
        predicted = np.concatenate([left_out.times_us, priced_us])
        bars = [*bars_of_other_parts(fitted, left_out.times_us, folds), *bars]
        curves = calibration_curves(fitted, left_out.times_us, folds)
        fitted_on_all = _fit_on_all(fitted, left_out, priors, path)
        if len({m.setting.device.name for m in fitted}) > 1:
            alone = by_device(fitted, priors).times_us
            device_out = scores(measured, np.concatenate([alone, priced_us]), naive)
    return Validation(
        corpus=str(path), rows=scores(measured, predicted, naive), device_out=device_out,
        calibration=calibration(measured, predicted, bars), curves=curves,
        worst=_worst(measured, predicted, left_out), points=_points(measured, predicted),
        skipped=corpus.skipped, notes=corpus.notes, protocol=protocol, fit=fitted_on_all,
    )  # fmt: skip


def _naive_us(m: Measured) -> float:
    """The naive roofline of a row; NaN for one that came priced, without kernels of its own."""
    if m.priced_us is not None and not m.kernels:
        return math.nan
    return naive_us(m.kernels, m.setting.device)


def start(measured: Sequence[Measured]) -> tuple[Mapping[str, Prior], str]:
    """Where the folds of a corpus start from, and that in words.

    From the shipped fit, where it has seen none of these problems. Decisions share no device's or
    host's deviations with it, but passes, products and launches in general.
    """
    if measured[0].priced_us is not None:
        return PRIORS, f"priced by the schedule clock, {SCHEDULE_CLOCK}"
    folds = "10 folds by problem, refitted in each"
    shipped = load_fit()
    if measured[0].corpus.startswith("decisions"):
        from fuseledger.validate.decisions import decision_priors

        common = {
            name: prior
            for name, prior in start_from(shipped, PRIORS).items()
            if "@" not in name and not name.startswith("host")
        }
        priors = decision_priors(measured, {**PRIORS, **common})
        return priors, f"{folds}, from what kernels of all devices share in the shipped fit"
    if {m.problem for m in measured} & set(shipped.problems):
        return PRIORS, f"{folds}, from the mechanisms' priors: the shipped fit has seen problems"
    priors = start_from(shipped, PRIORS)
    return priors, f"{folds}, from the shipped fit, which has seen none of these problems"


def start_from(seen: Fit, priors: Mapping[str, Prior]) -> dict[str, Prior]:
    """Priors that start from a fit: its coefficients, as open as its rows left them."""
    start = dict(priors)
    for name, value in seen.coefficients.items():
        deviation = prior_of(name, priors).deviation
        start[name] = Prior(value, min(deviation, seen.deviations.get(name, deviation)))
    return start


def _points(measured: Sequence[Measured], predicted: Any) -> list[Point]:
    times: list[float] = predicted.tolist()
    return [
        Point(m.class_, m.setting.mode, m.time_us, time)
        for m, time in zip(measured, times, strict=True)
    ]


def _worst(
    measured: Sequence[Measured], predicted: Any, left_out: LeftOut | None, count: int = 10
) -> list[Worst]:
    """The rows furthest off, one a problem and mode, with the kernels of a fit without them."""
    times = np.array([m.time_us for m in measured])
    order = np.argsort(-np.abs(np.log(predicted / times)))
    found: list[Worst] = []
    seen: set[tuple[str, str]] = set()
    for i in map(int, order):
        m = measured[i]
        if (m.problem, m.setting.mode) in seen or len(found) == count:
            continue
        seen.add((m.problem, m.setting.mode))
        accounts: list[Part] = []
        if left_out is not None and m.priced_us is None:
            names = [*(kernel.name for kernel in m.kernels), "host"]
            accounts = [*map(Part, names, left_out.accounts(i))]
            accounts = sorted(accounts, key=lambda part: -part.time_us)[:4]
        found.append(
            Worst(m.name, m.corpus, m.setting.device.name, m.setting.mode, m.time_us,
                  float(predicted[i]), accounts)
        )  # fmt: skip
    return found


def _fit_on_all(
    measured: Sequence[Measured], left_out: LeftOut, priors: Mapping[str, Prior], path: Path
) -> Fit:
    times = np.array([m.time_us for m in measured])
    design, weights = left_out.design, weights_of(measured)
    theta = fit(design, times, priors, weights)
    open_ = deviations(design, times, theta, priors, weights)
    problems = sorted({m.problem for m in measured})
    return Fit(
        fitted_on=f"{len(measured)} rows of {len(problems)} problems of {path.name}, devices "
        + ", ".join(sorted({m.setting.device.name for m in measured})),
        problems=tuple(problems),
        coefficients=_by_name(design, theta), deviations=_by_name(design, open_),
        errors=class_errors(measured, left_out.times_us),
    )  # fmt: skip


def _by_name(design: Design, values: Any) -> dict[str, float]:
    named = sorted(zip(design.names, values.tolist(), strict=True))
    return {name: round(value, 4) for name, value in named if math.isfinite(value)}
