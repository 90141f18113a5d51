"""Measured times as rows that the clock can be held against."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

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


def text_of(path: Path) -> str:
    """The text of a file of a corpus. Raises CorpusError naming it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise CorpusError(f"{path}: not UTF-8 text") from None


def csv_rows(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """(file and line, row) of a CSV whose rows have all of `fields`; others may be None.

    Raises CorpusError naming the file, the line and the field.
    """
    reader = csv.DictReader(io.StringIO(text_of(path), newline=""))
    try:
        missing = [field for field in fields if field not in (reader.fieldnames or ())]
        if missing:
            raise CorpusError(f"{path}: has no column {missing[0]}: it needs {', '.join(fields)}")
        for row in reader:
            place = f"{path}:{reader.line_num}"
            empty = [field for field in fields if row[field] is None]
            if empty:
                raise CorpusError(f"{place}: the row ends before its {empty[0]}")
            yield place, row
    except csv.Error as error:
        raise CorpusError(f"{path}:{reader.line_num + 1}: not CSV ({error})") from None


def time_above_0(place: str, field: str, text: str) -> float:
    """A measured time. Raises CorpusError naming its place and field."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise CorpusError(f"{place}: {field} {text!r} is no time above 0")
    return value


def geometric_mean(times: Sequence[float]) -> float:
    """The mean of repeated runs: errors are ratios."""
    return math.exp(sum(map(math.log, times)) / len(times))
