"""Plans of one graph side by side, and where the difference in time comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from fuseledger.clock.time import Time
from fuseledger.errors import InputError
from fuseledger.ledger.account import format_bytes
from fuseledger.planner.plan import Planned

TIME_ACCOUNTS: tuple[str, ...] = ("launches", "traffic", "compute", "latency", "spills")
"""What a kernel's time is made of: its launch, the term that it waits for, and what is added."""

_ACCOUNT_OF = {
    "dram": "traffic",
    "l2": "traffic",
    "matrix": "compute",
    "lanes": "compute",
    "special": "compute",
}
"""Term of the clock → account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRow:
    """One plan in figures."""

    cut: str
    """`[1,3]` where kernels are consecutive ops, else the ops of each kernel."""
    bytes: int
    launches: int
    peak_registers: int
    """Most registers per thread over the plan's kernels."""
    time_us: float
    time_by_account: dict[str, float]
    """`TIME_ACCOUNTS` → µs; adds up to `time_us`."""
    intermediates: tuple[tuple[str, int], ...]
    """(tensor, bytes) of those that one kernel writes and another reads."""
    vetoes: tuple[str, ...]
    """What makes a kernel of it unusable, by account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutDifference:
    """How one plan's time differs from another's; positive where it is faster."""

    cut: str
    against: str
    saved_us: float
    saved_by_account: dict[str, float]
    """`TIME_ACCOUNTS` → µs, those that differ; adds up to `saved_us`."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutComparison:
    """Plans of one graph side by side."""

    rows: tuple[CutRow, ...]
    best: str
    """The fastest cut."""
    differences: tuple[CutDifference, ...]
    """Each further plan against the first."""
    notes: tuple[str, ...]
    """Figures that several plans share, and why."""


def compare_cuts(plans: Sequence[Planned]) -> CutComparison:
    """The plans' figures, the time of each split by account against the first, and equal figures.

    Raises InputError where there is no plan, or they are not of one graph.
    """
    if not plans:
        raise InputError("no cut to compare: give at least one")
    if any(plan.graph.ops != plans[0].graph.ops for plan in plans):
        raise InputError("cuts can be compared only where they cut the same graph")
    rows = tuple(_row(plan) for plan in plans)
    return CutComparison(
        rows=rows,
        best=min(rows, key=lambda row: row.time_us).cut,
        differences=tuple(difference(row, rows[0]) for row in rows[1:]),
        notes=_notes(rows),
    )


def difference(row: CutRow, against: CutRow) -> CutDifference:
    """The time that `row` saves against another plan, split by account."""
    split = {
        account: saved
        for account in TIME_ACCOUNTS
        if abs(saved := against.time_by_account[account] - row.time_by_account[account]) > 1e-9
    }
    saved_us = against.time_us - row.time_us
    return CutDifference(
        cut=row.cut, against=against.cut, saved_us=saved_us, saved_by_account=split,
        sentence=_sentence(row.cut, against.cut, saved_us, split),
    )  # fmt: skip


def time_by_account(time: Time) -> dict[str, float]:
    """A kernel's time by account: the term that it waits for hides the others."""
    waits_for, slowest_us = max(time.terms, key=lambda term: term[1])
    split = dict.fromkeys(TIME_ACCOUNTS, 0.0)
    split["launches"] = time.launch_us
    split[_ACCOUNT_OF[waits_for]] = slowest_us
    split["traffic"] += time.combine_us
    split["latency"] = time.latency_us
    split["spills"] = time.spill_us
    return split


def _row(plan: Planned) -> CutRow:
    splits = [time_by_account(kernel.time) for kernel in plan.kernels]
    home, graph = plan.plan.home, plan.graph
    crossing = tuple(
        (name, graph.tensors[name].bytes)
        for name, producer in graph.producer.items()
        if any(home[reader] != home[producer] for reader in graph.consumers.get(name, ()))
    )
    return CutRow(
        cut=cut_name(plan), bytes=plan.totals.bytes, launches=plan.totals.launches,
        peak_registers=max(int(k.accounts["registers"].value) for k in plan.kernels),
        time_us=plan.totals.time_us,
        time_by_account={name: sum(split[name] for split in splits) for name in TIME_ACCOUNTS},
        intermediates=crossing,
        vetoes=tuple(f"{k.label}: {name}, {why}" for k in plan.kernels for name, why in k.vetoes),
    )  # fmt: skip


def cut_name(plan: Planned) -> str:
    """`[1,3]` where the kernels are consecutive ops, else the ops of each kernel."""
    order = [op for kernel in plan.plan.kernels for op in kernel.ops]
    if order == list(range(len(order))):
        return f"[{','.join(str(len(kernel.ops)) for kernel in plan.plan.kernels)}]"
    return " | ".join(kernel.label for kernel in plan.kernels)


def _sentence(cut: str, against: str, saved_us: float, split: dict[str, float]) -> str:
    if not split:
        return f"{cut} takes as long as {against}"
    word = "saves" if saved_us >= 0 else "loses"
    sign = 1 if saved_us >= 0 else -1
    ordered = sorted(split.items(), key=lambda item: -sign * item[1])
    parts = ", ".join(f"{name} {sign * us:+,.2f}" for name, us in ordered)
    return f"{cut} {word} {abs(saved_us):,.2f} µs against {against}: {parts}"


def _notes(rows: Sequence[CutRow]) -> tuple[str, ...]:
    notes: list[str] = []
    for one, two in combinations(rows, 2):
        if one.bytes != two.bytes:
            continue
        same = f"{one.cut} and {two.cut} move the same {one.bytes:,} bytes"
        differs = [
            f"{word} {a:,} against {b:,}"
            for word, a, b in (
                ("launches", one.launches, two.launches),
                ("peak registers", one.peak_registers, two.peak_registers),
            )
            if a != b
        ]
        ending = f"; they differ in {' and '.join(differs)}" if differs else ""
        notes.append(f"{same}: {_why_equal(one, two)}{ending}")
    return tuple(notes)


def _why_equal(one: CutRow, two: CutRow) -> str:
    """Equal bytes are equal intermediates: everything else is read and written once in both."""
    a, b = (sorted(size for _, size in row.intermediates) for row in (one, two))
    if a != b:
        return "what one keeps on chip, the other saves elsewhere"
    if not a:
        return "neither writes an intermediate to memory"
    names = (" and ".join(name for name, _ in row.intermediates) for row in (one, two))
    count = "1 intermediate" if len(a) == 1 else f"{len(a)} intermediates"
    which = " against ".join(names)
    return f"each writes and reads {count} of {format_bytes(sum(a))} ({which})"
