"""Reports of a validation: JSON, text and Markdown from the same figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from fuseledger.report.layout import Column, Page, Row
from fuseledger.report.markdown import escape, table
from fuseledger.validate.score import Score, Worst

if TYPE_CHECKING:
    from fuseledger.validate.run import Validation


class CalibrationPart(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """Of a class, how many times lie within their error bars."""

    class_: str
    n: int
    within_median_bar: float
    within_90_bar: float


class SkippedPart(Struct, frozen=True, kw_only=True):
    """Rows that could not be priced."""

    reason: str
    n: int


class ValidationDocument(Struct, frozen=True, kw_only=True):
    """The JSON document; `docs/json.md` says what its fields mean."""

    schema: Literal["fuseledger/validate@1"] = "fuseledger/validate@1"
    corpus: str
    protocol: str
    rows: list[Score]
    leave_one_device_out: list[Score]
    calibration: list[CalibrationPart]
    worst: list[Worst]
    skipped: list[SkippedPart]
    notes: list[str]


EMPTY = "–"
TITLES = (
    "corpus", "device", "class", "mode", "n", "MdAPE", "P90", "naive", "ρ", "τ", "ratio", "choice",
    "majority", "naive's", "pays",
)  # fmt: skip


def validation_document(result: Validation) -> ValidationDocument:
    """The figures of a validation."""
    return ValidationDocument(
        corpus=result.corpus, protocol=result.protocol, rows=result.rows,
        leave_one_device_out=result.device_out,
        calibration=[
            CalibrationPart(class_=c, n=n, within_median_bar=half, within_90_bar=most)
            for c, n, half, most in result.calibration
        ],
        worst=result.worst,
        skipped=[SkippedPart(reason=reason, n=n) for reason, n in result.skipped.items()],
        notes=list(result.notes),
    )  # fmt: skip


def validation_json(result: Validation) -> str:
    """The document as text."""
    packed = msgspec.json.encode(_rounded(msgspec.to_builtins(validation_document(result))))
    return msgspec.json.format(packed, indent=2).decode() + "\n"


def validation_text(result: Validation, page: Page, *, everything: bool) -> None:
    """Tables of figures, the worst rows and what was skipped."""
    page.line(f"{result.corpus}: {result.protocol}")
    for title, scores in (("", result.rows), ("each device left out", result.device_out)):
        if not scores:
            continue
        page.blank()
        if title:
            page.line(title, "bold")
        _scores(page, [_cells(score) for score in _shown(scores, everything)])
    for class_, n, half, most in result.calibration:
        if class_ == "all":
            page.blank()
            page.line(
                f"of {n:,} times {half:.0%} lie within the median error bar, {most:.0%} within "
                "the 90 % bar"
            )
    page.blank()
    page.line("worst rows", "bold")
    for w in result.worst:
        words = (
            f"{w.name} ({w.device}, {w.mode}): measured {w.measured_us:.0f} µs, "
            f"predicted {w.predicted_us:.0f}"
        )
        page.line(f"{words}: {_made_of(w)}" if w.accounts else words)
    _tail(result, page)


def _scores(page: Page, rows: list[list[str]]) -> None:
    """A table of scores without the columns that no row fills."""
    filled = [i for i in range(len(TITLES)) if any(row[i] != EMPTY for row in rows)]
    columns = [Column(TITLES[i], "left" if i < 4 else "right", wraps=i < 3) for i in filled]
    page.table(columns, [Row([row[i] for i in filled]) for row in rows])


def _tail(result: Validation, page: Page) -> None:
    if result.skipped:
        page.blank()
        page.line(f"skipped {sum(result.skipped.values())} rows", "bold")
        for reason, n in result.skipped.items():
            page.line(f"{n}: {reason}")
    for note in result.notes:
        page.line(note, "dim")


def validation_markdown(result: Validation, *, everything: bool) -> str:
    """The same in Markdown."""
    parts = [f"# Validation of {escape(result.corpus)}", escape(result.protocol)]
    for title, scores in (("By problem", result.rows), ("Each device left out", result.device_out)):
        if scores:
            rows = [_cells(score) for score in _shown(scores, everything)]
            parts += [f"## {title}", table(TITLES, rows)]
    parts += [
        "## Worst rows",
        table(
            ("row", "device", "mode", "measured µs:", "predicted µs:", "made of"),
            [
                (w.name, w.device, w.mode, f"{w.measured_us:.0f}", f"{w.predicted_us:.0f}",
                 _made_of(w))
                for w in result.worst
            ],
        ),
        "## Calibration of the error bars",
        table(
            ("class", "n:", "in the median bar:", "in the 90 % bar:"),
            [(c, str(n), f"{half:.2f}", f"{most:.2f}") for c, n, half, most in result.calibration],
        ),
    ]  # fmt: skip
    items = [*(f"skipped {n}: {reason}" for reason, n in result.skipped.items()), *result.notes]
    if items:
        parts.append("\n".join(f"- {escape(item)}" for item in items))
    return "\n\n".join(parts) + "\n"


def _made_of(row: Worst) -> str:
    """The kernels of a row and their predicted µs, where the clock tells them apart."""
    return ", ".join(f"{part.kernel} {part.time_us:.0f}" for part in row.accounts)


def _shown(scores: Sequence[Score], everything: bool) -> list[Score]:
    return [s for s in scores if everything or s.class_ == "all" or s.device == "all"]


def _cells(s: Score) -> list[str]:
    return [
        s.corpus, s.device, s.class_, s.mode, str(s.n), _percent(s.mdape), _percent(s.p90ape),
        _percent(s.naive_mdape), _two(s.spearman), _two(s.kendall), _two(s.ratio_abs_log_median, 3),
        _two(s.choice_accuracy), _two(s.majority_accuracy), _two(s.naive_accuracy),
        _two(s.pays_accuracy),
    ]  # fmt: skip


def _percent(value: float | None) -> str:
    return EMPTY if value is None else f"{100 * value:.1f}%"


def _two(value: float | None, digits: int = 2) -> str:
    return EMPTY if value is None else f"{value:.{digits}f}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_rounded(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value
