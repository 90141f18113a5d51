"""Lines of a kernel in nested blocks, unique names, and texts that know their depth."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

ValueKind = Literal["float", "int", "bool"]

RESERVED = frozenset([*keyword.kwlist, "tl", "triton", "torch", "range", "float", "int", "pid"])


@dataclass(frozen=True, slots=True)
class Text:
    """An expression: its text, the loop depth it needs, and the places its lanes occupy."""

    text: str
    depth: int = 0
    places: frozenset[int] = frozenset()
    kind: ValueKind = "float"

    @property
    def number(self) -> str:
        """The text as fp32."""
        return self.text if self.kind == "float" else f"{self.text}.to(tl.float32)"

    @property
    def condition(self) -> str:
        """The text as a truth value."""
        return self.text if self.kind == "bool" else f"({self.text} != 0)"


@dataclass(slots=True)
class Scope:
    """A block of lines: the kernel's body, or a loop's."""

    depth: int
    header: str | None = None
    lines: list[str | Scope] = field(default_factory=list["str | Scope"])
    known: dict[object, Text] = field(default_factory=dict[object, Text])
    """What is computed in this block already: by its text, or by the tensor it is."""

    def render(self, indent: int = 1) -> Iterator[str]:
        """The lines, indented."""
        if self.header is not None:
            yield "    " * indent + self.header
            indent += 1
        for line in self.lines:
            if isinstance(line, Scope):
                yield from line.render(indent)
            else:
                yield "    " * indent + line


class Names:
    """Hands out identifiers, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set(RESERVED)

    def new(self, wanted: str) -> str:
        """The name wanted as an identifier, with a number where it is taken."""
        stem = identifier(wanted)
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
