"""Figures of merit of predictions against measurements."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
WITHIN = 1.05
"""Gains between its inverse and itself count as no difference."""


def absolute_errors(predicted: Array, measured: Array) -> Array:
    """|predicted - measured| / measured."""
    return np.abs(predicted - measured) / measured


def spearman(x: Array, y: Array) -> float | None:
    """Rank correlation with ties at their mean rank; None for fewer than three rows."""
    if len(x) < 3:
        return None
    a, b = _ranks(x), _ranks(y)
    if a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def kendall(x: Array, y: Array) -> float | None:
    """Kendall's τ-b; None for fewer than three rows."""
    if len(x) < 3:
        return None
    upper = np.triu_indices(len(x), 1)
    a = np.sign(np.subtract.outer(x, x))[upper]
    b = np.sign(np.subtract.outer(y, y))[upper]
    scale = np.sqrt(np.count_nonzero(a) * np.count_nonzero(b))
    return float((a * b).sum() / scale) if scale else None


def choices(gain: Array) -> Array:
    """1 where fusing pays, -1 where it loses, 0 within 5 %."""
    return np.where(gain > WITHIN, 1, np.where(gain < 1 / WITHIN, -1, 0))


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
