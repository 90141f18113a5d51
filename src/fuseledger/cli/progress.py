"""Progress of long work on stderr: only on a terminal, and never where `--quiet`."""

from __future__ import annotations

import sys
from threading import Lock, Timer
from types import TracebackType
from typing import Any, Self

import click

PATIENCE_S = 0.4
"""Work shorter than this shows nothing: a bar that flashes by tells nobody anything."""


class Progress:
    """A moving bar with the step in hand and the seconds so far."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._words = ""
        self._bar: Any = None
        self._task: Any = None
        self._lock = Lock()
        self._timer: Timer | None = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            self._timer = Timer(PATIENCE_S, self._start)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._bar is not None:
                self._bar.stop()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        with self._lock:
            if self._timer is None:  # the work ended while rich was imported
                return
            self._bar = Bar(
                BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self._words, total=None)
            self._bar.start()

    def step(self, words: str) -> None:
        """Say what is being done now."""
        with self._lock:
            self._words = words
            if self._bar is not None:
                self._bar.update(self._task, description=words)


def announce_code(source: str, *, quiet: bool) -> None:
    """Say that a Python module is about to run, where the source is one that is there."""
    from fuseledger.frontends.source import runs_python

    if not quiet and runs_python(source):
        click.echo(f"fuseledger: running {source} to build its module", err=True)
