"""Plots of a validation as SVG: predicted against measured, and how often the error bars hold."""

from __future__ import annotations

import importlib
import io
from typing import TYPE_CHECKING, Any

from fuseledger.errors import MissingExtra

if TYPE_CHECKING:
    from fuseledger.validate.run import Validation

COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#332288",
    "#999933", "#882255",
)  # fmt: skip
"""Tol's bright scheme and four of his muted one: told apart by the colour-blind."""


DPI = 144
"""Of the points, of which a corpus has thousands; lines and words stay vectors."""


def validation_plots(result: Validation) -> dict[str, str]:
    """File name → SVG. Raises MissingExtra where matplotlib is not installed."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        figure: Any = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise MissingExtra("report", "matplotlib") from None
    with matplotlib.rc_context({"svg.hashsalt": "fuseledger", "font.size": 9}):
        plots = {"times.svg": _times(figure, result)}
        if result.curves:
            plots["calibration.svg"] = _calibration(figure, result)
        return plots


def _times(figure: Any, result: Validation) -> str:
    """One panel a mode: measured time across, predicted over measured up, a colour a class."""
    modes = list(dict.fromkeys(point.mode for point in result.points))
    columns = min(3, len(modes))
    rows = -(-len(modes) // columns)
    sheet = figure.Figure(figsize=(3.4 * columns, 2.6 * rows), layout="constrained")
    panels = sheet.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
    classes = sorted({point.class_ for point in result.points})
    for panel, mode in zip(panels, modes, strict=False):
        for class_, colour in zip(classes, COLOURS * len(classes), strict=False):
            shown = [p for p in result.points if (p.mode, p.class_) == (mode, class_)]
            panel.plot(
                [p.measured_us for p in shown], [p.predicted_us / p.measured_us for p in shown],
                ".", color=colour, markersize=2.5, label=class_, rasterized=True,
            )  # fmt: skip
        panel.axhline(1, color="black", linewidth=0.6)
        panel.set(xscale="log", yscale="log", ylim=(0.1, 10), title=mode)
    sheet.supxlabel("measured µs")
    sheet.supylabel("predicted / measured, out of fold")
    handles, labels = _legend(sheet)
    sheet.legend(handles, labels, loc="outside lower center", ncols=8, markerscale=3)
    return _svg(sheet)


def _legend(sheet: Any) -> tuple[list[Any], list[str]]:
    found: dict[str, Any] = {}
    for panel in sheet.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


def _calibration(figure: Any, result: Validation) -> str:
    """Share of times within a bar, against the share that the bar promises."""
    sheet = figure.Figure(figsize=(4.2, 3.6), layout="constrained")
    panel = sheet.subplots()
    panel.plot([0, 1], [0, 1], color="black", linewidth=0.6)
    for (class_, curve), colour in zip(result.curves.items(), COLOURS * 9, strict=False):
        promised, kept = zip(*curve, strict=True)
        width = 2.2 if class_ == "all" else 1.0
        panel.plot(promised, kept, color=colour, linewidth=width, label=class_)
    panel.set(xlabel="promised by the bar of other folds", ylabel="times within it", title=None)
    panel.legend(fontsize=7)
    return _svg(sheet)


def _svg(sheet: Any) -> str:
    held = io.StringIO()
    sheet.savefig(held, format="svg", metadata={"Date": None}, dpi=DPI)
    return held.getvalue()
