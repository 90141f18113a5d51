"""The text report of a plan, at any width from 80 columns up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseledger.report.layout import Column, Page, Row

if TYPE_CHECKING:
    from fuseledger.report.summary import EdgeRow, KernelRow, Summary, TotalRow

_KERNEL = (
    Column("#", "right", style="dim"), Column("", "right", style="cyan"),
    Column("kernel", wraps=True, style="bold"), Column("blocks × tile", wraps=True),
    Column("bytes", "right"), Column("time", "right"), Column("bound", style="dim"),
    Column("regs", "right"), Column("on chip", "right"),
)  # fmt: skip
_TOTAL = (
    Column(style="dim"), Column("kernels", "right"), Column("launches", "right"),
    Column("bytes", "right"), Column("time", "right"), Column(wraps=True, style="dim"),
)  # fmt: skip
_COMPARISON = (
    Column("cut", style="bold"), Column("bytes", "right"), Column("launches", "right"),
    Column("time", "right"), Column("most registers", "right"),
)  # fmt: skip
_EDGE = (Column(side="right", style="cyan"), Column("by"), Column("why", wraps=True))


def plan_text(summary: Summary, page: Page) -> str:
    """The report of a plan, written on an empty page."""
    page.line(summary.headline, "bold")
    if summary.warning:
        page.line(summary.warning, "red")
    page.blank()
    if summary.comparison:
        page.table(_COMPARISON, [Row(row[:-1], row[-1]) for row in summary.comparison])
        for sentence in summary.differences:
            page.line(sentence)
        page.blank()
    if summary.kernels:
        _kernels(page, summary.kernels)
        if summary.kernels_hidden:
            page.line(f"… {summary.kernels_hidden}", "dim")
        page.blank()
        _totals(page, summary.totals)
        if summary.saved:
            page.line(summary.saved)
    for title, rows in (("cut", summary.cuts), ("fused", summary.fused)):
        if rows:
            page.blank()
            _edges(page, title, rows)
    if summary.cuts_hidden:
        page.line(f"… {summary.cuts_hidden}", "dim")
    page.blank()
    page.fields(
        [
            *([("barriers", summary.barriers)] if summary.barriers else []),
            *(("note", note) for note in summary.notes),
            *summary.evidence,
            *([("error", summary.error)] if summary.error else []),
            ("status", summary.status),
        ]
    )
    return page.text()


def _kernels(page: Page, rows: tuple[KernelRow, ...]) -> None:
    _repeating(
        page,
        _KERNEL,
        [
            (
                row.count, "; ".join(row.notes),
                (str(row.number), row.label, row.grid, row.bytes, row.time, row.bound,
                 row.registers, row.on_chip),
            )
            for row in rows
        ],
    )  # fmt: skip


def _totals(page: Page, rows: tuple[TotalRow, ...]) -> None:
    cells = [(r.name, r.kernels, r.launches, r.bytes, r.time, r.remark) for r in rows]
    page.table(_TOTAL, [Row(row) for row in cells])


def _edges(page: Page, title: str, rows: tuple[EdgeRow, ...]) -> None:
    _repeating(
        page,
        (Column(title, wraps=True, style="bold"), *_EDGE),
        [(row.count, "", (row.between, row.account, row.reason)) for row in rows],
    )


def _repeating(
    page: Page, columns: tuple[Column, ...], rows: list[tuple[int, str, tuple[str, ...]]]
) -> None:
    """A table of (count, note, cells); counts stand in the second column where any exceeds 1."""
    if not any(count > 1 for count, _, _ in rows):
        page.table((columns[0], *columns[2:]), [Row(cells, note) for _, note, cells in rows])
        return
    page.table(
        columns,
        [
            Row((cells[0], f"×{count}" if count > 1 else "", *cells[1:]), note)
            for count, note, cells in rows
        ],
    )
