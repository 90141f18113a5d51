"""A decision in JSON (`fuseledger/decide@1`), text and Markdown; text and Markdown read the JSON's
document and nothing else."""

from __future__ import annotations

from typing import Literal

import msgspec

from fuseledger import __version__
from fuseledger.ledger.account import Account, format_bytes, format_kib, format_time
from fuseledger.report.document import AccountPart, Number, Part
from fuseledger.report.layout import Column, Page, Row
from fuseledger.report.markdown import escape, table
from fuseledger.verdict.options import Decision

SCHEMA = "fuseledger/decide@1"


class MachinePart(Part, frozen=True, kw_only=True):
    """The device, and the two of its figures that the rule uses."""

    name: str
    sm_count: int | None
    bandwidth_gbs: float | None


class OptionPart(Part, frozen=True, kw_only=True):
    """One option and how it stands."""

    name: str
    bytes: int
    grid: int
    on_chip_bytes: int
    capacity_limit_bytes: int | None
    launches: int
    time_us: float | None
    fits: bool
    fills: bool
    provenance: str
    time_provenance: str
    accounts: dict[str, AccountPart]


class FlipPart(Part, frozen=True, kw_only=True):
    """A figure, and the nearest value at which the verdict changes."""

    figure: str
    value: Number
    unit: str
    now: Number
    becomes: str
    sentence: str


class DecisionVerdictPart(Part, frozen=True, kw_only=True):
    """The rule's verdict and the clock's opinion."""

    choice: str
    winner: str | None
    account: str
    reason: str
    saved_bytes: int
    saved_us: float
    paid_bytes: int
    paid_us: float
    clock_choice: str | None
    disagreement: str | None
    proposal: str | None
    flips: list[FlipPart]
    warnings: list[str]


class DecideDocument(Part, frozen=True, kw_only=True):
    """All that a decision's reports say."""

    schema: Literal["fuseledger/decide@1"] = SCHEMA
    version: str
    title: str
    device: MachinePart
    options: list[OptionPart]
    verdict: DecisionVerdictPart
    notes: list[str]


def decide_document(decision: Decision) -> DecideDocument:
    """The document of a decision."""
    device, verdict = decision.device, decision.verdict
    return DecideDocument(
        version=__version__, title=decision.title,
        device=MachinePart(
            name=device.name, sm_count=device.sm_count, bandwidth_gbs=device.stream_gbs
        ),
        options=[
            OptionPart(
                name=o.name, bytes=o.bytes, grid=o.grid, on_chip_bytes=o.on_chip_bytes,
                capacity_limit_bytes=o.capacity_limit_bytes, launches=o.launches, time_us=o.time_us,
                fits=o.fits, fills=o.fills(device.sm_count), provenance=o.provenance,
                time_provenance=o.time_provenance,
                accounts={name: _account(each) for name, each in o.accounts.items()},
            )
            for o in decision.options
        ],
        verdict=DecisionVerdictPart(
            choice=verdict.choice, winner=verdict.winner, account=verdict.account,
            reason=verdict.reason, saved_bytes=verdict.saved_bytes, saved_us=verdict.saved_us,
            paid_bytes=verdict.paid_bytes, paid_us=verdict.paid_us,
            clock_choice=verdict.clock_choice, disagreement=verdict.disagreement,
            proposal=verdict.proposal,
            flips=[
                FlipPart(figure=f.figure, value=f.value, unit=f.unit, now=f.now, becomes=f.becomes,
                         sentence=f.sentence)
                for f in verdict.flips
            ],
            warnings=list(verdict.warnings),
        ),
        notes=list(decision.notes),
    )  # fmt: skip


def decision_json(document: msgspec.Struct) -> str:
    """Indented JSON with a final line break."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def decision_text(document: DecideDocument, page: Page) -> None:
    """The decision, written on a page."""
    page.line(headline(document), "bold")
    page.blank()
    page.table(_OPTION, [Row(row[:-1], row[-1]) for row in _rows(document)])
    page.blank()
    page.fields(_facts(document))
    page.blank()
    page.line("accounts", "bold")
    for option in document.options:
        page.line(option.name, "cyan")
        page.table(_ACCOUNT, [Row(row) for row in account_rows(option)], indent=2)
    if document.verdict.flips:
        page.blank()
        page.line("flips", "bold")
        page.table(_FLIP, [Row((f.figure, f.sentence)) for f in document.verdict.flips], indent=2)


def decision_markdown(document: DecideDocument) -> str:
    """The decision for pull requests and issues."""
    parts = [
        f"**{escape(headline(document))}**",
        table(
            ("option", "bytes:", "grid:", "on chip / room KB:", "launches:", "time:", "veto"),
            _rows(document),
        ),
        "\n".join(f"- **{name}**: {escape(words)}" for name, words in _facts(document)),
    ]
    for option in document.options:
        parts.append(f"### {escape(option.name)}")
        parts.append(table(("account", "value:", "derivation"), account_rows(option)))
    if document.verdict.flips:
        parts.append("\n".join(f"- {escape(flip.sentence)}" for flip in document.verdict.flips))
    return "\n\n".join(parts) + "\n"


def headline(document: DecideDocument) -> str:
    """What was decided: `skinny GEMM: split, by parallelism`."""
    verdict = document.verdict
    chosen = verdict.choice if verdict.winner is None else verdict.winner
    also = f" ({verdict.choice})" if verdict.choice not in (chosen, "neither") else ""
    return f"{document.title}: {chosen}{also}, by {verdict.account}"


def machine_words(machine: MachinePart) -> str:
    """`h100-sxm, 4,502.4 GB/s, 132 SMs`."""
    parts = [machine.name]
    if machine.bandwidth_gbs is not None:
        parts.append(f"{machine.bandwidth_gbs:,.1f} GB/s")
    if machine.sm_count is not None:
        parts.append(f"{machine.sm_count:,} SMs")
    return ", ".join(parts)


def account_rows(option: OptionPart) -> list[tuple[str, str, str]]:
    """(account, value, derivation and provenance) of the accounts that the rule looks at."""
    shown = {
        "traffic": format_bytes,
        "launches": _count,
        "capacity": format_kib,
        "parallelism": _count,
    }
    rows: list[tuple[str, str, str]] = []
    for name, show in shown.items():
        account = option.accounts.get(name)
        if account is not None:
            words = f"{account.derivation} ({account.provenance})"
            rows.append((name, show(account.value), words))
    return rows


_OPTION = (
    Column("option", wraps=True, style="bold"), Column("bytes", "right"), Column("grid", "right"),
    Column("on chip / room KB", "right"), Column("launches", "right"), Column("time", "right"),
)  # fmt: skip
_ACCOUNT = (Column(style="dim"), Column(side="right"), Column(wraps=True))
_FLIP = (Column(style="dim", wraps=True), Column(wraps=True))


def _rows(document: DecideDocument) -> list[tuple[str, ...]]:
    """A row per option; its last cell says what vetoes it."""
    return [
        (
            option.name, format_bytes(option.bytes), f"{option.grid:,}", on_chip(option),
            str(option.launches), "–" if option.time_us is None else format_time(option.time_us),
            _veto(option, document.device.sm_count),
        )
        for option in document.options
    ]  # fmt: skip


def on_chip(option: OptionPart) -> str:
    """Held by a block against its room, in KB."""
    room = option.capacity_limit_bytes
    limit = "–" if room is None else f"{room / 1024:.0f}"
    return f"{option.on_chip_bytes / 1024:.1f} / {limit}"


def _veto(option: OptionPart, sm_count: int | None) -> str:
    parts: list[str] = []
    if not option.fits:
        parts.append("capacity: does not fit on chip")
    if not option.fills:
        idle = (sm_count or 0) - option.grid
        parts.append(f"parallelism: leaves {idle:,} of {sm_count:,} SMs idle")
    return "; ".join(parts)


def _facts(document: DecideDocument) -> list[tuple[str, str]]:
    verdict = document.verdict
    facts = [("verdict", verdict.reason)]
    if verdict.proposal is not None:
        facts.append(("usable", verdict.proposal))
    if verdict.disagreement is not None:
        facts.append(("clock", f"disagrees: {verdict.disagreement}"))
    elif verdict.clock_choice is not None:
        facts.append(("clock", f"agrees: {verdict.clock_choice} is fastest"))
    facts += [("warning", warning) for warning in verdict.warnings]
    facts += [("note", note) for note in document.notes]
    return [*facts, ("device", machine_words(document.device))]


def _account(account: Account) -> AccountPart:
    return AccountPart(
        value=account.value, unit=account.unit, derivation=account.derivation,
        provenance=account.provenance, limit=account.limit, veto=account.veto,
    )  # fmt: skip


def _count(value: float) -> str:
    return f"{value:,.0f}"
