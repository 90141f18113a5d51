"""Progress of long work on stderr: only on a terminal, and never where `--quiet`."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

import click


class Progress:
    """A spinner with the step in hand and the seconds so far, shown after a moment's wait."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._bar is not None:
            self._bar.stop()

    def step(self, words: str) -> None:
        """Say what is being done now."""
        if self._bar is not None:
            self._bar.update(self._task, description=words)

    def note_code(self, source: str) -> None:
        """Say that a Python module is about to run."""
        from fuseledger.frontends.source import runs_python

        if not self.quiet and runs_python(source):
            click.echo(f"fuseledger: running {source} to build its module", err=True)
