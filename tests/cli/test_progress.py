from __future__ import annotations

import io
import time

import pytest

from fuseledger.cli import progress
from fuseledger.cli.progress import Progress


class _Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def _work(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, quiet: bool = False) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)
    with Progress(quiet=quiet) as bar:
        bar.step("planning 22 ops")
        for _ in range(100):
            time.sleep(0.02)
            if stream.getvalue():
                break
            if quiet or not stream.isatty():
                time.sleep(0.1)
                break
    return stream.getvalue()


def test_long_work_shows_its_step_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal stderr names the step in hand."""
    monkeypatch.setenv("TERM", "xterm")
    assert "planning 22 ops" in _work(monkeypatch, _Terminal())


def test_nothing_is_shown_where_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log file gets no progress."""
    assert _work(monkeypatch, io.StringIO()) == ""


def test_quiet_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--quiet` silences progress on a terminal too."""
    assert _work(monkeypatch, _Terminal(), quiet=True) == ""


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that ends before the bar would start leaves no trace."""
    stream = _Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress(quiet=False) as bar:
        bar.step("planning")
    time.sleep(progress.PATIENCE_S + 0.1)
    assert stream.getvalue() == ""
