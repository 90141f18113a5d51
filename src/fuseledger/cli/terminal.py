"""What the terminal at the other end can show."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseledger.report.layout import Page

WIDTH = 100
"""Columns of a report that goes to a file or a pipe."""
NARROWEST, WIDEST = 80, 120
"""Columns of a report on a terminal: sentences are hard to read across more."""


def page(output: str | None = None) -> Page:
    """An empty page as wide as the terminal, coloured where it shows colour."""
    from fuseledger.report.layout import Page

    return Page(width=_width(output), colour=_colour(output))


def _width(output: str | None) -> int:
    """Columns of the terminal (or `COLUMNS`) within bounds; 100 for a file or a pipe."""
    if output is not None:
        return WIDTH
    return min(WIDEST, max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns))


def _colour(output: str | None) -> bool:
    """Whether stdout is a terminal that shows colour, and `NO_COLOR` is not set."""
    dumb = os.environ.get("TERM") == "dumb"
    return output is None and sys.stdout.isatty() and not dumb and not os.environ.get("NO_COLOR")
