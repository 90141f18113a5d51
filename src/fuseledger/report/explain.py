"""One kernel explained: its accounts, its schedule, the clock's sum, and its edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fuseledger.ledger.account import ACCOUNTS, format_count
from fuseledger.ledger.kernel import MERGES
from fuseledger.report.document import L2_BANDWIDTH
from fuseledger.report.figures import (
    BOUNDS,
    account_value,
    axis_words,
    bytes_words,
    has_schedule,
    label_words,
    plural,
    realisation_words,
    time_words,
    unpriced_bytes,
)
from fuseledger.report.layout import Column, Page, Row
from fuseledger.verdict.edges import SOLVED

if TYPE_CHECKING:
    from fuseledger.report.document import (
        AccountPart,
        DevicePart,
        KernelDocument,
        KernelPart,
        SchedulePart,
        TimePart,
        VerdictPart,
    )

_ACCOUNT = (
    Column(style="bold"), Column(side="right"), Column(style="dim"), Column(wraps=True),
)  # fmt: skip
_AXIS = (Column(style="bold"), Column(side="right"), Column(wraps=True))
_CLOCK = (Column(style="bold"), Column(side="right"), Column(wraps=True, style="dim"))
_EDGE = (Column(style="cyan"), Column(wraps=True))


def explain_headline(document: KernelDocument) -> str:
    """Which kernel, what it moves, how long it takes and what it waits for."""
    kernel = document.kernel
    return (
        f"kernel {document.number} of {document.kernels}, {label_words(kernel.label)}: "
        f"{bytes_words(kernel.accounts.traffic.value)}, {time_words(kernel.time_us)}, "
        f"bound by {BOUNDS.get(kernel.time.bound, kernel.time.bound)} on {document.device.name}"
    )


def explain_text(document: KernelDocument, page: Page) -> str:
    """The explanation of one kernel, written on an empty page."""
    kernel = document.kernel
    page.line(explain_headline(document), "bold")
    page.line(f"ops: {', '.join(kernel.ops)}")
    page.blank()
    page.line("accounts", "bold")
    page.table(_ACCOUNT, [Row(row) for row in account_rows(document)], indent=2)
    page.blank()
    if has_schedule(kernel):
        page.line(f"schedule: {schedule_words(kernel)}", "bold")
        page.table(_AXIS, [Row(row) for row in axis_rows(kernel.schedule)], indent=2)
        page.blank()
    if kernel.realisation.core is not None:
        page.line(f"realised: {_realised(kernel)}", "bold")
        page.blank()
    page.line(clock_title(kernel.time), "bold")
    page.table(_CLOCK, [Row(row) for row in clock_rows(kernel, document.device)], indent=2)
    if document.verdicts:
        page.blank()
        page.line("edges", "bold")
        rows = [
            row
            for verdict in document.verdicts
            for row in (
                Row((verdict.choice, edge_words(verdict))),
                *(Row(("", line)) for line in verdict_lines(verdict)),
            )
        ]
        page.table(_EDGE, rows, indent=2)
        for sentence in solved_words(document):
            page.line(sentence, "dim")
    return page.text()


def solved_words(document: KernelDocument) -> tuple[str, ...]:
    """On which of very many edges flip points were searched for."""
    if len(document.verdicts) <= SOLVED:
        return ()
    return (f"sizes and bandwidths: solved for on the {SOLVED} edges nearest to a change",)


def _realised(kernel: KernelPart) -> str:
    """Library or generated, and the share of the peak that its product is priced at."""
    words, share = realisation_words(kernel.realisation), kernel.realisation.peak_share
    if share is None:
        return words
    if kernel.realisation.padding >= 1.005:
        words = f"{words}, its tiles padded by {kernel.realisation.padding - 1:.0%}"
    if share == 1.0:  # what a device has that states none: see `Device.library_share`
        return f"{words}, at all of the peak: what is reached of it was not measured"
    return f"{words}, at {share:.0%} of the peak"


def account_rows(document: KernelDocument) -> list[tuple[str, str, str, str]]:
    """Account, value and limit, provenance, derivation; a veto where there is one."""
    rows: list[tuple[str, str, str, str]] = []
    for name in ACCOUNTS:
        account: AccountPart = getattr(document.kernel.accounts, name)
        words = (
            f"{account.derivation}; veto: {account.veto}" if account.veto else account.derivation
        )
        rows.append((name, account_value(name, account), account.provenance, words))
    return rows


def schedule_words(kernel: KernelPart) -> str:
    """Blocks, warps, the pipeline of a product, and walks."""
    schedule = kernel.schedule
    words = f"{plural(schedule.blocks, 'block')} of {plural(schedule.warps, 'warp')}"
    if kernel.realisation.core is not None:
        words += f", {schedule.stages} pipeline stages of {schedule.step_bytes} B"
    if schedule.walks > 1:
        words += f", {schedule.walks} walks over what is read again"
    if schedule.merge is not None:
        words += f"; parts are {MERGES[schedule.merge]}"
    return words


def axis_rows(schedule: SchedulePart) -> list[tuple[str, str, str]]:
    """Axis, size, and what becomes of it."""
    return [
        (a.name, format_count(a.size), axis_words(a.treatment, a.size, a.tile))
        for a in schedule.axes
    ]


def clock_title(time: TimePart) -> str:
    """The sum that makes the kernel's time, with what it has."""
    parts = ["launch", "the slowest resource", "latency"]
    parts += [name for name, us in _added(time) if us]
    return f"clock: {' + '.join(parts)}"


def _added(time: TimePart) -> tuple[tuple[str, float], ...]:
    """What only some kernels have besides."""
    return ("combine", time.combine_us), ("layout", time.layout_us), ("spills", time.spill_us)


def clock_rows(kernel: KernelPart, device: DevicePart) -> list[tuple[str, str, str]]:
    """The clock's terms; of the resources the slowest one counts."""
    time = kernel.time
    slowest = max(time.terms, key=lambda term: term.time_us, default=None)
    rows = [("launch", time_words(time.launch_us), "counts")]
    rows += [
        (BOUNDS.get(t.name, t.name), time_words(t.time_us),
         "the slowest: counts" if t is slowest else "hidden behind it")
        for t in sorted(time.terms, key=lambda term: -term.time_us)
    ]  # fmt: skip
    if again := unpriced_bytes(device, kernel):
        missing = f"not priced, {bytes_words(again)} loaded again: no {L2_BANDWIDTH}"
        rows.append((BOUNDS["l2"], "–", missing))
    rows.append(("latency", time_words(time.latency_us), "counts"))
    rows += [(name, time_words(us), "counts") for name, us in _added(time) if us]
    return [*rows, ("total", time_words(kernel.time_us), "")]


def edge_words(verdict: VerdictPart) -> str:
    """The ops at both ends of an edge, and its tensor."""
    edge = verdict.edge
    return f"{edge.producer} → {', '.join(edge.consumers)} ({edge.tensor})"


def verdict_lines(verdict: VerdictPart) -> list[str]:
    """Account and reason, what the other choice would cost, where the verdict flips."""
    other = "cut" if verdict.choice == "fused" else "fused"
    delta = verdict.runner_up
    if delta.bytes_delta is None:
        price = f"{other}: impossible"
    else:
        moved = _more(bytes_words, delta.bytes_delta)
        longer = "does not fit"
        if delta.time_delta_us is not None:
            longer = _more(time_words, delta.time_delta_us)
        price = f"{other}: {moved}, {longer}"
    return [
        f"{verdict.account}: {verdict.reason}",
        price,
        *([f"rule: {verdict.rule}"] if verdict.rule != verdict.choice else []),
        *([f"clock against rule: {verdict.disagreement}"] if verdict.disagreement else []),
        *([f"proposal: {verdict.proposal}"] if verdict.proposal else []),
        *(f"flips: {flip}" for flip in verdict.flips),
    ]


def _more(words: Callable[[float], str], delta: float) -> str:
    return f"{'−' if delta < 0 else '+'}{words(abs(delta))}"
