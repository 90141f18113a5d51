"""`fuseledger compile`: registers, spills and shared memory of planned kernels, with no GPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fuseledger.cli.options import SOURCE_HELP, PlanRequest, deliver, plan_options
from fuseledger.cli.parse import Count, Seconds
from fuseledger.cli.planned import plan_kernels

if TYPE_CHECKING:
    from fuseledger.triton.compile import Compiled


@click.command("compile", epilog=SOURCE_HELP)
@partial(plan_options, forms=("text", "json"))
@click.option(
    "--processes", type=Count(min=1), metavar="NUMBER", help="Compilers at once; one a core."
)
@click.option("--timeout", type=Seconds(min=1), default=120.0, show_default=True,
              metavar="SECONDS", help="Seconds that one kernel may take.")  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Compile what was compiled before, too.")
def command(
    format_: str, output: str | None, processes: int | None, timeout: float, no_cache: bool,
    **given: Any,
) -> int:  # fmt: skip
    """Compile the planned kernels for the device, which need not be there.

    Shows registers modelled and compiled, spills, shared memory, occupancy, compiler warnings and,
    for NVIDIA, the mix of SASS instructions. Exits with 1 where a kernel was emitted and does not
    compile.
    """
    from fuseledger.cli.progress import Progress
    from fuseledger.cli.terminal import page
    from fuseledger.report.compiled import compiled_json, compiled_text
    from fuseledger.triton.compile import (
        compile_kernels,
        compiled_folder,
        compiler_version,
        target_of,
    )
    from fuseledger.triton.emit import EmitOptions
    from fuseledger.triton.package import emit_plan

    request = PlanRequest(**given)
    compiler_version()
    with Progress(quiet=request.quiet) as progress:
        progress.step("planning")
        planned = plan_kernels(request)
        target = target_of(planned.device)
        emissions = emit_plan(
            planned.graph, planned.kernels, planned.device, EmitOptions(tf32=request.tf32)
        )
        kernels = [kernel for each in emissions for kernel in each.code]
        finished: list[str] = []

        def tick(done: Compiled) -> None:
            finished.append(done.name)
            progress.step(f"compiled {len(finished)} of {len(kernels)} kernels")

        progress.step(f"compiling {len(kernels)} kernels")
        compiled = compile_kernels(
            kernels, target, processes=processes, timeout_s=timeout,
            cache=None if no_cache else compiled_folder(), mix=True, done=tick,
        )  # fmt: skip
    found = {each.name: each for each in compiled}
    if format_ == "json":
        text = compiled_json(emissions, found, target, planned.device)
    else:
        text = compiled_text(page(output), emissions, found, target, planned.device)
    deliver(text, output)
    return int(any(each.failed for each in compiled))
