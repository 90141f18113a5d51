"""The two reference exercises in JSON, text and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from fuseledger import __version__
from fuseledger.planner.compare import CutComparison
from fuseledger.report.build import difference_part
from fuseledger.report.decision import DecideDocument, on_chip
from fuseledger.report.document import DifferencePart, Part
from fuseledger.report.layout import Column, Page, Row
from fuseledger.report.markdown import escape, table

CHAIN_SCHEMA = "fuseledger/textbook-chain@1"
LEDGER_SCHEMA = "fuseledger/textbook-ledger@1"


class ChainCutPart(Part, frozen=True, kw_only=True):
    """One cut in figures; `time_by_account` adds up to `time_us`."""

    cut: str
    bytes: int
    launches: int
    peak_registers: int
    time_us: float
    time_by_account: dict[str, float]


class ChainPart(Part, frozen=True, kw_only=True):
    """One chain under several cuts."""

    title: str
    cuts: list[ChainCutPart]
    best: list[int]
    """The best of all cuts, listed or not."""
    best_time_us: float
    differences: list[DifferencePart]
    notes: list[str]


class ChainDocument(Part, frozen=True, kw_only=True):
    """All that the chain exercise's reports say."""

    schema: Literal["fuseledger/textbook-chain@1"] = CHAIN_SCHEMA
    version: str
    device: str
    chains: list[ChainPart]


class LedgerDocument(Part, frozen=True, kw_only=True):
    """All that the reports of the six decisions say."""

    schema: Literal["fuseledger/textbook-ledger@1"] = LEDGER_SCHEMA
    version: str
    decisions: list[DecideDocument]


def chain_part(
    title: str, comparison: CutComparison, best: list[int], best_time_us: float,
    notes: Sequence[str] = (),
) -> ChainPart:  # fmt: skip
    """The document's part for one chain."""
    return ChainPart(
        title=title, best=best, best_time_us=best_time_us, notes=[*comparison.notes, *notes],
        cuts=[
            ChainCutPart(
                cut=row.cut, bytes=row.bytes, launches=row.launches,
                peak_registers=row.peak_registers, time_us=row.time_us,
                time_by_account=row.time_by_account,
            )
            for row in comparison.rows
        ],
        differences=[difference_part(each) for each in comparison.differences],
    )  # fmt: skip


def chain_document(device: str, chains: Sequence[ChainPart]) -> ChainDocument:
    """The document of the chain exercise."""
    return ChainDocument(version=__version__, device=device, chains=list(chains))


def ledger_document(decisions: Sequence[DecideDocument]) -> LedgerDocument:
    """The document of the six decisions."""
    return LedgerDocument(version=__version__, decisions=list(decisions))


def chain_text(document: ChainDocument, page: Page) -> None:
    """The exercise's tables, written on a page."""
    for number, chain in enumerate(document.chains):
        if number:
            page.blank()
        page.line(chain.title, "bold")
        page.table(_CUT, [Row(row) for row in _cut_rows(chain)], indent=2)
        for words in _chain_words(chain):
            page.table((Column(wraps=True),), [Row((words,))], indent=2)


def chain_markdown(document: ChainDocument) -> str:
    """The exercise's tables in Markdown."""
    parts: list[str] = []
    for chain in document.chains:
        parts.append(f"**{escape(chain.title)}**")
        parts.append(
            table(("cut", "bytes:", "launches:", "peak registers:", "time:"), _cut_rows(chain))
        )
        parts.append("\n".join(f"- {escape(words)}" for words in _chain_words(chain)))
    return "\n\n".join(parts) + "\n"


def ledger_text(document: LedgerDocument, page: Page) -> None:
    """The six decisions: their table, and how each figure comes about."""
    page.table(
        _DECISION, [Row(row[:-1], row[-1], note_style="green") for row in decision_rows(document)]
    )
    page.blank()
    page.line("A and B in figures, and how they come about", "bold")
    for decision in document.decisions:
        page.line(decision.title, "cyan")
        page.table(
            (Column(style="dim"), Column(wraps=True)),
            [Row((name, words)) for name, words in _derivations(decision)], indent=2,
        )  # fmt: skip


def ledger_markdown(document: LedgerDocument) -> str:
    """The six decisions in Markdown."""
    titles = (
        "decision", "A MB:", "B MB:", "A grid:", "B grid:", "on chip A / B KB:", "budget KB:",
        "winner, deciding account",
    )  # fmt: skip
    parts = [table(titles, decision_rows(document))]
    for decision in document.decisions:
        lines = [f"- {escape(name)}: {escape(words)}" for name, words in _derivations(decision)]
        parts.append("\n".join([f"**{escape(decision.title)}**", "", *lines]))
    return "\n\n".join(parts) + "\n"


def exact_time(time_us: float) -> str:
    """A time to the exercise's digits: 80.8 µs, 3.445 ms."""
    return f"{time_us / 1000:,.3f} ms" if time_us >= 1000 else f"{time_us:.1f} µs"


_CUT = (
    Column("cut", style="bold"), Column("bytes", "right"), Column("launches", "right"),
    Column("peak registers", "right"), Column("time", "right"),
)  # fmt: skip
_DECISION = (
    Column("decision", wraps=True, style="bold"), Column("A MB", "right"), Column("B MB", "right"),
    Column("A grid", "right"), Column("B grid", "right"), Column("on chip A / B KB", "right"),
    Column("budget KB", "right"),
)  # fmt: skip


def _cut_rows(chain: ChainPart) -> list[tuple[str, ...]]:
    return [
        (
            row.cut,
            f"{row.bytes:,}",
            str(row.launches),
            f"{row.peak_registers:,}",
            exact_time(row.time_us),
        )
        for row in chain.cuts
    ]


def _chain_words(chain: ChainPart) -> list[str]:
    best = f"[{','.join(map(str, chain.best))}]"
    count = 1 << (sum(chain.best) - 1)
    return [
        f"best of all {count:,} cuts: {best}, {exact_time(chain.best_time_us)}",
        *(difference.sentence for difference in chain.differences),
        *chain.notes,
    ]


def decision_rows(document: LedgerDocument) -> list[tuple[str, ...]]:
    """The exercise's table: decision, A and B MB, grids, on chip, budget, winner and account."""
    rows: list[tuple[str, ...]] = []
    for decision in document.decisions:
        a, b = decision.options
        room = a.capacity_limit_bytes
        rows.append(
            (
                f"{decision.title}: {a.name} / {b.name}",
                f"{a.bytes / 1e6:.1f}", f"{b.bytes / 1e6:.1f}", str(a.grid), str(b.grid),
                f"{a.on_chip_bytes / 1024:.1f} / {b.on_chip_bytes / 1024:.1f}",
                "–" if room is None else f"{room / 1024:.0f}", _winner(decision),
            )
        )  # fmt: skip
    return rows


def _winner(decision: DecideDocument) -> str:
    """`fused: saves 67.1 MB = 14.91 µs`, `split-K=8: parallelism, pays +67.1 MB`."""
    verdict = decision.verdict
    if verdict.winner is None:
        return f"neither: {verdict.account}"
    if verdict.account == "traffic":
        saved = f"saves {verdict.saved_bytes / 1e6:.1f} MB = {verdict.saved_us:.2f} µs"
        return f"{verdict.winner}: {saved}"
    paid = f", pays +{verdict.paid_bytes / 1e6:.1f} MB" if verdict.paid_bytes else ""
    return f"{verdict.winner}: {verdict.account}{paid}"


def _derivations(decision: DecideDocument) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for letter, option in zip("AB", decision.options, strict=True):
        accounts = option.accounts
        rows.append((letter, f"{option.name}: {accounts['traffic'].derivation}"))
        rows.append((f"{letter} grid", accounts["parallelism"].derivation))
        rows.append(
            (f"{letter} on chip", f"{on_chip(option)} KB: {accounts['capacity'].derivation}")
        )
    if decision.verdict.disagreement is not None:
        rows.append(("clock", decision.verdict.disagreement))
    return rows


def textbook_json(document: ChainDocument | LedgerDocument) -> str:
    """Indented JSON with a final line break."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
