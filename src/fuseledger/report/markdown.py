"""The same reports in Markdown, for pull requests and issues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuseledger.report.explain import (
    account_rows,
    axis_rows,
    clock_rows,
    edge_words,
    explain_headline,
    schedule_words,
    solved_words,
    verdict_lines,
)
from fuseledger.report.figures import has_schedule
from fuseledger.report.layout import printable

if TYPE_CHECKING:
    from fuseledger.report.document import KernelDocument
    from fuseledger.report.summary import Summary

_ESCAPES = str.maketrans({c: f"\\{c}" for c in "\\|*_`<>[]"})


def plan_markdown(summary: Summary) -> str:
    """The report of a plan."""
    parts = [f"**{escape(summary.headline)}**"]
    if summary.warning:
        parts.append(escape(summary.warning))
    if summary.comparison:
        parts.append(
            table(
                ("cut", "bytes:", "launches:", "time:", "most registers:", "veto"),
                summary.comparison,
            )
        )
        parts.append("\n".join(f"- {escape(sentence)}" for sentence in summary.differences))
    if summary.kernels:
        parts += _ledger(summary)
    if summary.cuts:
        parts.append(
            table(
                ("cut", "×:", "tensor", "account", "why"),
                [
                    (r.between, str(r.count), ", ".join(r.tensors), r.account, r.reason)
                    for r in summary.cuts
                ],
            )
        )
    if summary.fused:
        parts.append(
            table(
                ("fused", "tensor", "account", "why"),
                [(r.between, ", ".join(r.tensors), r.account, r.reason) for r in summary.fused],
            )
        )
    if summary.cuts_hidden:
        parts.append(f"… {escape(summary.cuts_hidden)}")
    items = [f"note: {note}" for note in summary.notes]
    items += [f"{word}: {sentence}" for word, sentence in summary.evidence]
    if summary.error:
        items.append(f"error: {summary.error}")
    if summary.barriers:
        items.insert(0, f"barriers: {summary.barriers}")
    parts.append("\n".join(f"- {escape(item)}" for item in [*items, f"status: {summary.status}"]))
    return "\n\n".join(parts) + "\n"


def _ledger(summary: Summary) -> list[str]:
    """The kernels, their totals, and what they save."""
    parts = [
        table(
            ("#:", "×:", "kernel", "blocks × tile", "bytes:", "time:", "bound", "regs:",
             "on chip:", "note"),
            [
                (str(r.number), str(r.count), r.label, r.grid, r.bytes, r.time, r.bound,
                 r.registers, r.on_chip, "; ".join(r.notes))
                for r in summary.kernels
            ],
        )
    ]  # fmt: skip
    if summary.kernels_hidden:
        parts.append(f"… {escape(summary.kernels_hidden)}")
    parts.append(
        table(
            ("", "kernels:", "launches:", "bytes:", "time:", ""),
            [(r.name, r.kernels, r.launches, r.bytes, r.time, r.remark) for r in summary.totals],
        )
    )
    if summary.saved:
        parts.append(escape(summary.saved))
    return parts


def explain_markdown(document: KernelDocument) -> str:
    """The explanation of one kernel."""
    kernel = document.kernel
    parts = [
        f"**{escape(explain_headline(document))}**",
        f"Ops: {escape(', '.join(kernel.ops))}",
        table(("account", "value:", "provenance", "derivation"), account_rows(document)),
    ]
    if has_schedule(kernel):
        parts.append(f"Schedule: {schedule_words(kernel)}")
        parts.append(table(("axis", "size:", "treatment"), axis_rows(kernel.schedule)))
    parts.append(table(("clock", "time:", ""), clock_rows(kernel, document.device)))
    parts += [
        "\n".join(
            [
                f"- **{verdict.choice}** {escape(edge_words(verdict))}",
                *(f"  - {escape(line)}" for line in verdict_lines(verdict)),
            ]
        )
        for verdict in document.verdicts
    ]
    parts += solved_words(document)
    return "\n\n".join(parts) + "\n"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a title that ends in `:` puts its column on the right."""
    lines = [
        [title.removesuffix(":") for title in titles],
        ["---:" if title.endswith(":") else "---" for title in titles],
        *([escape(cell) for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Text in which Markdown's signs stand for themselves."""
    return printable(text).translate(_ESCAPES)
