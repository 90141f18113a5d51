"""The files of the decision corpus: a measured decision a line, and each family's formulas.

`families.md` beside the records gives each family's kernels, bytes and FLOPs as formulas over the
record's parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from fuseledger.validate.corpus import CorpusError, text_of

Positive = Annotated[float, Meta(gt=0)]

_FORMULA = re.compile(
    r"^- (?P<side>Unfused|Fused):.*?Kernels `(?P<kernels>[^`]+)`; bytes `(?P<bytes>[^`]+)`", re.M
)
_FLOPS = re.compile(r"^- FLOP \(both\): `(?P<flops>[^`]+)`", re.M)
_FAMILY = re.compile(r"^## (?P<name>\w+) ", re.M)


class Option(Struct, frozen=True, kw_only=True):
    """One side of a decision."""

    name: str
    time_us: Positive
    impl: str | None = None
    """Whose kernels they are."""


class Record(Struct, frozen=True, kw_only=True):
    """A measured decision; other fields of its line are not read."""

    id: str
    family: str
    device: str
    params: dict[str, Any]
    options: Annotated[tuple[Option, ...], Meta(min_length=2)]
    """Unfused or unsplit, then fused or split; further ones are not read."""
    gain: Positive
    """Time of the first option over that of the second."""
    contrast: str | None = None
    timing: str | None = None
    source_key: str | None = None

    def size(self, name: str) -> int:
        """A parameter that is a whole number above 0. Raises ValueError naming it."""
        value = self.params.get(name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"params.{name} {value!r} is no whole number above 0")
        return value


class Family(Struct, frozen=True):
    """A family's formulas by side: (kernels, bytes); FLOPs where it has GEMMs."""

    sides: Mapping[str, tuple[str, str]]
    flops: str | None


def read_records(path: Path) -> Iterator[tuple[int, Record]]:
    """(line, record) of every line. Raises CorpusError naming file, line and field."""
    met: dict[str, tuple[int, Record]] = {}
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = msgspec.json.decode(line, type=Record)
        except msgspec.MsgspecError as error:
            raise CorpusError(f"{path}:{number}: no decision record: {error}") from None
        first, before = met.setdefault(record.id, (number, record))
        if first != number and record == before:
            raise CorpusError(f"{path}:{number}: id {record.id!r}: the same record as line {first}")
        yield number, record


def read_families(path: Path) -> dict[str, Family]:
    """The formulas of every family. Raises CorpusError where the file cannot be read."""
    text = text_of(path)
    found: dict[str, Family] = {}
    heads = list(_FAMILY.finditer(text))
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        section = text[head.end() : following.start() if following else len(text)]
        sides = {m["side"].lower(): (m["kernels"], m["bytes"]) for m in _FORMULA.finditer(section)}
        flops = _FLOPS.search(section)
        found[head["name"]] = Family(sides, flops["flops"] if flops else None)
    return found
