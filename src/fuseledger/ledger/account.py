"""An account: one figure about a kernel, never bare."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Provenance = Literal["declared", "modelled", "compiled", "measured"]

ACCOUNTS = ("traffic", "launches", "registers", "capacity", "parallelism", "epilogue")
"""The six accounts, in the order in which reports show them."""


class Account(Struct, frozen=True, kw_only=True):
    """A value with its unit, how it came about in words, and where it comes from."""

    value: float
    unit: str
    derivation: str
    provenance: Provenance = "modelled"
    limit: float | None = None
    """What the device allows; None where nothing limits it."""
    modelled: float | None = None
    """What the model says of the same figure, where evidence has replaced it."""
    veto: str | None = None
    """Why the kernel is not usable, where this account says so."""


_SCALES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_bytes(count: float) -> str:
    """Bytes in decimal units with one digit: 33.6 MB."""
    for scale, unit in _SCALES:
        if abs(count) >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def format_kib(count: float) -> str:
    """On-chip bytes in binary KB, as shared memory is quoted: 128 KB."""
    return f"{count / 1024:.1f} KB" if count % 1024 else f"{count // 1024:.0f} KB"


def format_time(time_us: float) -> str:
    """Microseconds with three or four digits; milliseconds from 1,000 µs."""
    if time_us >= 1000:
        return f"{time_us / 1000:.3g} ms" if time_us < 1e6 else f"{time_us / 1e6:.3g} s"
    return f"{time_us:.1f} µs" if time_us >= 10 else f"{time_us:.2f} µs"


def format_flops(flops: float) -> str:
    """Work with three digits: 0.881 GFLOP, 18.2 TFLOP."""
    for scale, unit in ((1e15, "PFLOP"), (1e12, "TFLOP")):
        if flops >= 0.9995 * scale:
            return f"{flops / scale:.3g} {unit}"
    return f"{flops / 1e9:.3g} GFLOP"


def format_count(count: float) -> str:
    """A plain count with thousands separators."""
    return f"{count:,.0f}"
