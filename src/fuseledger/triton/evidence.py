"""Compiled figures in a kernel's ledger: they replace the model of the same figure."""

from __future__ import annotations

from dataclasses import replace

from fuseledger.ledger.account import format_count, format_kib
from fuseledger.ledger.ledger import KernelLedger
from fuseledger.triton.compile import Compiled


def with_evidence(ledger: KernelLedger, compiled: Compiled) -> KernelLedger:
    """The ledger with the compiler's registers and shared memory.

    What the model said stays in the derivations. A kernel that did not compile keeps its model.
    """
    if compiled.failed:
        return ledger
    registers, capacity = ledger.accounts["registers"], ledger.accounts["capacity"]
    words = f"{compiled.registers} compiled"
    if compiled.spilled_bytes:
        words += f"; {compiled.spilled_bytes} B a thread spill"
    words += f"; modelled {format_count(registers.value)}: {registers.derivation}"
    held = f"{format_kib(compiled.shared_bytes)} compiled; modelled {format_kib(capacity.value)}"
    limit = capacity.limit
    veto = None
    if limit is not None and compiled.shared_bytes > limit:
        veto = f"{format_kib(compiled.shared_bytes)} compiled do not fit {format_kib(limit)}"
    accounts = ledger.accounts | {
        "registers": replace(
            registers, value=compiled.registers, derivation=words, provenance="compiled"
        ),
        "capacity": replace(
            capacity,
            value=compiled.shared_bytes,
            derivation=f"{held}: {capacity.derivation}",
            provenance="compiled",
            veto=veto,
        ),
    }
    return replace(ledger, accounts=accounts)
