"""`--evidence compiled`: planning that asks a compiler, with its progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fuseledger.cli.progress import Progress
    from fuseledger.devices import Device
    from fuseledger.graph.graph import Graph
    from fuseledger.planner.plan import Planned, PlanOptions
    from fuseledger.report.document import EvidencePart
    from fuseledger.triton.compile import Compiled
    from fuseledger.triton.emit import EmittedKernel

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

evidence_option = click.option(
    "--evidence", type=click.Choice(["modelled", "compiled"]), default="modelled",
    show_default=True, help="Registers and spills by the model, or by Triton's compiler.",
)  # fmt: skip


def plan_with_compiler(
    graph: Graph, device: Device, options: PlanOptions, groups: list[tuple[int, ...]] | None,
    progress: Progress, *, with_instructions: bool,
) -> tuple[Planned, EvidencePart]:  # fmt: skip
    """A plan whose kernels were compiled for the device, which need not be there.

    `with_instructions` lists the SASS of its kernels too, which takes as long as compiling them.
    """
    from fuseledger.report.document import EvidencePart
    from fuseledger.triton.compile import (
        compile_kernels,
        compiled_folder,
        compiler_version,
        target_of,
    )
    from fuseledger.triton.replan import plan_compiled

    version = compiler_version()
    target = target_of(device)

    def compile_(kernels: Sequence[EmittedKernel]) -> list[Compiled]:
        finished = 0

        def tick(done: Compiled) -> None:
            nonlocal finished
            finished += 1
            progress.step(f"compiled {finished} of {len(kernels)} kernels")

        return compile_kernels(kernels, target, cache=compiled_folder(), done=tick)

    found = plan_compiled(graph, device, options, compile_, groups=groups, step=progress.step)
    instructions: dict[str, dict[str, int]] = {}
    if with_instructions and target.backend == "cuda":
        code = {kernel.name: kernel for kernel in found.code.values()}
        progress.step(f"listing the instructions of {len(code)} kernels")
        listed = compile_kernels([*code.values()], target, cache=compiled_folder(), mix=True)
        mixes = {each.name: each.instructions for each in listed}
        instructions = {name: mixes[kernel.name] for name, kernel in found.code.items()}
    return found.planned, EvidencePart(
        source="compiled", compiler=f"triton {version}", compiled=found.compiled,
        stable=found.is_stable, changes=list(found.changed), missing=found.missing,
        instructions=instructions,
    )  # fmt: skip
