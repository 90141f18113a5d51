from __future__ import annotations

import json

import pytest

from fuseledger.cli.main import run
from fuseledger.devices import load, names


def test_every_device_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """The table lists the whole catalog within 100 columns."""
    assert run(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(names()) + 1]] == names()
    assert max(map(len, lines)) <= 100


def test_every_figure_is_shown_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    """`devices show` leaves out no figure of the file, nor of what it inherits."""
    assert run(["devices", "show", "h100-sxm"]) == 0
    out = capsys.readouterr().out
    for field, figure in load("h100-sxm").figures.flat().items():
        assert f"{field} " in out
        assert f"{figure.value:,}" in out
        assert figure.source.split()[0] in out


def test_json_holds_the_figures_of_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    """Both JSON forms hold every value and source, under their own schema names."""
    assert run(["devices", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert run(["devices", "show", "mi300x", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert listed["schema"] == "fuseledger/devices@1"
    assert shown.pop("schema") == "fuseledger/device@1"
    assert shown in listed["devices"]
    assert shown["figures"] == {
        field: {"value": figure.value, "source": figure.source, "note": figure.note or None}
        for field, figure in load("mi300x").figures.flat().items()
    }
