from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from syrupy.assertion import SnapshotAssertion

from fuseledger.cli.main import COMMANDS, cli

LONG = ("plan", "explain", "validate", "compare", "emit", "compile", "check-numerics")
"""Commands that may take more than a moment."""


def _flags(command: click.Command, path: str) -> Iterator[str]:
    for parameter in command.params:
        names = " ".join([*parameter.opts, *parameter.secondary_opts])
        kind = parameter.type
        choices = "|".join(kind.choices) if isinstance(kind, click.Choice) else kind.name
        flag = isinstance(parameter, click.Option) and parameter.is_flag
        default = f" = {parameter.default}" if isinstance(parameter.default, str) else ""
        required = " required" if parameter.required else ""
        yield f"{path} {names}: {'flag' if flag else choices}{default}{required}"
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _flags(each, f"{path} {name}")


def _command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_are_those_that_users_know(name: str, snapshot: SnapshotAssertion) -> None:
    """A flag that appears, changes or goes away is a decision, not an accident."""
    assert "\n".join(_flags(_command(name), name)) == snapshot


@pytest.mark.parametrize("name", COMMANDS)
def test_listed_help_is_the_commands_own(name: str) -> None:
    """The group's list, made without importing commands, says what each says of itself."""
    assert _command(name).get_short_help_str(limit=200) == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    """No option is left for the reader to guess."""
    for parameter in _command(name).params:
        assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None)


@pytest.mark.parametrize("name", LONG)
def test_every_long_command_can_be_quiet(name: str) -> None:
    """Whatever shows progress has `--quiet`."""
    assert "--quiet" in {flag for option in _command(name).params for flag in option.opts}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_report_can_go_to_a_file(name: str) -> None:
    """`-o` and `--output` are one option everywhere, in every command and subcommand."""
    command = _command(name)
    several = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    for each in several:
        assert ["-o", "--output"] in [list(option.opts) for option in each.params]
