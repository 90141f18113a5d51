"""Predictions of a corpus, scored by table, device, class and mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
from msgspec import Struct
from msgspec.structs import replace

from fuseledger.clock.library import ClassError, error_of
from fuseledger.validate.corpus import Measured
from fuseledger.validate.figures import absolute_errors, choices, kendall, spearman

Array = Any
Bar = tuple[float, float]
"""Median and 90th percentile of |log error|."""
np: Any = numpy
"""NumPy's own overloads leave results of `Any` arrays unknown."""


class Score(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """One row of the report; None where a figure has no meaning or too few rows."""

    corpus: str
    device: str
    class_: str
    mode: str
    n: int
    mdape: float
    p90ape: float
    spearman: float | None
    kendall: float | None
    ratio_abs_log_median: float | None
    choice_accuracy: float | None
    majority_accuracy: float | None
    naive_accuracy: float | None
    naive_mdape: float | None
    pays_accuracy: float | None
    """Share of pairs where `fusing gains more than 10 %` was called right."""


class Part(Struct, frozen=True):
    """A kernel, or the host, in a predicted time."""

    kernel: str
    time_us: float


class Worst(Struct, frozen=True):
    """One of the rows furthest off, with what its time was thought to be made of."""

    name: str
    corpus: str
    device: str
    mode: str
    measured_us: float
    predicted_us: float
    accounts: list[Part]
    """The longest first."""


def pairs(measured: Sequence[Measured]) -> dict[int, int]:
    """Row of a fused side → row of its unfused side, in the same run of the same problem."""
    plain = {m.run: i for i, m in enumerate(measured) if not m.fused and m.setting.mode == "eager"}
    return {i: plain[m.run] for i, m in enumerate(measured) if m.fused and m.run in plain}


def scores(measured: Sequence[Measured], predicted: Array, naive: Array) -> list[Score]:
    """Scores of every table, device, class and mode that has rows; `all` for the whole."""
    times = np.array([m.time_us for m in measured])
    paired = pairs(measured)
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for i, m in enumerate(measured):
        for table in (m.corpus, *m.tables):
            for device in (m.setting.device.name, "all"):
                for class_ in (m.class_, "all"):
                    groups.setdefault((table, device, class_, m.setting.mode), []).append(i)
    made: list[Score] = []
    for key, rows in sorted(groups.items()):
        made.append(_score(key, np.array(rows), times, predicted, naive, paired))
        fused = [i for i in rows if i in paired]
        if fused:
            plain = [paired[i] for i in fused]
            gains = [t[plain] / t[fused] for t in (times, predicted, naive)]
            made.append(_gain_score(key, made[-1], *gains))
    return made


def _score(
    key: tuple[str, str, str, str], rows: Array, times: Array, predicted: Array, naive: Array,
    paired: dict[int, int],
) -> Score:  # fmt: skip
    error = absolute_errors(predicted[rows], times[rows])
    fused = np.array([i for i in rows.tolist() if i in paired], dtype=int)
    ratio = right = majority = naive_right = pays = None
    if len(fused):
        plain = np.array([paired[i] for i in fused.tolist()])
        gains: list[Array] = [t[plain] / t[fused] for t in (times, predicted, naive)]
        true, said, guess = gains
        ratio = float(np.median(np.abs(np.log(said / true))))
        actual: Array = choices(true)
        right = float(np.mean(choices(said) == actual))
        naive_right = None if np.isnan(guess).any() else float(np.mean(choices(guess) == actual))
        majority = float(max(np.mean(actual == c) for c in (-1, 0, 1)))
        pays = float(np.mean((said > 1.1) == (true > 1.1)))
    corpus, device, class_, mode = key
    return Score(
        corpus=corpus, device=device, class_=class_, mode=mode, n=len(rows),
        mdape=float(np.median(error)), p90ape=float(np.quantile(error, 0.9)),
        spearman=spearman(predicted[rows], times[rows]),
        kendall=kendall(predicted[rows], times[rows]),
        ratio_abs_log_median=ratio, choice_accuracy=right, majority_accuracy=majority,
        naive_accuracy=naive_right, naive_mdape=_median_error(naive[rows], times[rows]),
        pays_accuracy=pays,
    )  # fmt: skip


def _median_error(predicted: Array, measured: Array) -> float | None:
    """None where a row has no prediction (NaN)."""
    median = float(np.median(absolute_errors(predicted, measured)))
    return None if math.isnan(median) else median


def _gain_score(
    key: tuple[str, str, str, str], of_times: Score, true: Array, said: Array, guess: Array
) -> Score:
    """The gain itself, unfused over fused, as the figure predicted; its mode is `gain:<mode>`."""
    error = absolute_errors(said, true)
    return replace(
        of_times, mode=f"gain:{key[3]}", n=len(true), mdape=float(np.median(error)),
        p90ape=float(np.quantile(error, 0.9)), spearman=spearman(said, true),
        kendall=kendall(said, true), naive_mdape=_median_error(guess, true),
    )  # fmt: skip


def class_errors(measured: Sequence[Measured], predicted: Array) -> dict[str, ClassError]:
    """|log error| by `class:mode`, `all:mode` and `all`, of classes with five rows or more."""
    groups: dict[str, list[float]] = {}
    for m, time in zip(measured, predicted.tolist(), strict=True):
        error = abs(math.log(time / m.time_us))
        for key in (f"{m.class_}:{m.setting.mode}", f"all:{m.setting.mode}", "all"):
            groups.setdefault(key, []).append(error)
    return {
        key: ClassError(
            len(errors), round(float(np.median(errors)), 4), round(float(np.quantile(errors, 0.9)), 4)  # noqa: E501
        )
        for key, errors in sorted(groups.items())
        if len(errors) >= 5
    }  # fmt: skip


def bars_of_other_parts(
    measured: Sequence[Measured], predicted: Array, parts: Sequence[int]
) -> list[Bar | None]:
    """Each row's error bar, from the rows of its class in other parts; None in the only part."""
    bars: list[Bar | None] = [None] * len(measured)
    for part in set(parts):
        rest = [i for i, p in enumerate(parts) if p != part]
        errors = class_errors([measured[i] for i in rest], predicted[rest])
        for i, m in enumerate(measured):
            if rest and parts[i] == part:
                error = error_of(errors, m.class_, m.setting.mode)
                bars[i] = error.median, error.p90
    return bars


def calibration(
    measured: Sequence[Measured], predicted: Array, bars: Sequence[Bar | None]
) -> list[tuple[str, int, float, float]]:
    """(class, n, share within the median bar, share within the 90 % bar) of rows with a bar."""
    inside: dict[str, list[tuple[bool, bool]]] = {}
    for m, time, bar in zip(measured, predicted.tolist(), bars, strict=True):
        if bar is not None:
            error = abs(math.log(time / m.time_us))
            for class_ in (m.class_, "all"):
                inside.setdefault(class_, []).append((error <= bar[0], error <= bar[1]))
    found: list[tuple[str, int, float, float]] = []
    for class_, hits in sorted(inside.items()):
        half, most = zip(*hits, strict=True)
        found.append((class_, len(hits), sum(half) / len(hits), sum(most) / len(hits)))
    return found


PROMISES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Shares of times that bars are made to hold, for the calibration curves."""
SHOWN_ROWS = 40
"""Classes with fewer rows have no curve of their own."""


def calibration_curves(
    measured: Sequence[Measured], predicted: Array, parts: Sequence[int]
) -> dict[str, list[tuple[float, float]]]:
    """Class → (promised share, share within): bars are quantiles of the class in other folds."""
    errors: Array = np.abs(np.log(predicted / np.array([m.time_us for m in measured])))
    fold: Array = np.array(parts)
    keys: Array = np.array([f"{m.class_}:{m.setting.mode}" for m in measured])
    within: Array = np.zeros((len(errors), len(PROMISES)))
    for key, part in sorted({(str(k), int(f)) for k, f in zip(keys, fold, strict=True)}):
        held: Array = (keys == key) & (fold == part)
        rest: Array = (keys == key) & (fold != part)
        if not rest.any():
            rest = fold != part
        if rest.any():
            bars: Array = np.quantile(errors[rest], PROMISES)
            within[held] = errors[held][:, None] <= bars
    classes: Array = np.array([m.class_ for m in measured])
    curves: dict[str, list[tuple[float, float]]] = {}
    for class_ in ("all", *sorted({m.class_ for m in measured})):
        rows: Array = np.ones(len(errors), dtype=bool) if class_ == "all" else classes == class_
        if class_ == "all" or rows.sum() >= SHOWN_ROWS:
            shares: list[float] = within[rows].mean(axis=0).tolist()
            curves[class_] = list(zip(PROMISES, shares, strict=True))
    return curves
