"""How far off the clock was where graphs of a plan's kind were measured, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseledger.report.figures import plural

if TYPE_CHECKING:
    from fuseledger.report.document import ErrorBarPart, PlanDocument

LEANING = 1.1
"""Median of measured over predicted from which the direction is told."""


def error_words(document: PlanDocument) -> str | None:
    """How far the clock was off where such graphs were measured, or that none was."""
    error = document.error
    if error.kind == "declared" or not document.plan.kernels:
        return None
    if not error.bars:
        such = f"{error.kind} graphs in {error.dtype}"
        return f"no measured times of {such}: how far off these are is not known"
    words: list[str] = []
    for bar in error.bars:
        half, most = _within(bar.within_half), _within(bar.within_most)
        graphs = plural(bar.graphs, f"{error.kind} graph")
        whose = "a plan's" if bar.side == "plan" else bar.side
        words.append(f"half within {half} of {whose}, nine in ten within {most} ({graphs}")
        words[-1] += f"{_leaning(bar)})"
    devices = sorted({name for bar in error.bars for name in bar.devices})
    here = document.device.name
    where = ", ".join(devices) + ("" if here in devices else f", not {here}")
    return f"times measured in {error.dtype}: {'; '.join(words)}; on {where}"


def _within(share: float) -> str:
    """28%, or the factor from 2 times on."""
    return f"{share:.0%}" if share < 1 else f"{1 + share:.1f}×"


def _leaning(bar: ErrorBarPart) -> str:
    """Which way most of them are off, where they lean by more than a tenth."""
    if 1 / LEANING < bar.shift < LEANING:
        return ""
    return f", {'longer' if bar.shift > 1 else 'shorter'} as a rule"
