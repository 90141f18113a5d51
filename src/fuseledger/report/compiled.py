"""What the compiler said of a plan's kernels, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from fuseledger.ledger.account import format_kib
from fuseledger.report.layout import Column, Page, Row
from fuseledger.triton.compile import compiler_version
from fuseledger.triton.compile_worker import MIX
from fuseledger.triton.evidence import with_evidence
from fuseledger.triton.occupancy import occupancy

if TYPE_CHECKING:
    from fuseledger.devices import Device
    from fuseledger.triton.compile import Compiled, Target
    from fuseledger.triton.emit import EmittedKernel
    from fuseledger.triton.package import Emission

SCHEMA = "fuseledger/compile@1"

_FIGURES = (
    Column("kernel"), Column("ops", wraps=True),
    Column("modelled", "right"), Column("compiled", "right"),
    Column("spilled", "right"), Column("stack", "right"), Column("shared", "right"),
    Column("blocks/SM"), Column("occupancy", "right"),
    Column("s", "right"),
)  # fmt: skip
_INSTRUCTIONS = (
    Column("kernel"), Column("SASS instructions", "right"), Column("tensor core", "right"),
    Column("load", "right"), Column("store", "right"), Column("shared", "right"),
    Column("local", "right"), Column("special", "right"),
)  # fmt: skip


def compiled_json(
    emissions: Sequence[Emission], found: Mapping[str, Compiled], target: Target, device: Device
) -> str:
    """`fuseledger/compile@1`: every kernel's figures, or why it has none."""
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
            row["compiled"] = to_builtins(compiled)
            row["occupancy"] = to_builtins(fits)
            row["accounts"] = {
                k: to_builtins(ledger.accounts[k]) for k in ("registers", "capacity")
            }
            if each.combine is not None:
                row["combine"] = to_builtins(found[each.combine.name])
        rows.append(row)
    document = {
        "schema": SCHEMA, "device": device.name, "target": str(target),
        "compiler": f"triton {compiler_version()}", "kernels": rows,
    }  # fmt: skip
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def compiled_text(
    page: Page, emissions: Sequence[Emission], found: Mapping[str, Compiled], target: Target,
    device: Device,
) -> str:  # fmt: skip
    """A table of figures, and for NVIDIA one of instructions."""
    compiler = f"triton {compiler_version()}"
    page.line(f"{device.name}, {target}, {compiler}; registers of a thread, modelled and compiled")
    page.table(_FIGURES, [row for each in emissions for row in _rows(each, found, device)])
    mixes = [
        (each.ledger.name, found[kernel.name].instructions)
        for each in emissions
        for kernel in each.code
        if found[kernel.name].instructions
    ]
    if mixes:
        page.line("")
        rows = [
            Row((name, *(f"{mix.get(kind, 0):,}" for kind in ("all", *MIX)))) for name, mix in mixes
        ]
        page.table(_INSTRUCTIONS, rows)
    return page.text()


def _rows(each: Emission, found: Mapping[str, Compiled], device: Device) -> Iterator[Row]:
    """A kernel's row, and one of the kernel that combines its parts."""
    ledger = each.ledger
    modelled = f"{ledger.accounts['registers'].value:.0f}"
    if each.kernel is None:
        cells = (ledger.name, ledger.label, modelled, *("–",) * 7)
        yield Row(cells, note=f"cannot be emitted: {each.missing}")
        return
    yield _row((ledger.name, ledger.label, modelled), each.kernel, found, device)
    if each.combine is not None:
        yield _row((ledger.name, "combine", "–"), each.combine, found, device)


def _row(
    first: tuple[str, str, str], kernel: EmittedKernel, found: Mapping[str, Compiled],
    device: Device,
) -> Row:  # fmt: skip
    compiled = found[kernel.name]
    if compiled.failed:
        return Row((*first, *("–",) * 7), note=f"does not compile: {compiled.failed}")
    fits = occupancy(compiled, device)
    resident = ("–", "–")
    if fits is not None:
        resident = (f"{fits.blocks}, {fits.limit}", f"{fits.share:.0%}")
    cells = (
        *first, str(compiled.registers), _bytes(compiled.spilled_bytes),
        _bytes(compiled.stack_bytes), format_kib(compiled.shared_bytes), *resident,
        "cached" if compiled.is_cached else f"{compiled.seconds:.1f}",
    )  # fmt: skip
    return Row(cells, note="; ".join((*kernel.notes, *compiled.warnings)))


def _bytes(count: int) -> str:
    return f"{count:,} B" if count else "0"
