"""What the terminal at the other end can show."""

from __future__ import annotations

import os
import shutil
import sys

WIDTH = 100
NARROWEST = 80


def width(output: str | None) -> int:
    """Columns of the terminal (or `COLUMNS`), 100 for a file or a pipe, and no less than 80."""
    if output is not None:
        return WIDTH
    return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def colour(output: str | None) -> bool:
    """Whether stdout is a terminal that shows colour, and `NO_COLOR` is not set."""
    dumb = os.environ.get("TERM") == "dumb"
    return output is None and sys.stdout.isatty() and not dumb and not os.environ.get("NO_COLOR")
