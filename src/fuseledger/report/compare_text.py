"""The reports of a comparison, in text and in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseledger.report.compare import TITLES
from fuseledger.report.figures import bytes_words, time_words, times
from fuseledger.report.layout import Column, Page, Row
from fuseledger.report.markdown import escape, table

if TYPE_CHECKING:
    from fuseledger.report.compare import CompareDocument, PeerKernelPart, PeerPart

OUR_CLOCK = ("our clock", "our clock on its ops")
"""Origins of a time that need no word of their own: the rule, said once."""
MOST_DIFFERENCES = 12
"""Differences shown; the JSON has all of them."""

_TOTALS = (
    Column("plan", style="bold"), Column("launches", "right"), Column("bytes", "right"),
    Column("of floor", "right"), Column("time", "right"), Column("planned in", "right"),
)  # fmt: skip
_KERNELS = (
    Column("#", "right", style="dim"), Column("kernel", wraps=True), Column("kind", style="dim"),
    Column("ops", wraps=True, style="bold"), Column("bytes", "right"), Column("time", "right"),
)  # fmt: skip
_DIFFERENCES = (
    Column("tensor", wraps=True), Column("fused by", wraps=True), Column("cut by", wraps=True),
    Column("account"), Column("why", wraps=True),
)  # fmt: skip

Cells = tuple[str, ...]


def compare_text(document: CompareDocument, page: Page, *, everything: bool = False) -> str:
    """The comparison, written on an empty page."""
    page.line(document.headline, "bold")
    page.blank()
    page.table(_TOTALS, [Row(_totals(document, p), p.reason or "") for p in document.peers])
    if document.ops:
        page.blank()
        page.table(_alignment_columns(document), [Row(row) for row in _alignment(document)])
    for peer in document.peers:
        if not peer.kernels:
            continue
        page.blank()
        page.line(title(peer), "bold")
        page.table(_KERNELS, [Row(cells, note, "dim") for cells, note in _kernels(peer)])
    shown = _shown(document, everything)
    if shown:
        page.blank()
        page.table(_DIFFERENCES, [Row(row) for row in shown])
        _hidden(document, shown, page)
    page.blank()
    page.fields(_fields(document))
    return page.text()


def compare_markdown(document: CompareDocument, *, everything: bool = False) -> str:
    """The comparison in Markdown."""
    parts = [
        f"**{escape(document.headline)}**",
        table(
            ("plan", "launches:", "bytes:", "of floor:", "time:", "planned in:", ""),
            [(*_totals(document, peer), peer.reason or "") for peer in document.peers],
        ),
    ]
    if document.ops:
        parts.append(table([c.title for c in _alignment_columns(document)], _alignment(document)))
    for peer in document.peers:
        if peer.kernels:
            rows = [(*cells, note) for cells, note in _kernels(peer)]
            parts += [
                f"### {escape(title(peer))}",
                table(("#:", "kernel", "kind", "ops", "bytes:", "time:", "notes"), rows),
            ]
    shown = _shown(document, everything)
    if shown:
        parts.append(table([column.title for column in _DIFFERENCES], shown))
    parts.append("\n".join(f"- {name}: {escape(words)}" for name, words in _fields(document)))
    return "\n\n".join(parts) + "\n"


def title(peer: PeerPart) -> str:
    """The system and its version."""
    return f"{TITLES[peer.name]} {peer.version}" if peer.version else TITLES[peer.name]


def _totals(document: CompareDocument, peer: PeerPart) -> Cells:
    if peer.bytes is None or peer.time_us is None:
        return (title(peer), peer.status, "–", "–", "–", "–")
    return (
        title(peer), f"{peer.launches:,}", bytes_words(peer.bytes),
        times(peer.bytes, document.floor_bytes), time_words(peer.time_us), f"{peer.seconds:.2f} s",
    )  # fmt: skip


def _alignment_columns(document: CompareDocument) -> tuple[Column, ...]:
    names = [TITLES[peer.name] for peer in document.peers if peer.kernels]
    return (Column("op", wraps=True, style="bold"), *(Column(name, "right") for name in names))


def _alignment(document: CompareDocument) -> list[Cells]:
    """For each op the number of the kernel that computes it in each plan; equal rows as one."""
    homes = [
        {op: f"k{number}" for number, k in enumerate(peer.kernels, start=1) for op in k.ops}
        for peer in document.peers
        if peer.kernels
    ]
    rows: list[tuple[list[str], Cells]] = []
    for op in document.ops:
        cells = tuple(home.get(op, "–") for home in homes)
        if rows and rows[-1][1] == cells:
            rows[-1][0].append(op)
        else:
            rows.append(([op], cells))
    return [(" + ".join(ops), *cells) for ops, cells in rows]


def _kernels(peer: PeerPart) -> list[tuple[Cells, str]]:
    return [
        (
            (
                str(number), kernel.name, kernel.kind, " + ".join(kernel.ops) or "–",
                bytes_words(kernel.bytes), time_words(kernel.time_us),
            ),
            _note(kernel),
        )
        for number, kernel in enumerate(peer.kernels, start=1)
    ]  # fmt: skip


def _note(kernel: PeerKernelPart) -> str:
    """What the figures do not say: compiled resources, the setting, where the time is from."""
    words: list[str] = []
    if kernel.compiled is not None:
        made = kernel.compiled
        spills = f"{made.spilled_bytes} B spilled" if made.spilled_bytes else "no spills"
        words.append(f"compiled: {made.registers} registers a thread, {spills}")
    if kernel.config is not None and kernel.config != kernel.kind:
        words.append(kernel.config)
    if kernel.provenance not in OUR_CLOCK:
        words.append(f"time: {kernel.provenance}")
    return "; ".join(words)


def _shown(document: CompareDocument, everything: bool) -> list[Cells]:
    most = sorted(document.differences, key=lambda each: -each.bytes)
    return [
        (
            f"{each.tensor} ({bytes_words(each.bytes)})",
            ", ".join(TITLES[name] for name in each.fused_by),
            ", ".join(TITLES[name] for name in each.cut_by), each.account, each.reason,
        )
        for each in (most if everything else most[:MOST_DIFFERENCES])
    ]  # fmt: skip


def _hidden(document: CompareDocument, shown: list[Cells], page: Page) -> None:
    more = len(document.differences) - len(shown)
    if more:
        page.line(f"… {more} smaller differences: --all shows them", "dim")


def _fields(document: CompareDocument) -> list[tuple[str, str]]:
    """What a reader should know of the figures."""
    fields = [
        ("device", document.device.title),
        ("floor", bytes_words(document.floor_bytes)),
        ("bytes", "each kernel's buffers once each way, as each system counts its own kernels"),
        ("time", "modelled, by our clock on the ops of each kernel unless a row says otherwise"),
    ]
    for peer in document.peers:
        fields += [("left out", f"{TITLES[peer.name]}: {part}") for part in peer.left_out]
        fields += [("note", f"{TITLES[peer.name]}: {note}") for note in peer.notes]
    return fields
