"""The text report of a plan, at any width from 80 columns up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseledger.report.layout import Column, Page, Row

if TYPE_CHECKING:
    from fuseledger.report.summary import CutRow, KernelRow, Summary, TotalRow

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
_CUT = (Column(side="right", style="cyan"), Column(style="dim"), Column(wraps=True))


def plan_text(summary: Summary, page: Page) -> str:
    """The report of a plan, written on an empty page."""
    page.line(summary.headline, "bold")
    if summary.warning:
        page.line(summary.warning, "red")
    page.blank()
    if summary.comparison:
        page.table(_COMPARISON, [Row(row[:-1], row[-1]) for row in summary.comparison])
        page.blank()
    _kernels(page, summary.kernels)
    if summary.kernels_hidden:
        page.line(f"… {summary.kernels_hidden}", "dim")
    page.blank()
    _totals(page, summary.totals)
    if summary.cuts:
        page.blank()
        _cuts(page, summary.cuts)
    if summary.cuts_hidden:
        page.line(f"… {summary.cuts_hidden}", "dim")
    page.blank()
    page.fields(
        [
            *([("barriers", summary.barriers)] if summary.barriers else []),
            *(("note", note) for note in summary.notes),
            ("status", summary.status),
        ]
    )
    return page.text()


def _kernels(page: Page, rows: tuple[KernelRow, ...]) -> None:
    repeats = any(row.count > 1 for row in rows)
    columns = tuple(column for i, column in enumerate(_KERNEL) if repeats or i != 1)
    page.table(
        columns,
        [
            Row(
                (
                    str(row.number), *([f"×{row.count}" if row.count > 1 else ""] if repeats else []),
                    row.label, row.grid, row.bytes, row.time, row.bound, row.registers, row.on_chip,
                ),
                "; ".join(row.notes),
            )
            for row in rows
        ],
    )  # fmt: skip


def _totals(page: Page, rows: tuple[TotalRow, ...]) -> None:
    cells = [(r.name, r.kernels, r.launches, r.bytes, r.time, r.remark) for r in rows]
    page.table(_TOTAL, [Row(row) for row in cells])


def _cuts(page: Page, rows: tuple[CutRow, ...]) -> None:
    page.line("cut", "bold")
    page.table(
        _CUT,
        [
            Row((f"×{row.count}  " * (row.count > 1) + row.between, row.account, row.reason))
            for row in rows
        ],
    )
