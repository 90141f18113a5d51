"""Figures in words: pairs in one unit, clock terms, tiles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fuseledger.ledger.account import format_bytes, format_count, format_kib
from fuseledger.report.document import L2_BANDWIDTH

if TYPE_CHECKING:
    from fuseledger.report.document import (
        AccountPart,
        DevicePart,
        KernelPart,
        RealisationPart,
        SchedulePart,
    )

BOUNDS = {
    "dram": "DRAM",
    "l2": "L2",
    "pipeline": "trips to memory",
    "matrix": "matrix units",
    "lanes": "lanes",
    "special": "special functions",
    "launch": "launch",
}
"""Name of a clock term → what a kernel that waits for it is bound by."""

SHORT_BOUNDS = {**BOUNDS, "pipeline": "trips", "matrix": "matrix", "special": "special"}

WORTH_SAYING = 0.05
"""Share of work done again from which a kernel's row says so."""

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))


def bytes_in_one_unit(*counts: float) -> tuple[str, list[str]]:
    """Unit of the largest count, and every count in it with three digits."""
    return _in_one_unit(_BYTES, counts)


def times_in_one_unit(*times_us: float) -> tuple[str, list[str]]:
    """Unit of the longest time, and every time in it with three digits."""
    return _in_one_unit(_TIMES, times_us)


def bytes_words(count: float) -> str:
    """Bytes with three digits: 837 MB."""
    unit, (value,) = bytes_in_one_unit(count)
    return f"{value} {unit}"


def time_words(time_us: float) -> str:
    """A time with three digits: 1.27 ms."""
    unit, (value,) = times_in_one_unit(time_us)
    return f"{value} {unit}"


def _in_one_unit(
    units: tuple[tuple[float, str], ...], values: tuple[float, ...]
) -> tuple[str, list[str]]:
    largest = max(values)
    scale, unit = next((each for each in units if largest >= each[0]), units[-1])
    return unit, [f"{v:,.0f}" if unit == "B" else three_digits(v / scale) for v in values]


def three_digits(value: float) -> str:
    """Three significant digits without an exponent: 0.837, 8.82, 175, 1,998; 0 as it is."""
    if value >= 99.95 or not value:
        return f"{value:,.0f}"
    return (
        f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.9995 else f"{value:.3f}"
    )


def times(more: float, less: float) -> str:
    """Quotient as a factor: 2.5×."""
    return f"{three_digits(more / less)}×" if less else "–"


def unpriced_bytes(device: DevicePart, kernel: KernelPart) -> float:
    """Bytes that a kernel loads again through L2, where the clock has no bandwidth for them."""
    if L2_BANDWIDTH not in device.unstated:
        return 0.0
    return max(0.0, kernel.work.l2_bytes - kernel.accounts.traffic.value)


def plural(count: int, noun: str) -> str:
    """`1 kernel`, `22 kernels`, `3 launches`."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def has_schedule(kernel: KernelPart) -> bool:
    """Whether a kernel has a grid: not one of an op of unknown kind, or of declared ops."""
    return bool(kernel.accounts.parallelism.value)


def grid_words(schedule: SchedulePart) -> str:
    """Blocks × tile: `512 × 256m·128n`, with the axes held whole or split into parts."""
    tiles = [f"{a.tile}{a.name}" for a in schedule.axes if a.treatment == "grid" and a.tile > 1]
    words = f"{schedule.blocks:,}"
    if tiles:
        words += f" × {'·'.join(tiles)}"
    words += "".join(f", {a.name}÷{a.tile}" for a in schedule.axes if a.treatment == "split")
    whole = [a.name for a in schedule.axes if a.treatment == "whole"]
    return words + (f", whole {'·'.join(whole)}" if whole else "")


def label_words(label: str) -> str:
    """A label whose runs of equal parts are counted: `3×(conv+batch_norm+relu)+add`."""
    words = label.split("+")
    found: list[str] = []
    i = 0
    while i < len(words):
        period, count = _run(words, i)
        part = "+".join(words[i : i + period])
        found.append(f"{count}×({part})" if count > 1 else part)
        i += period * count
    return "+".join(found)


def _run(words: list[str], start: int) -> tuple[int, int]:
    """Length and number of the parts, at `start`, whose repetition covers most; (1, 1) if none."""
    best = (1, 1)
    for period in range(2, (len(words) - start) // 2 + 1):
        part = words[start : start + period]
        count = 1
        while words[start + period * count : start + period * (count + 1)] == part:
            count += 1
        if count > 1 and period * count > best[0] * best[1]:
            best = (period, count)
    return best


def axis_words(treatment: str, size: int, tile: int) -> str:
    """What becomes of an axis, in words."""
    if treatment == "grid":
        tiles = -(-size // tile)
        return f"grid: {plural(tiles, 'tile')} of {tile:,}"
    if treatment == "split":
        return f"split: {tile:,} parts on the grid, {-(-size // tile):,} each"
    if treatment == "whole":
        return "whole: held at once"
    return f"loop: {tile:,} at a time"


def account_value(name: str, account: AccountPart) -> str:
    """An account's value, and its limit where it has one, for reading; `–` where a kernel's grid or
    registers are not known."""
    if name in ("registers", "parallelism") and not account.value:
        return "–"
    show = {"traffic": format_bytes, "epilogue": format_bytes, "capacity": format_kib}
    format_value = show.get(name, format_count)
    value = format_value(account.value)
    if account.limit is None:
        return value
    if name == "parallelism":
        return f"{value} on {format_value(account.limit)} SMs"
    return f"{value} of {format_value(account.limit)}"


_SPILLED = re.compile(r"[\d,]+ B a thread spill")


def realisation_words(realisation: RealisationPart) -> str:
    """`library: cuBLAS + BIAS`, or `generated`, and why no library has it."""
    if realisation.call is not None:
        words = f"library: {realisation.call}"
        if realisation.computed < 1:
            words += f", which leaves out the {1 - realisation.computed:.0%} that the mask hides"
        return words
    return f"generated: {realisation.reason}" if realisation.reason else "generated"


def kernel_notes(kernel: KernelPart) -> list[str]:
    """What a reader must not miss of a kernel: vetoes, spills, second walks, added work."""
    accounts = kernel.accounts
    named = {name: getattr(accounts, name) for name in accounts.__struct_fields__}
    notes = [f"{name} veto: {each.veto}" for name, each in named.items() if each.veto]
    spilled = _SPILLED.search(accounts.registers.derivation.partition("; modelled")[0])
    if spilled and kernel.realisation.call is None:
        notes.append(spilled[0])
    if kernel.schedule.walks > 1:
        notes.append(f"{kernel.schedule.walks} walks over its inputs")
    if accounts.epilogue.value:
        notes.append(accounts.epilogue.derivation.partition("; ")[0])
    if kernel.realisation.core is not None:
        notes.append(realisation_words(kernel.realisation))
    if kernel.work.recomputed >= WORTH_SAYING:
        notes.append(f"computes {kernel.work.recomputed:,.0%} of its work again")
    return notes
