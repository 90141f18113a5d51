"""The `fuseledger` command: a group whose commands are imported when they are called.

Exit codes: 0 done; 1 a check that the user asked for failed, or a defect of ours; 2 the input or
the command is wrong; 3 a missing extra; 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from fuseledger import __version__
from fuseledger.errors import FuseledgerError

COMMANDS: dict[str, str] = {
    "plan": "Which ops should share a kernel, and the ledger of every kernel.",
    "explain": "Every account of one kernel, and why its edges were cut or fused.",
    "decide": "The rule on two or more options: what fits, fills the machine, moves fewer bytes.",
    "validate": "Predictions against measured times, out of fold.",
    "compare": "Our plan beside those that other systems would run, and who moves fewer bytes.",
    "emit": "Write the planned kernels as Triton code into the folder named by -o.",
    "compile": "Compile the planned kernels for the device, which need not be there.",
    "check-numerics": "Run the planned kernels in Triton's interpreter and compare with float64.",
    "devices": "The GPUs in the catalog, and every figure with its source.",
    "textbook": "The two reference exercises, reproduced to the digit.",
}
"""Command → its help in one line; the command itself is `fuseledger.cli.<name>:command`."""


LEAK_CHECKED = ("jax", "onnx", "torch", "triton")
"""Packages whose bindings report what is left when the process ends, so that it has to go first."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"fuseledger.cli.{cmd_name.replace('-', '_')}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="fuseledger")
def cli() -> None:
    """Should these GPU operators be one kernel or several? An account book that answers.

    `fuseledger plan "gemm(4096,4096,4096) + bias + gelu + residual"`
    """


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; every mistake is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    code = run(args)
    if not any(name in sys.modules for name in LEAK_CHECKED):
        gc.freeze()  # the process ends: what is left need not be searched for cycles
    sys.exit(code)


def run(args: list[str] | None = None) -> int:
    """Run the command line; its exit code."""
    try:
        code = cli.main(args, prog_name="fuseledger", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return 0
    except (KeyboardInterrupt, click.Abort):
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        return _complain(_usage(error), error.exit_code)
    except FuseledgerError as error:
        return _complain(str(error), error.exit_code, error)
    except Exception as error:
        return _complain(
            f"a defect of ours, please report it: {type(error).__name__}: {error} "
            "(FUSELEDGER_TRACEBACK=1 shows where)", 1, error,
        )  # fmt: skip
    return code if isinstance(code, int) else 0


def _usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message} ({context.command_path} --help)" if context else message


def _complain(message: str, code: int, error: Exception | None = None) -> int:
    if error is not None and os.environ.get("FUSELEDGER_TRACEBACK", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    click.echo(f"fuseledger: {message}", err=True)
    return code


def _discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's own flush at exit stays silent."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
