"""The README's commands and outputs; `pytest --snapshot-update` pastes the outputs anew."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fuseledger.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"

BLOCK = re.compile(r"```console\n\$ fuseledger (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)
SECONDS = re.compile(r"; read in.*\Z", re.DOTALL)
"""The end of the report, which differs from run to run."""


def _blocks() -> list[Any]:
    commands = [found["command"] for found in BLOCK.finditer(README.read_text(encoding="utf-8"))]
    return [
        pytest.param(command, marks=[pytest.mark.torch] if ".py:" in command else [])
        for command in commands
    ]


@pytest.mark.parametrize("command", _blocks())
def test_readme_shows_what_the_tool_prints(
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Each output in the README is what its command prints, but for the seconds it took."""
    if ".py:" in command:
        pytest.importorskip("transformers")
    monkeypatch.chdir(ROOT)
    assert run(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    text = README.read_text(encoding="utf-8")
    shown = next(found for found in BLOCK.finditer(text) if found["command"] == command)
    if request.config.option.update_snapshots:
        README.write_text(
            text[: shown.start("output")] + printed + text[shown.end("output") :], encoding="utf-8"
        )
        return
    assert SECONDS.sub("", shown["output"]) == SECONDS.sub("", printed)


def test_continuous_integration_runs_the_second_command() -> None:
    """.ci/run holds the README's command for the tests, word for word."""
    lines = README.read_text(encoding="utf-8").splitlines()
    commands = [line.strip() for line in lines if line.startswith("    python3 -m venv")]
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_every_link_of_the_readme_leads_somewhere() -> None:
    """Relative links name files that exist."""
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
