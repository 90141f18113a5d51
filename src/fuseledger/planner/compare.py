"""Plans of one graph side by side, and where the difference in time comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fuseledger.clock.time import GENERATED, Time
from fuseledger.errors import InputError
from fuseledger.ledger.account import format_bytes
from fuseledger.planner.plan import Planned

TIME_ACCOUNTS: tuple[str, ...] = ("launches", "traffic", "compute", "latency", "spills")
"""What a kernel's time is made of: its launch, the term that it waits for, and what is added."""

BASELINE = "one kernel an op"

_ACCOUNT_OF = {
    "dram": "traffic",
    "l2": "traffic",
    "pipeline": "latency",
    "matrix": "compute",
    "lanes": "compute",
    "special": "compute",
}
"""Term of the clock → account."""


class CutRow(Struct, frozen=True, kw_only=True):
    """One plan in figures."""

    cut: str
    """`[1,3]` where kernels are consecutive ops, else the ops of each kernel."""
    bytes: int
    launches: int
    peak_registers: int
    """Most registers per thread over the plan's generated kernels; 0 where all are library calls,
    whose registers are not known."""
    time_us: float
    time_by_account: dict[str, float]
    """`TIME_ACCOUNTS` → µs; adds up to `time_us`."""
    intermediates: tuple[tuple[str, int], ...]
    """(tensor, bytes) of those that one kernel writes and another reads."""
    vetoes: tuple[str, ...]
    """What makes a kernel of it unusable, by account."""


class CutDifference(Struct, frozen=True, kw_only=True):
    """How one plan's time differs from another's; positive where it is faster."""

    cut: str
    against: str
    saved_us: float
    saved_by_account: dict[str, float]
    """`TIME_ACCOUNTS` → µs, those that differ; adds up to `saved_us`."""

    @property
    def sentence(self) -> str:
        """`[4] saves 16.76 µs against [1,1,1,1]: launches 15.00 + traffic 1.76`."""
        return f"{self.cut} {self.words}"

    @property
    def words(self) -> str:
        """The sentence without its subject."""
        if not self.saved_by_account:
            return f"takes as long as {self.against}"
        return saved_words(self.saved_us, self.saved_by_account, self.against)


class CutComparison(Struct, frozen=True, kw_only=True):
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
    return _difference(row.cut, row.time_by_account, row.time_us, against.cut,
                       against.time_by_account, against.time_us)  # fmt: skip


def _difference(
    cut: str, split: dict[str, float], time_us: float, against: str,
    other_split: dict[str, float], other_us: float,
) -> CutDifference:  # fmt: skip
    saved = {account: other_split[account] - split[account] for account in TIME_ACCOUNTS}
    return CutDifference(
        cut=cut, against=against, saved_us=other_us - time_us,
        saved_by_account={account: us for account, us in saved.items() if abs(us) > 1e-9},
    )  # fmt: skip


def against_baseline(plan: Planned) -> CutDifference:
    """The time that a plan saves against one kernel an op, split by account."""
    search, alone = plan.search, dict.fromkeys(TIME_ACCOUNTS, 0.0)
    known: dict[int, dict[str, float]] = {}  # equal ops have one choice
    for i in range(len(plan.graph.ops)):
        choice = search.choose((i,))
        if id(choice) not in known:
            known[id(choice)] = time_by_account(search.time((i,), search.price((i,))))
        for account, us in known[id(choice)].items():
            alone[account] += us
    together = _time_of(plan)
    return _difference("this plan", together, plan.totals.time_us, BASELINE, alone,
                       plan.baseline.time_us)  # fmt: skip


def time_by_account(time: Time) -> dict[str, float]:
    """A kernel's time by account: the term that it waits for hides the others."""
    waits_for, slowest_us = max(time.terms, key=lambda term: term[1])
    split = dict.fromkeys(TIME_ACCOUNTS, 0.0)
    split["launches"] = time.launch_us
    split[_ACCOUNT_OF[waits_for]] = slowest_us
    split["traffic"] += time.combine_us + time.layout_us
    split["latency"] += time.latency_us
    split["spills"] = time.spill_us
    return split


def _row(plan: Planned) -> CutRow:
    home, graph = plan.plan.home, plan.graph
    crossing = tuple(
        (name, graph.tensors[name].bytes)
        for name, producer in graph.producer.items()
        if any(home[reader] != home[producer] for reader in graph.consumers.get(name, ()))
    )
    return CutRow(
        cut=cut_name(plan), bytes=plan.totals.bytes, launches=plan.totals.launches,
        peak_registers=peak_registers(plan),
        time_us=plan.totals.time_us,
        time_by_account=_time_of(plan),
        intermediates=crossing,
        vetoes=tuple(f"{k.label}: {name}, {why}" for k in plan.kernels for name, why in k.vetoes),
    )  # fmt: skip


def peak_registers(plan: Planned) -> int:
    """Most registers per thread over a plan's generated kernels; 0 where it has none."""
    return max(
        (
            int(kernel.accounts["registers"].value)
            for kernel in plan.kernels
            if kernel.time.realised == GENERATED
        ),
        default=0,
    )


def _time_of(plan: Planned) -> dict[str, float]:
    splits = [time_by_account(kernel.time) for kernel in plan.kernels]
    return {account: sum(split[account] for split in splits) for account in TIME_ACCOUNTS}


def cut_name(plan: Planned) -> str:
    """`[1,3]` where the kernels are consecutive ops, else the ops of each kernel."""
    order = [op for kernel in plan.plan.kernels for op in kernel.ops]
    if order == list(range(len(order))):
        return f"[{','.join(str(len(kernel.ops)) for kernel in plan.plan.kernels)}]"
    return " | ".join(kernel.label for kernel in plan.kernels)


def saved_words(saved_us: float, split: Mapping[str, float], against: str) -> str:
    """`saves 535.11 µs against [1,1,1,1]: traffic 524.31 + launches 15.00 − compute 4.19`.

    The parts add up to what is saved or, where the plan is slower, to what is lost. Where a fused
    kernel waits for another resource than its parts did, its time only changes its name: traffic
    and compute are then said together.
    """
    verb, sign = ("saves", 1.0) if saved_us >= 0 else ("loses", -1.0)
    scale, unit = (1e3, "ms") if max(map(abs, split.values())) >= 1e4 else (1.0, "µs")
    shown = [(name, sign * us / scale) for name, us in _renamed(split).items()]
    shown = sorted((item for item in shown if abs(item[1]) >= 0.005), key=lambda item: -item[1])
    parts = "".join(
        f"{' + ' if us > 0 else ' − '}{account} {abs(us):,.2f}" for account, us in shown
    ).removeprefix(" + ")
    total = f"{verb} {abs(saved_us) / scale:,.2f} {unit} against {against}"
    return f"{total}: {parts}" if parts else total


def _renamed(split: Mapping[str, float]) -> Mapping[str, float]:
    """Traffic and compute as one where what one gains is mostly what the other loses."""
    traffic, compute = split.get("traffic", 0.0), split.get("compute", 0.0)
    if traffic * compute >= 0 or min(abs(traffic), abs(compute)) <= abs(traffic + compute):
        return split
    rest = {name: us for name, us in split.items() if name not in ("traffic", "compute")}
    return {"traffic and compute": traffic + compute, **rest}


def _notes(rows: Sequence[CutRow]) -> tuple[str, ...]:
    """Cuts that move the same bytes, what they have in common, and where they differ."""
    groups: dict[int, list[CutRow]] = {}
    for row in rows:
        groups.setdefault(row.bytes, []).append(row)
    return tuple(_note(alike) for alike in groups.values() if len(alike) > 1)


def _note(alike: Sequence[CutRow]) -> str:
    names = _listed([row.cut for row in alike])
    differs = [
        f"{word} ({', '.join(f'{value:,}' for value in values)})"
        for word, values in (
            ("launches", [row.launches for row in alike]),
            ("peak registers", [row.peak_registers for row in alike]),
        )
        if len(set(values)) > 1
    ]
    ending = f"; they differ in {_listed(differs)}" if differs else ""
    return f"{names} move the same {alike[0].bytes:,} bytes: {_why_equal(alike)}{ending}"


def _why_equal(alike: Sequence[CutRow]) -> str:
    """Equal bytes are equal intermediates: everything else is read and written once in all."""
    sizes = [sorted(size for _, size in row.intermediates) for row in alike]
    if any(each != sizes[0] for each in sizes):
        return "what one keeps on chip, another saves elsewhere"
    if not sizes[0]:
        return "none writes an intermediate to memory"
    which = ", ".join(" and ".join(name for name, _ in row.intermediates) for row in alike)
    count = len(sizes[0])
    what = "one intermediate" if count == 1 else f"{count} intermediates"
    return f"each writes and reads {what}, {format_bytes(sum(sizes[0]))} ({which})"


def _listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
