"""Measured times as rows that the clock can be held against."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from fuseledger.clock.library_features import Setting
from fuseledger.clock.library_kernel import LibraryKernel
from fuseledger.errors import InputError


class CorpusError(InputError):
    """A corpus cannot be read; the message names the file, the line or the field."""


class Measured(Struct, frozen=True, kw_only=True):
    """One measured time and the kernels that made it."""

    corpus: str
    """Which table of the report it belongs to, such as `kernelbench v0.1 L2`."""
    problem: str
    """Rows of one problem are never split between fit and check."""
    name: str
    setting: Setting
    run: str
    """Rows of one run (host, software) of one problem compare with each other."""
    class_: str
    kernels: Sequence[LibraryKernel]
    time_us: float
    fused: bool
    """Whether this is the fused side of its pair."""
    priced_us: float | None = None
    """A prediction that needs no fit, where another clock made one."""
    bar: tuple[float, float] | None = None
    """Median and 90th percentile of |log error| that comes with `priced_us`, where it has one."""
    tables: tuple[str, ...] = ()
    """Further tables that count it."""


class Corpus(Struct):
    """Rows that can be priced, and those that cannot with the reason of each."""

    rows: list[Measured] = field(default_factory=list[Measured])
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    """Reason → number of rows."""
    notes: list[str] = field(default_factory=list[str])

    def skip(self, reason: str, rows: int = 1) -> None:
        """Count rows that cannot be priced."""
        self.skipped[reason] = self.skipped.get(reason, 0) + rows
