"""`fuseledger compile`: registers, spills and shared memory of planned kernels, with no GPU."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fuseledger.cli.options import SOURCE_HELP, PlanRequest, deliver, plan_options
from fuseledger.cli.planned import plan_kernels, refuse_markdown

if TYPE_CHECKING:
    from fuseledger.devices import Device
    from fuseledger.triton.compile import Compiled, Target
    from fuseledger.triton.package import Emission

SCHEMA = "fuseledger/compile@1"


@click.command("compile", epilog=SOURCE_HELP)
@plan_options
@click.option("--processes", type=click.IntRange(1), help="Compilers at once; one a core.")
@click.option("--timeout", type=click.FloatRange(1), default=120.0, show_default=True,
              help="Seconds that one kernel may take.")  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Compile what was compiled before, too.")
def command(
    format_: str, output: str | None, processes: int | None, timeout: float, no_cache: bool,
    **given: Any,
) -> int:  # fmt: skip
    """Compile the planned kernels for the device, which need not be there.

    Shows registers modelled and compiled, spills, shared memory and occupancy. Exits with 1 where
    a kernel was emitted and does not compile.
    """
    refuse_markdown(format_)
    from fuseledger.cli.progress import Progress
    from fuseledger.triton.compile import cache_folder, compile_kernels, compiler_version, target_of
    from fuseledger.triton.emit import EmitOptions
    from fuseledger.triton.package import emit_plan

    request = PlanRequest(**given)
    compiler_version()
    with Progress(quiet=request.quiet) as progress:
        progress.step("planning")
        planned = plan_kernels(request)
        target = target_of(planned.device)
        emissions = emit_plan(planned.graph, planned.kernels, EmitOptions(tf32=request.tf32))
        kernels = [each.kernel for each in emissions if each.kernel is not None]
        finished: list[str] = []

        def tick(done: Compiled) -> None:
            finished.append(done.name)
            progress.step(f"compiled {len(finished)} of {len(kernels)} kernels")

        progress.step(f"compiling {len(kernels)} kernels")
        compiled = compile_kernels(
            kernels, target, processes=processes, timeout_s=timeout,
            cache=None if no_cache else cache_folder(), done=tick,
        )  # fmt: skip
    found = {each.name: each for each in compiled}
    if format_ == "json":
        text = _json(emissions, found, target, planned.device)
    else:
        text = _text(emissions, found, target, planned.device, output)
    deliver(text, output)
    return int(any(each.failed for each in compiled))


def _json(
    emissions: list[Emission], found: dict[str, Compiled], target: Target, device: Device
) -> str:
    from fuseledger.triton.compile import compiler_version, occupancy
    from fuseledger.triton.evidence import with_evidence

    rows: list[dict[str, Any]] = []
    for each in emissions:
        row: dict[str, Any] = {"name": each.ledger.name, "label": each.ledger.label}
        row["registers_modelled"] = each.ledger.accounts["registers"].value
        if each.kernel is None:
            row["missing"] = each.missing
        else:
            compiled = found[each.kernel.name]
            fits = occupancy(compiled, device)
            ledger = with_evidence(each.ledger, compiled)
            row["compiled"] = asdict(compiled)
            row["occupancy"] = asdict(fits) if fits is not None else None
            row["accounts"] = {k: asdict(ledger.accounts[k]) for k in ("registers", "capacity")}
        rows.append(row)
    document = {
        "schema": SCHEMA, "device": device.name, "target": str(target),
        "compiler": f"triton {compiler_version()}", "kernels": rows,
    }  # fmt: skip
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _text(
    emissions: list[Emission], found: dict[str, Compiled], target: Target, device: Device,
    output: str | None,
) -> str:  # fmt: skip
    from fuseledger.cli.terminal import page
    from fuseledger.ledger.account import format_kib
    from fuseledger.report.layout import Column, Row
    from fuseledger.triton.compile import compiler_version, occupancy

    columns = (
        Column("kernel"), Column("ops", wraps=True),
        Column("registers: modelled", "right"), Column("compiled", "right"),
        Column("spilled", "right"), Column("shared", "right"), Column("blocks/SM"),
        Column("s", "right"),
    )  # fmt: skip
    rows: list[Row] = []
    for each in emissions:
        modelled = f"{each.ledger.accounts['registers'].value:.0f}"
        compiled = found.get(each.kernel.name) if each.kernel is not None else None
        first = (each.ledger.name, each.ledger.label, modelled)
        if compiled is None or compiled.failed:
            why = each.missing if compiled is None else compiled.failed
            word = "cannot be emitted" if compiled is None else "does not compile"
            rows.append(Row((*first, "–", "–", "–", "–", "–"), note=f"{word}: {why}"))
            continue
        fits = occupancy(compiled, device)
        spilled = f"{compiled.spilled_bytes} B" if compiled.spilled_bytes else "0"
        cells = (
            *first, str(compiled.registers), spilled, format_kib(compiled.shared_bytes),
            f"{fits.blocks}, {fits.limit}" if fits is not None else "–",
            "cached" if compiled.is_cached else f"{compiled.seconds:.1f}",
        )  # fmt: skip
        notes = each.kernel.notes if each.kernel is not None else ()
        rows.append(Row(cells, note="; ".join(notes)))
    report = page(output)
    report.line(f"{device.name}, {target}, triton {compiler_version()}")
    report.table(columns, rows)
    return report.text()
