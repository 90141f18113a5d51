"""What the compiler said of a plan's kernels, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fuseledger.ledger.account import format_kib
from fuseledger.report.layout import Column, Page, Row
from fuseledger.triton.compile import compiler_version
from fuseledger.triton.compile_worker import MIX
from fuseledger.triton.evidence import with_evidence
from fuseledger.triton.occupancy import occupancy

if TYPE_CHECKING:
    from fuseledger.devices import Device
    from fuseledger.triton.compile import Compiled, Target
    from fuseledger.triton.package import Emission

SCHEMA = "fuseledger/compile@1"

_FIGURES = (
    Column("kernel"), Column("ops", wraps=True),
    Column("registers: modelled", "right"), Column("compiled", "right"),
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
            row["compiled"] = asdict(compiled)
            row["occupancy"] = asdict(fits) if fits is not None else None
            row["accounts"] = {k: asdict(ledger.accounts[k]) for k in ("registers", "capacity")}
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
    page.line(f"{device.name}, {target}, triton {compiler_version()}")
    page.table(_FIGURES, [_figures(each, found, device) for each in emissions])
    mixes = [
        (each.ledger.name, found[each.kernel.name].instructions)
        for each in emissions
        if each.kernel is not None and found[each.kernel.name].instructions
    ]
    if mixes:
        page.line("")
        rows = [
            Row((name, *(f"{mix.get(kind, 0):,}" for kind in ("all", *MIX)))) for name, mix in mixes
        ]
        page.table(_INSTRUCTIONS, rows)
    return page.text()


def _figures(each: Emission, found: Mapping[str, Compiled], device: Device) -> Row:
    modelled = f"{each.ledger.accounts['registers'].value:.0f}"
    first = (each.ledger.name, each.ledger.label, modelled)
    compiled = found.get(each.kernel.name) if each.kernel is not None else None
    if each.kernel is None or compiled is None or compiled.failed:
        why = each.missing if compiled is None else compiled.failed
        word = "cannot be emitted" if compiled is None else "does not compile"
        return Row((*first, *("–",) * 7), note=f"{word}: {why}")
    fits = occupancy(compiled, device)
    resident = ("–", "–")
    if fits is not None:
        resident = (f"{fits.blocks}, {fits.limit}", f"{fits.share:.0%}")
    cells = (
        *first, str(compiled.registers), _bytes(compiled.spilled_bytes),
        _bytes(compiled.stack_bytes), format_kib(compiled.shared_bytes), *resident,
        "cached" if compiled.is_cached else f"{compiled.seconds:.1f}",
    )  # fmt: skip
    return Row(cells, note="; ".join((*each.kernel.notes, *compiled.warnings)))


def _bytes(count: int) -> str:
    return f"{count:,} B" if count else "0"
