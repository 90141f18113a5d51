"""Lines of a kernel in nested blocks, unique names, and texts that know their depth."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from struct import pack, unpack
from typing import Literal

from msgspec import Struct, field

from fuseledger.graph.axis import Index
from fuseledger.triton.functions import HELPERS
from fuseledger.triton.pretty import lines_of

ValueKind = Literal["float", "int", "bool"]
Frame = Mapping[str, int]
"""Group → the place that its lanes take in the tile at hand."""
Coords = Mapping[str, Index]
"""Axis of an op → where it is, over the variables in sight."""

RESERVED = frozenset(
    [*keyword.kwlist, "tl", "triton", "torch", "range", "float", "int", "pid", *HELPERS]
)
SHORT = 6
"""Characters of a number beyond which it is written as the quotient that it is."""
BUILTINS = frozenset({"sum", "max", "min", "abs", "any", "all", "pow", "round"})
"""Names that a reader takes for Python's own."""

POINTER_TYPES: dict[str, str] = {
    "fp64": "fp64", "fp32": "fp32", "fp16": "fp16", "bf16": "bf16",
    "fp8_e4m3": "fp8e4nv", "fp8_e5m2": "fp8e5",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "i1",
}  # fmt: skip
"""Our dtypes → Triton's names of them."""


class Text(Struct, frozen=True):
    """An expression: its text, the loop depth it needs, and the places its lanes occupy."""

    text: str
    depth: int = 0
    places: frozenset[int] = frozenset()
    kind: ValueKind = "float"
    narrow: bool = False
    """Whether it is a whole number of fewer than 32 bits, as it was loaded."""

    @property
    def wide(self) -> str:
        """A whole number in 32 bits at least, where sums of it have room."""
        return f"{self.text}.to(tl.int32)" if self.narrow else self.text

    @property
    def number(self) -> str:
        """The text as fp32."""
        return self.text if self.kind == "float" else f"{self.text}.to(tl.float32)"

    @property
    def whole(self) -> str:
        """The text as a whole number."""
        return self.text if self.kind == "int" else f"({self.text}).to(tl.int64)"

    @property
    def condition(self) -> str:
        """The text as a truth value."""
        return self.text if self.kind == "bool" else f"({self.text} != 0)"


class Variable(Struct, frozen=True):
    """A loop index in the code: a scalar, or a vector of a group's lanes, or a whole tile."""

    name: str
    depth: int
    group: str | None = None
    conditions: tuple[tuple[str, str], ...] = ()
    """(vector, what it must be less than) where lanes may overrun."""
    places: frozenset[int] = frozenset()
    """Places of a value that is no vector of lanes: a coordinate that was computed."""


class Range(Struct, frozen=True):
    """The part of an axis that a block walks: from `begin` up to `end`, as texts."""

    begin: str
    end: str
    extent: int
    """Most points."""
    is_even: bool
    """Whether every block has as many."""
    count: str
    """Points, as text."""


class Scope(Struct):
    """A block of lines: the kernel's body, or a loop's."""

    depth: int
    header: str | None = None
    lines: list[str | Scope] = field(default_factory=list["str | Scope"])
    known: dict[object, Text] = field(default_factory=dict[object, Text])
    """What is computed in this block already: by its text, or by the tensor it is."""
    taken: set[str] = field(default_factory=set[str])
    """A loop's own indices, which no loop inside may assign."""

    def render(self, indent: int = 1) -> Iterator[str]:
        """The lines, indented."""
        if self.header is not None:
            yield "    " * indent + self.header
            indent += 1
        for line in self.lines:
            if isinstance(line, Scope):
                yield from line.render(indent)
            else:
                yield from lines_of(line, indent)


class Names:
    """Hands out identifiers, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set(RESERVED)

    def new(self, wanted: str) -> str:
        """The name wanted as an identifier, with a number where it is taken."""
        stem = identifier(wanted)
        stem = f"{stem}_" if stem in BUILTINS else stem
        name, number = stem, 1
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name)
        return name


def identifier(words: str) -> str:
    """Words as a Python identifier: `softmax.statistic` → `softmax_statistic`."""
    name = re.sub(r"\W+", "_", words, flags=re.ASCII).strip("_") or "value"
    return f"_{name}" if name[0].isdigit() else name


def literal(value: float) -> str:
    """A number as Triton reads it: 1e-05 where that is the same in fp32."""
    if value != value or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if 0 < abs(value) < 1 and len(repr(value)) > SHORT and 1.0 / round(1.0 / value) == value:
        return f"(1.0 / {round(1.0 / value)})"
    if len(repr(value)) > SHORT and _single(value) == value:
        return next(
            repr(float(text))
            for text in (f"{value:.{digits}g}" for digits in range(1, 18))
            if _single(float(text)) == value
        )
    return repr(float(value))


def _single(value: float) -> float:
    """A number as fp32 holds it."""
    try:
        return float(unpack("f", pack("f", value))[0])
    except OverflowError:
        return float("inf")


def all_of(conditions: list[Text]) -> Text | None:
    """All conditions together; None where there are none."""
    if not conditions:
        return None
    return Text(
        " & ".join(dict.fromkeys(c.text for c in conditions)),
        max(c.depth for c in conditions),
        frozenset[int]().union(*(c.places for c in conditions)),
        "bool",
    )


def scaled(text: str, stride: int, words: str = "") -> str:
    """A multiple of an index; a negative one is subtracted where it follows another."""
    size = "" if abs(stride) == 1 else f" * {words or abs(stride)}"
    return f"{'-' if stride < 0 else ''}{text}{size}"


def unwrapped(text: str) -> str:
    """Text without parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    level = 0
    for position, sign in enumerate(text):
        level += (sign == "(") - (sign == ")")
        if level == 0 and position < len(text) - 1:
            return text
    return text[1:-1]
