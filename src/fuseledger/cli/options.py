"""Options that `plan` and `explain` share, and the planning behind both."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from msgspec import Struct

from fuseledger.cli.parse import Seconds
from fuseledger.errors import OutputError

if TYPE_CHECKING:
    from fuseledger.planner.plan import Planned, PlanOptions
    from fuseledger.report.document import EvidencePart, PlanDocument

FORMS = ("text", "json", "md")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

SOURCE_HELP = """
SOURCE is a quoted expression, a .onnx or .pt2 file, an aten graph in .json, onnx:NAME (a model
that the onnx package ships), or module.py:factory, whose factory() returns (nn.Module,
example_inputs). Loading a Python module runs it.
"""


class PlanRequest(Struct, frozen=True, kw_only=True):
    """What `plan` and `explain` were asked for; the fields are their options."""

    source: str
    device: str
    dtype: str
    dim: dict[str, int]
    cut: list[list[int]]
    """Cuts to compare; empty where the planner chooses."""
    optimise: Literal["time", "bytes"]
    launch: Literal["eager", "queued", "graph"]
    tf32: bool
    time_limit: float
    """Seconds that choosing kernels may take."""
    quiet: bool
    evidence: Literal["modelled", "compiled"] = "modelled"

    @property
    def options(self) -> PlanOptions:
        """What the planner is told."""
        from fuseledger.planner.plan import PlanOptions

        return PlanOptions(
            objective=self.optimise, launch=self.launch, tf32=self.tf32,
            time_limit_s=self.time_limit,
        )  # fmt: skip


def _dims(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not (name and equals and value.isascii() and value.isdigit() and int(value) > 0):
            raise click.BadParameter(f"{text!r}: expected NAME=VALUE, such as batch=8")
        if name in dims:
            raise click.BadParameter(f"{name} is given twice")
        dims[name] = int(value)
    return dims


def parse_cuts(ctx: click.Context, param: click.Parameter, text: str | None) -> list[list[int]]:
    """Cuts written as `1,1,1,1/1,3/4`: lengths of consecutive groups of ops."""
    cuts: list[list[int]] = []
    for one in text.split("/") if text is not None else ():
        lengths = one.split(",")
        if not all(part.strip().isascii() and part.strip().isdigit() for part in lengths):
            raise click.BadParameter(f"{one!r}: expected lengths of consecutive ops, such as 1,3")
        cut = [int(part) for part in lengths]
        if cut in cuts:
            raise click.BadParameter(f"{one!r} is given twice")
        cuts.append(cut)
    return cuts


def writable(ctx: click.Context, param: click.Parameter, output: str | None) -> str | None:
    """Refuse a file in no folder before the work starts, not after it."""
    folder = os.path.dirname(output) if output else ""
    if folder and not os.path.isdir(folder):
        raise OutputError(f"{output}: cannot be written: no folder {folder}")
    return output


_SHARED = (
    click.argument("source"),
    click.option("--device", default="h100-sxm", show_default=True, metavar="NAME|FILE.toml",
                 help="A GPU of the catalog (`fuseledger devices`) or a device file."),
    click.option("--dtype", default="fp16", show_default=True,
                 help="Type of an expression's tensors; files say their own."),
    click.option("--dim", multiple=True, metavar="NAME=VALUE", callback=_dims,
                 help="A symbolic size; may be repeated."),
    click.option("--cut", metavar="1,3", callback=parse_cuts,
                 help="Price this cut: lengths of consecutive groups of ops."),
    click.option("--optimise", type=click.Choice(["time", "bytes"]), default="time",
                 show_default=True, help="What the plan minimises."),
    click.option("--launch", type=click.Choice(["eager", "queued", "graph"]), default="queued",
                 show_default=True, help="How kernels are launched."),
    click.option("--tf32", is_flag=True, help="Matrix products of fp32 in TF32."),
    click.option("--time-limit", default=600.0, show_default=True, metavar="SECONDS",
                 type=Seconds(min=0.0),
                 help="Most time to choose kernels; then the best plan so far, with its gap."),
)  # fmt: skip


output_option = click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), callback=writable,
    help="Write the report to a file instead of stdout.",
)  # fmt: skip
quiet_option = click.option("--quiet", is_flag=True, help="Nothing on stderr but errors.")


def format_option(forms: tuple[str, ...] = FORMS) -> Callable[[Decorated], Decorated]:
    """`--format` of a command whose report has these forms, the first if not given."""
    return click.option(
        "--format", "format_", type=click.Choice(forms), default=forms[0], show_default=True,
        help="Form of the report.",
    )  # fmt: skip


def plan_options(command: Decorated, forms: tuple[str, ...] = FORMS) -> Decorated:
    """Add SOURCE and the shared options to a command; a report's where its report has forms."""
    report = (format_option(forms), output_option) if forms else ()
    for decorate in reversed((*_SHARED, *report, quiet_option)):
        command = decorate(command)
    return command


def plan_source(
    request: PlanRequest, kernel: int | None = None, *, complete: bool = False
) -> PlanDocument:
    """Read the source, plan it, and return the plan's document.

    With a kernel's number its edges alone are judged, and their flip points solved for. Else, of
    the edges that are fused, those that a report of rows tells of. A `complete` document has all of
    them, and the instructions of kernels that evidence was asked of.
    """
    from fuseledger.cli.progress import Progress, announce_code
    from fuseledger.devices import load as load_device
    from fuseledger.frontends.source import load
    from fuseledger.planner.plan import cut_groups, make_plan
    from fuseledger.report.build import plan_document
    from fuseledger.report.summary import ROWS_MAX
    from fuseledger.verdict.edges import edge_verdicts

    device = load_device(request.device)
    options = request.options
    announce_code(request.source, quiet=request.quiet)
    with Progress(quiet=request.quiet) as progress:
        progress.step("reading")
        started = time.perf_counter()
        with redirect_stdout(sys.stderr):  # what a module prints is no part of the report
            graph = load(request.source, dtype=request.dtype, dims=request.dim)
        load_seconds = time.perf_counter() - started
        progress.step(f"planning {len(graph.ops):,} ops")
        compared: list[tuple[list[int], Planned]] = []
        evidence: EvidencePart | None = None
        if request.evidence == "compiled":
            from fuseledger.cli.evidence import plan_with_compiler

            if len(request.cut) > 1:
                raise click.UsageError("--evidence compiled takes one cut, not several")
            groups = cut_groups(graph, request.cut[0]) if request.cut else None
            planned, evidence = plan_with_compiler(
                graph, device, options, groups, progress, with_instructions=complete
            )
        elif request.cut:
            compared = [(cut, _plan_cut(graph, device, cut, options)) for cut in request.cut]
            planned = min((each for _, each in compared), key=_preference)
        else:
            planned = make_plan(graph, device, options, step=progress.step)
        progress.step("explaining")
        if kernel is not None:
            verdicts = edge_verdicts(planned, f"k{kernel}")
        else:
            verdicts = edge_verdicts(planned, rows=None if complete else ROWS_MAX)
    return plan_document(
        planned, source=request.source, load_seconds=load_seconds, verdicts=verdicts,
        cuts=compared if len(compared) > 1 else (), evidence=evidence,
    )  # fmt: skip


def _plan_cut(graph: Any, device: Any, cut: list[int], options: Any) -> Planned:
    from fuseledger.planner.plan import cut_groups, plan_of_groups

    return plan_of_groups(graph, device, cut_groups(graph, cut), options)


def _preference(planned: Planned) -> tuple[int, float]:
    """Fewer vetoed kernels first, then the lower cost."""
    return sum(bool(kernel.vetoes) for kernel in planned.kernels), planned.partition.cost


def deliver(text: str, output: str | None) -> None:
    """Write a report to stdout, or whole to a file."""
    if output is None or output == "-":
        click.echo(text, nl=False)
        return
    from pathlib import Path

    from fuseledger.report.atomic import write_atomically

    write_atomically(Path(output), text)
