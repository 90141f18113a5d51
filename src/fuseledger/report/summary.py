"""A plan's document as rows of words, which text and Markdown set in their own ways."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from fuseledger.ledger.account import format_bytes, format_count, format_kib
from fuseledger.report.document import L2_BANDWIDTH
from fuseledger.report.error_words import error_words
from fuseledger.report.figures import (
    SHORT_BOUNDS,
    bytes_in_one_unit,
    bytes_words,
    grid_words,
    has_schedule,
    kernel_notes,
    label_words,
    plural,
    time_words,
    times,
    times_in_one_unit,
    unpriced_bytes,
)

if TYPE_CHECKING:
    from fuseledger.report.document import AccountPart, KernelPart, PlanDocument, VerdictPart

GROUP_FROM = 16
"""Plans of more kernels than this show equal kernels once."""
STAYS = " stays on chip: "
"""In a verdict's reason, what parts the tensor from what its fusion saves."""
ROWS_MAX = 32
"""Rows of kernels, and of cuts, shown by default."""


class KernelRow(Struct, frozen=True, kw_only=True):
    """One kernel, or several equal ones."""

    number: int
    """Of the first of them, counted from 1."""
    count: int
    label: str
    grid: str
    bytes: str
    time: str
    bound: str
    registers: str
    on_chip: str
    notes: tuple[str, ...]
    total_us: float


class TotalRow(Struct, frozen=True, kw_only=True):
    """Sums of the plan, or of what it is compared with."""

    name: str
    kernels: str = ""
    launches: str = ""
    bytes: str
    time: str = ""
    remark: str = ""


class EdgeRow(Struct, frozen=True, kw_only=True):
    """Two kernels that one might be, or two ops that are one; or several equal pairs."""

    count: int
    between: str
    """Kernel numbers, `2 → 3`; where fused, op names."""
    tensors: tuple[str, ...]
    """What the first of them writes for the other."""
    account: str
    reason: str
    flips: tuple[str, ...]


class Summary(Struct, frozen=True, kw_only=True):
    """Everything that a report of a plan says, in order."""

    headline: str
    warning: str | None
    """Which kernels do not fit the device."""
    comparison: tuple[tuple[str, ...], ...]
    """Rows of cut, kernels, bytes, launches, time, most registers, vetoes."""
    differences: tuple[str, ...]
    """What each further cut saves against the first, and what several cuts share."""
    kernels: tuple[KernelRow, ...]
    kernels_hidden: str | None
    totals: tuple[TotalRow, ...]
    saved: str | None
    """The time saved against one kernel an op, by account; None where nothing is fused."""
    cuts: tuple[EdgeRow, ...]
    cuts_hidden: str | None
    fused: tuple[EdgeRow, ...]
    """Why the ops share a kernel, in a plan without a cut."""
    barriers: str | None
    notes: tuple[str, ...]
    evidence: tuple[tuple[str, str], ...]
    """(word, sentence): what was compiled, what that changed, what has no evidence."""
    error: str | None
    """How far off the times of such graphs were; None where the user declared the accounts."""
    status: str


def summarise(document: PlanDocument, *, everything: bool = False) -> Summary:
    """The rows of a plan's report; `everything` neither groups equal rows nor leaves any out."""
    kernels, hidden = _kernel_rows(document, everything)
    cuts, cuts_hidden = _cut_rows(document, everything)
    return Summary(
        headline=headline(document),
        warning=_warning(document),
        comparison=_comparison(document),
        differences=(*(each.sentence for each in document.differences), *document.shared),
        kernels=kernels,
        kernels_hidden=hidden,
        totals=_totals(document),
        saved=document.saved.sentence if document.saved.saved_by_account else None,
        cuts=cuts,
        cuts_hidden=cuts_hidden,
        fused=() if cuts else _fused_rows(document),
        barriers=_barriers(document),
        notes=(*document.graph.notes, *_unpriced(document)),
        evidence=tuple(_evidence(document)),
        error=error_words(document),
        status=_status(document),
    )


def headline(document: PlanDocument) -> str:
    """The verdict in one line: kernels, bytes and time against one kernel an op."""
    plan, base = document.plan.totals, document.baseline
    if not plan.kernels:
        return (
            "no kernel: nothing is computed, every result is an input or a weight, or a view of one"
        )
    unit, (moved, unfused, floor) = bytes_in_one_unit(
        plan.bytes, base.bytes, document.graph.floor_bytes
    )
    time_unit, (fast, slow) = times_in_one_unit(plan.time_us, base.time_us)
    where = f"on {document.device.name}"
    if (plan.kernels, plan.bytes) == (base.kernels, base.bytes):
        kernels = plural(plan.kernels, "kernel")
        return f"{kernels}, one an op: {moved} {unit} (floor {floor}), {fast} {time_unit} {where}"
    return (
        f"{plural(plan.kernels, 'kernel')} instead of {base.kernels:,}: "
        f"{moved} {unit} instead of {unfused} (floor {floor}), "
        f"{fast} {time_unit} instead of {slow} {where}"
    )


def _warning(document: PlanDocument) -> str | None:
    kernels = document.plan.kernels
    vetoed = [i for i, kernel in enumerate(kernels, 1) if kernel.accounts.capacity.veto]
    if not vetoed:
        return None
    numbers = f"{', '.join(map(str, vetoed[:8]))}{', …' if len(vetoed) > 8 else ''}"
    noun = "kernel" if len(vetoed) == 1 else "kernels"
    words = f"not usable as it stands: {noun} {numbers} cannot hold on chip what must be held"
    name = kernels[vetoed[0] - 1].name
    proposals = (v.proposal for v in document.verdicts if v.kernels == [name] and v.proposal)
    proposal = next(proposals, None)
    return f"{words}; usable: {proposal}" if proposal else words


def _comparison(document: PlanDocument) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            f"[{','.join(map(str, each.cut))}]", format_count(each.totals.bytes),
            format_count(each.totals.launches), time_words(each.totals.time_us),
            format_count(each.registers) if each.registers else "–", "; ".join(each.vetoes),
        )
        for each in document.cuts
    )  # fmt: skip


def _kernel_rows(
    document: PlanDocument, everything: bool
) -> tuple[tuple[KernelRow, ...], str | None]:
    kernels = document.plan.kernels
    grouped = len(kernels) > GROUP_FROM and not everything
    groups = _grouped(range(len(kernels)), lambda i: _kind(kernels[i]) if grouped else i)
    rows = [_kernel_row(kernels[members[0]], members) for members in groups]
    if everything or len(rows) <= ROWS_MAX:
        return tuple(rows), None
    kept = sorted(rows, key=lambda row: -row.total_us)[:ROWS_MAX]
    shown = tuple(row for row in rows if row in kept)
    left = sum(row.total_us for row in rows) - sum(row.total_us for row in shown)
    share = left / max(document.plan.totals.time_us, 1e-9)
    left_kernels = len(kernels) - sum(row.count for row in shown)
    return shown, f"{plural(left_kernels, 'quicker kernel')}, {share:.1%} of the time: --all"


def _kind(kernel: KernelPart) -> Hashable:
    """Equal for kernels whose rows differ in the names of axes alone."""
    accounts, schedule = kernel.accounts, kernel.schedule
    shown = [
        (a.treatment, 0 if a.treatment == "whole" else a.tile)
        for a in schedule.axes
        if a.treatment != "loop" and (a.treatment, a.tile) != ("grid", 1)
    ]
    return (
        kernel.label, schedule.blocks, tuple(shown), tuple(kernel_notes(kernel)),
        kernel.time.bound, round(kernel.time_us, 6),
        accounts.traffic.value, accounts.registers.value, accounts.capacity.value,
    )  # fmt: skip


def _grouped(items: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _kernel_row(kernel: KernelPart, members: list[int]) -> KernelRow:
    accounts = kernel.accounts
    is_library = kernel.realisation.call is not None
    on_chip = format_kib(accounts.capacity.value) if accounts.capacity.value else "–"
    registers = registers_words(accounts.registers) if accounts.registers.value else "–"
    grid = grid_words(kernel.schedule) if has_schedule(kernel) else "–"
    return KernelRow(
        number=members[0] + 1, count=len(members), label=label_words(kernel.label),
        grid=grid, bytes=bytes_words(accounts.traffic.value),
        time=time_words(kernel.time_us), bound=SHORT_BOUNDS.get(kernel.time.bound, "–"),
        registers="–" if is_library else registers,
        on_chip="–" if is_library else on_chip,
        notes=tuple(kernel_notes(kernel)), total_us=kernel.time_us * len(members),
    )  # fmt: skip


def _totals(document: PlanDocument) -> tuple[TotalRow, ...]:
    plan, base, floor = document.plan.totals, document.baseline, document.graph.floor_bytes
    return (
        TotalRow(
            name="plan", kernels=format_count(plan.kernels),
            launches=format_count(plan.launches), bytes=bytes_words(plan.bytes),
            time=time_words(plan.time_us),
        ),
        TotalRow(
            name="one kernel an op", kernels=format_count(base.kernels),
            launches=format_count(base.launches), bytes=bytes_words(base.bytes),
            time=time_words(base.time_us),
            remark=f"{times(base.bytes, plan.bytes)} the bytes, "
            f"{times(base.time_us, plan.time_us)} the time of the plan",
        ),
        TotalRow(
            name="floor", bytes=bytes_words(floor),
            remark=f"inputs, weights, outputs once; plan {times(plan.bytes, floor)}",
        ),
    )  # fmt: skip


def _cut_rows(document: PlanDocument, everything: bool) -> tuple[tuple[EdgeRow, ...], str | None]:
    kernels = document.plan.kernels
    place = {kernel.name: i for i, kernel in enumerate(kernels)}
    cuts = [verdict for verdict in document.verdicts if verdict.choice == "cut"]

    def same(i: int) -> Hashable:
        return (*cuts[i].kernels, cuts[i].account, cuts[i].reason)

    def alike(i: int) -> Hashable:
        return (cuts[i].account, *(_kind(kernels[place[name]]) for name in cuts[i].kernels))

    grouped = len(kernels) > GROUP_FROM and not everything
    groups = _grouped(range(len(cuts)), alike if grouped else same)
    rows = [_cut_row([cuts[i] for i in members], place) for members in groups]
    if everything or len(rows) <= ROWS_MAX:
        return tuple(rows), None
    left = sum(row.count for row in rows[ROWS_MAX:])
    return tuple(rows[:ROWS_MAX]), f"{plural(left, 'more cut')}: --all"


def _fused_rows(document: PlanDocument) -> tuple[EdgeRow, ...]:
    """A row for what one op hands to the same others, in however many tensors: they are cut as one,
    and what that costs is said once."""
    verdicts = document.verdicts

    def alike(i: int) -> Hashable:
        edge = verdicts[i].edge
        return (edge.producer, *edge.consumers, verdicts[i].account)

    groups = _grouped(range(len(verdicts)), alike)
    sizes = {tensor.name: tensor.bytes for tensor in document.graph.tensors}
    return tuple(_fused_row([verdicts[i] for i in members], sizes) for members in groups[:ROWS_MAX])


def _fused_row(verdicts: list[VerdictPart], sizes: Mapping[str, int]) -> EdgeRow:
    first, tensors = verdicts[0], tuple(verdict.edge.tensor for verdict in verdicts)
    reason = first.reason
    _, stays, saved = reason.partition(STAYS)
    if len(tensors) > 1 and stays:
        size = format_bytes(sum(sizes[name] for name in tensors))
        reason = f"{', '.join(tensors)} ({size}) stay on chip: {saved}"
    return EdgeRow(
        count=1, between=f"{first.edge.producer} → {', '.join(first.edge.consumers)}",
        tensors=tensors, account=first.account, reason=reason, flips=tuple(first.flips),
    )  # fmt: skip


def _cut_row(verdicts: list[VerdictPart], place: dict[str, int]) -> EdgeRow:
    first = verdicts[0]
    return EdgeRow(
        count=len({tuple(verdict.kernels) for verdict in verdicts}),
        between=" → ".join(str(place[name] + 1) for name in first.kernels),
        tensors=tuple(v.edge.tensor for v in verdicts if v.kernels == first.kernels),
        account=first.account, reason=first.reason, flips=tuple(first.flips),
    )  # fmt: skip


def _barriers(document: PlanDocument) -> str | None:
    counts = document.graph.barriers
    if not counts:
        return None
    named = ", ".join(f"{count} {name}" for name, count in counts.items())
    words = f"{named}: priced as one pass over their tensors; how they run is not known"
    ops = document.graph.ops
    products = dict.fromkeys(op.function for op in ops if op.kind == "opaque" and op.flops)
    return f"{words}; the work of {', '.join(products)} is counted" if products else words


def _unpriced(document: PlanDocument) -> Iterator[str]:
    """What the clock leaves out for want of a figure of the device."""
    device = document.device
    again = sum(unpriced_bytes(device, kernel) for kernel in document.plan.kernels)
    if again:
        yield (
            f"{device.name} states no {L2_BANDWIDTH}: the {bytes_words(again)} that tiles load "
            "again through L2 are not priced, so small tiles look better than they are"
        )


def registers_words(account: AccountPart) -> str:
    """Registers per thread, and what was modelled where they are compiled."""
    words = format_count(account.value)
    if account.modelled is None:
        return words
    return f"{words} ({format_count(account.modelled)} modelled)"


def _evidence(document: PlanDocument) -> Iterator[tuple[str, str]]:
    evidence = document.evidence
    if evidence.source == "modelled":
        return
    settled = "settled" if evidence.stable else "did not settle: the cheapest plan seen"
    compiled = f"{plural(evidence.compiled, 'kernel')} compiled by {evidence.compiler}"
    yield "evidence", f"{compiled}; {settled}"
    for sentence in evidence.changes[:ROWS_MAX]:
        yield "changed", sentence
    for name, why in list(evidence.missing.items())[:ROWS_MAX]:
        yield "modelled", f"{name} {why}"


def _status(document: PlanDocument) -> str:
    seconds = document.seconds
    return f"{document.plan.status}; read in {seconds.load:.2f} s, planned in {seconds.plan:.2f} s"
