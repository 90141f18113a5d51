"""Tables in plain text: aligned columns, cells that wrap, notes that span a whole row.

By hand, because a row's note must span the columns, which rich's tables cannot do, and because
importing rich takes longer (50 ms) than planning a short chain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

GAP = 2
NARROWEST = 12
"""Columns that a cell is never narrowed below."""

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_BREAKS = re.compile(r"(?<=[ +·,/;→])(?!(?:[kMGT]?B|[µm]?s|[GT]FLOP)\b)")
"""Where a cell may be broken: after a blank or a sign that joins, not before a unit."""


class Column(Struct, frozen=True):
    """A column: its title, its side, whether its cells may wrap, and its style."""

    title: str = ""
    side: Literal["left", "right"] = "left"
    wraps: bool = False
    style: str = ""


class Row(Struct, frozen=True):
    """Cells, one a column, and a note below them that spans the row."""

    cells: Sequence[str]
    note: str = ""
    note_style: str = "yellow"


def lines_of(
    columns: Sequence[Column], rows: Sequence[Row], *, width: int, indent: int = 0
) -> Iterator[tuple[str, str]]:
    """The table's lines, each with escape codes and without: see `Page.table`."""
    cells = [[printable(cell) for cell in row.cells] for row in rows]
    widths = _widths(columns, cells, width - indent)
    titles = [column.title for column in columns]
    if any(titles):
        yield _line(columns, titles, widths, indent, style="dim")
    note_indent = indent + _note_indent(columns, widths)
    for row, texts in zip(rows, cells, strict=True):
        wrapped = [
            wrap(text, size) if column.wraps else [text]
            for column, text, size in zip(columns, texts, widths, strict=True)
        ]
        for i in range(max(map(len, wrapped))):
            yield _line(columns, [w[i] if i < len(w) else "" for w in wrapped], widths, indent)
        for line in wrap(printable(row.note), width - note_indent) if row.note else ():
            plain = " " * note_indent + line
            yield plain, " " * note_indent + styled(line, row.note_style)


def wrap(text: str, width: int) -> list[str]:
    """Text in lines of at most `width`, broken after blanks and joining signs where it can be."""
    lines = [""]
    for word in _BREAKS.split(text):
        if len(lines[-1]) + len(word.rstrip()) > width and lines[-1]:
            lines.append("")
        while len(word) > width:
            lines[-1], word = word[:width], word[width:]
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def styled(text: str, style: str) -> str:
    """Text between the escape codes of a style; unchanged without one."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and text else text


def printable(text: str) -> str:
    """Text whose control characters cannot move a terminal's cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def _line(
    columns: Sequence[Column], texts: Sequence[str], widths: Sequence[int], indent: int,
    style: str | None = None,
) -> tuple[str, str]:  # fmt: skip
    plain, coloured = " " * indent, " " * indent
    for i, (column, text, size) in enumerate(zip(columns, texts, widths, strict=True)):
        blanks = " " * (size - len(text))
        gap = " " * GAP if i else ""
        before, after = (gap + blanks, "") if column.side == "right" else (gap, blanks)
        plain += before + text + after
        coloured += before + styled(text, column.style if style is None else style) + after
    return plain.rstrip(), coloured.rstrip()


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Natural widths; where they are too many, the widest wrapping column gives way first."""
    widths = [
        max([len(column.title), *(len(row[i]) for row in rows)]) for i, column in enumerate(columns)
    ]
    excess = sum(widths) + GAP * (len(columns) - 1) - width
    flexible = [i for i, column in enumerate(columns) if column.wraps]
    while excess > 0 and flexible:
        widest = max(flexible, key=lambda i: widths[i])
        others = [widths[i] for i in flexible if i != widest]
        target = max(
            NARROWEST, widths[widest] - excess, min(max(others, default=0), widths[widest] - 1)
        )
        if target >= widths[widest]:
            break
        excess -= widths[widest] - target
        widths[widest] = target
    return widths


def _note_indent(columns: Sequence[Column], widths: Sequence[int]) -> int:
    """Notes start below the first wrapping column."""
    first = next((i for i, column in enumerate(columns) if column.wraps), 0)
    return sum(widths[:first]) + GAP * first


class Page:
    """Lines of a report, with escape codes where the terminal shows them."""

    def __init__(self, *, width: int, colour: bool) -> None:
        self.width = width
        self.colour = colour
        self._lines: list[str] = []

    def blank(self) -> None:
        """An empty line."""
        self._lines.append("")

    def line(self, text: str, style: str = "") -> None:
        """A paragraph."""
        for part in wrap(printable(text), self.width):
            self._lines.append(styled(part, style) if self.colour else part)

    def table(self, columns: Sequence[Column], rows: Sequence[Row], *, indent: int = 0) -> None:
        """A table, without its titles where all are empty."""
        for plain, coloured in lines_of(columns, rows, width=self.width, indent=indent):
            self._lines.append(coloured if self.colour else plain)

    def fields(self, fields: Sequence[tuple[str, str]]) -> None:
        """Names and what each stands for, in two columns."""
        rows = [Row(field) for field in fields]
        self.table((Column(style="dim"), Column(wraps=True)), rows)

    def text(self) -> str:
        """Everything, with a final line break."""
        return "\n".join(self._lines) + "\n"
