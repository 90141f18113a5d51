"""`fuseledger decide`: the rule on two or more options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fuseledger.cli.options import deliver, format_option, output_option
from fuseledger.cli.parse import Count, factors, positive, sizes

if TYPE_CHECKING:
    from fuseledger.verdict.options import Decision
    from fuseledger.verdict.split import Realise

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

EPILOG = """
FILE.toml holds two or more [[option]] tables: name, bytes, grid, on_chip_bytes, and, where known,
capacity_limit_bytes, launches, flops, time_us. docs/decide.md documents them.
"""

_MACHINE = (
    click.option("--device", metavar="NAME|FILE.toml",
                 help="A GPU of the catalog, or a device file; h100-sxm if not given."),
    click.option("--bandwidth-gbs", callback=positive, metavar="GB/S",
                 help="Bandwidth of device memory, in place of the device's."),
    click.option("--sm-count", type=Count(min=1, max=10**9), metavar="COUNT",
                 help="SMs, in place of the device's."),
    format_option(),
    output_option,
)  # fmt: skip


def machine_options(command: Decorated) -> Decorated:
    """Add the options of every kind of decision to a command."""
    for decorate in reversed(_MACHINE):
        command = decorate(command)
    return command


def realise_option(command: Decorated) -> Decorated:
    """Add the choice of realisation to a command."""
    return click.option(
        "--realise", type=click.Choice(["best", "library", "generated"]), default="best",
        show_default=True, help="How the kernel is realised: the quicker, or the one named.",
    )(command)  # fmt: skip


class FileOrKind(click.Group):
    """A group in which a word that is no kind of decision is a decision file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Send everything to `file` unless a kind of decision is named."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["file", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The kinds of decision."""
        return ["gemm", "attention"]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """FILE.toml, or a kind with its arguments."""
        return ["FILE.toml | gemm MxNxK | attention --heads H --kv N --d D  [OPTIONS]"]


@click.group("decide", cls=FileOrKind, epilog=EPILOG)
def command() -> None:
    """The rule on two or more options: what fits, fills the machine, moves fewer bytes."""


@command.command("file", hidden=True)
@click.argument("file", metavar="FILE.toml", type=click.Path(path_type=Path))
@machine_options
def decide_one_file(file: Path, device: str | None, bandwidth_gbs: float | None,
                    sm_count: int | None, format_: str, output: str | None) -> None:  # fmt: skip
    """The rule on the options of a decision file."""
    from fuseledger.verdict.decision_file import decide_file

    decision = decide_file(file, device=device, bandwidth_gbs=bandwidth_gbs, sm_count=sm_count)
    _report(decision, format_, output)


@command.command("gemm")
@click.argument("size", callback=sizes("MNK"), metavar="MxNxK")
@click.option(
    "--split",
    callback=factors,
    metavar="8|4,8",
    help="Split factors of K; the best one if not given.",
)
@click.option(
    "--tile",
    callback=sizes("MN"),
    metavar="MxN",
    help="Rows and columns of a block with and without a split; the best of each if not given.",
)
@click.option("--dtype", default="fp16", show_default=True, help="Type of the operands.")
@realise_option
@machine_options
def decide_one_gemm(size: tuple[int, int, int], split: tuple[int, ...],
                    tile: tuple[int, int] | None, dtype: str, realise: Realise,
                    device: str | None, bandwidth_gbs: float | None,
                    sm_count: int | None, format_: str, output: str | None) -> None:  # fmt: skip
    """One kernel for a GEMM, or split-K by the best factor."""
    from fuseledger.verdict.decision_file import DEFAULT_DEVICE, machine_of
    from fuseledger.verdict.gemm import Gemm, decide_gemm

    machine = machine_of(device or DEFAULT_DEVICE, bandwidth_gbs, sm_count)
    m, n, k = size
    gemm = Gemm(M=m, N=n, K=k, dtype=dtype, tile=tile)
    _report(decide_gemm(gemm, machine, splits=split, realise=realise), format_, output)


@command.command("attention")
@click.option("--heads", type=Count(min=1), required=True, help="Heads of all sequences.")
@click.option("--kv", type=Count(min=1), required=True, help="Keys and values of a head.")
@click.option("--d", type=Count(min=1), required=True, help="Width of a head.")
@click.option(
    "--split",
    callback=factors,
    metavar="64|16,64",
    help="Split factors of the keys; the best one if not given.",
)
@click.option("--queries", type=Count(min=1), default=1, show_default=True,
              help="Queries of a head.")  # fmt: skip
@click.option("--kv-heads", type=Count(min=1),
              help="Heads of keys and values; as many as --heads if not given.")  # fmt: skip
@click.option("--dtype", default="fp16", show_default=True, help="Type of keys and values.")
@realise_option
@machine_options
def decide_one_attention(heads: int, kv: int, d: int, split: tuple[int, ...], queries: int,
                         kv_heads: int | None, dtype: str, realise: Realise,
                         device: str | None, bandwidth_gbs: float | None, sm_count: int | None,
                         format_: str, output: str | None) -> None:  # fmt: skip
    """Decode attention: a block a head, or split-KV by the best factor."""
    from fuseledger.verdict.attention import decide_attention
    from fuseledger.verdict.decision_file import DEFAULT_DEVICE, machine_of

    machine = machine_of(device or DEFAULT_DEVICE, bandwidth_gbs, sm_count)
    decision = decide_attention(
        heads, kv, d, machine, splits=split, dtype=dtype, queries=queries, kv_heads=kv_heads,
        realise=realise,
    )  # fmt: skip
    _report(decision, format_, output)


def _report(decision: Decision, format_: str, output: str | None) -> None:
    from fuseledger.cli.terminal import page
    from fuseledger.report.decision import (
        decide_document,
        decision_json,
        decision_markdown,
        decision_text,
    )

    document = decide_document(decision)
    if format_ == "text":
        sheet = page(output)
        decision_text(document, sheet)
        text = sheet.text()
    else:
        text = decision_json(document) if format_ == "json" else decision_markdown(document)
    deliver(text, output)
