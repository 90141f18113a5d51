"""`fuseledger compare`: our plan beside those of other systems, in one ledger."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click
from msgspec.structs import replace

from fuseledger.cli.options import SOURCE_HELP, deliver, plan_options
from fuseledger.cli.parse import Seconds

if TYPE_CHECKING:
    from fuseledger.devices import Device
    from fuseledger.peers.peer import PeerPlan
    from fuseledger.report.compare import CompareDocument

PEERS = ("eager", "inductor", "inductor-templates", "xla")
USUAL = ("eager", "inductor", "xla")
"""Peers that are asked where none is named."""


def _peers(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r}: one or more of {', '.join(PEERS)}")
    return names


@click.command("compare", epilog=SOURCE_HELP)
@plan_options
@click.option("--peers", callback=_peers, metavar="NAME,…",
              help=f"Systems to ask: {', '.join(PEERS)}. "
                   f"[default: {','.join(USUAL)}, where installed]")  # fmt: skip
@click.option("--evidence", type=click.Choice(["modelled", "compiled"]), default="modelled",
              show_default=True,
              help="Compile what TorchInductor generates: registers and spills.")  # fmt: skip
@click.option("--peer-time-limit", default=120.0, show_default=True, metavar="SECONDS",
              type=Seconds(min=1.0), help="Most time that a peer may take.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Every difference.")
def command(
    format_: str, output: str | None, everything: bool, peers: tuple[str, ...] | None,
    peer_time_limit: float, evidence: str, **given: Any,
) -> None:  # fmt: skip
    """Our plan beside those that other systems would run, and who moves fewer bytes.

    TorchInductor and XLA plan for the device in processes of their own; no GPU is needed.
    """
    document = _compare(peers, peer_time_limit, evidence == "compiled", **given)
    if format_ == "json":
        from fuseledger.report.compare import to_json

        text = to_json(document)
    elif format_ == "md":
        from fuseledger.report.compare_text import compare_markdown

        text = compare_markdown(document, everything=everything)
    else:
        from fuseledger.cli.terminal import page
        from fuseledger.report.compare_text import compare_text

        text = compare_text(document, page(output), everything=everything)
    deliver(text, output)


def _compare(
    peers: tuple[str, ...] | None, peer_limit: float, compiled: bool, *, source: str, device: str,
    dtype: str, dim: dict[str, int], cut: list[list[int]], optimise: Any, launch: Any, tf32: bool,
    time_limit: float, quiet: bool,
) -> CompareDocument:  # fmt: skip
    from fuseledger.cli.progress import Progress, announce_code
    from fuseledger.devices import load as load_device
    from fuseledger.errors import MissingExtra
    from fuseledger.peers.eager_peer import eager_peer
    from fuseledger.peers.inductor import inductor_plan
    from fuseledger.peers.peer import PeerPlan
    from fuseledger.peers.priced import price
    from fuseledger.peers.program import read_program
    from fuseledger.peers.xla import xla_plan
    from fuseledger.planner.plan import PlanOptions, cut_groups, make_plan, plan_of_groups
    from fuseledger.report.compare import compare_document
    from fuseledger.verdict.edges import edge_verdicts

    gpu = load_device(device)
    options = PlanOptions(objective=optimise, launch=launch, tf32=tf32, time_limit_s=time_limit)
    announce_code(source, quiet=quiet)
    if len(cut) > 1:
        raise click.UsageError("give one cut")
    with Progress(quiet=quiet) as progress:
        progress.step("reading")
        with redirect_stdout(sys.stderr):  # what a module prints is no part of the report
            program = read_program(source, dtype=dtype, dims=dim)
        graph = program.graph
        progress.step(f"planning {len(graph.ops):,} ops")
        if cut:
            ours = plan_of_groups(graph, gpu, cut_groups(graph, cut[0]), options)
        else:
            ours = make_plan(graph, gpu, options, step=progress.step)
        inductor = partial(
            inductor_plan, source, gpu, dtype=dtype, dims=dim, time_limit_s=peer_limit,
            launches=compiled,
        )  # fmt: skip
        answers = {
            "inductor": inductor,
            "inductor-templates": partial(inductor, templates=True),
            "xla": lambda: xla_plan(source, gpu, dtype=dtype, dims=dim, time_limit_s=peer_limit),
            "eager": lambda: eager_peer(program),
        }
        priced: list[Any] = []
        for name in peers or USUAL:
            progress.step(f"asking {name}")
            try:
                plan = answers[name]()
            except MissingExtra as missing:
                if peers is not None:
                    raise
                plan = PeerPlan(name=name, version=None, status="unavailable", reason=str(missing))
            if compiled and any(kernel.launch for kernel in plan.kernels):
                progress.step(f"compiling the kernels of {name}")
                plan = with_registers(plan, gpu)
            priced.append(price(program, plan, ours))
        progress.step("explaining")
        verdicts = edge_verdicts(ours)
    return compare_document(ours, priced, verdicts, source=source)


def with_registers(plan: PeerPlan, device: Device) -> PeerPlan:
    """The plan with what Triton's compiler says of its generated kernels, for a device not there.

    Raises MissingExtra where Triton is not installed.
    """
    from fuseledger.peers.peer import Resources
    from fuseledger.triton.compile import compile_kernels, compiled_folder, target_of
    from fuseledger.triton.emit import EmittedKernel

    generated = {
        number: EmittedKernel(
            name=kernel.name, source=kernel.launch.code, parameters=(),
            signature=kernel.launch.signature,
            constants=cast("dict[str, int | str]", kernel.launch.constants),
            blocks=0, warps=kernel.launch.warps, stages=kernel.launch.stages, outputs=(),
        )
        for number, kernel in enumerate(plan.kernels)
        if kernel.launch is not None
    }  # fmt: skip
    results = compile_kernels(list(generated.values()), target_of(device), cache=compiled_folder())
    found = dict(zip(generated, results, strict=True))
    failed = [f"{each.name} did not compile: {each.failed}" for each in results if each.failed]
    kernels = tuple(
        replace(
            kernel,
            resources=Resources(
                registers=found[number].registers, spilled_bytes=found[number].spilled_bytes,
                shared_bytes=found[number].shared_bytes,
            ),
        )
        if number in found and not found[number].failed else kernel
        for number, kernel in enumerate(plan.kernels)
    )  # fmt: skip
    return replace(plan, kernels=kernels, notes=(*plan.notes, *failed))
