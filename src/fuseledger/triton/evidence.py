"""Compiled figures in a kernel's ledger: they replace the model of the same figure."""

from __future__ import annotations

from msgspec.structs import replace

from fuseledger.ledger.compiled import Figures, with_compiled
from fuseledger.ledger.ledger import KernelLedger
from fuseledger.triton.compile import Compiled


def figures_of(compiled: Compiled) -> Figures:
    """What the ledger takes of a compilation that succeeded."""
    return Figures(
        registers=compiled.registers,
        spill_bytes=compiled.spilled_bytes,
        shared_bytes=compiled.shared_bytes,
    )


def with_evidence(ledger: KernelLedger, compiled: Compiled) -> KernelLedger:
    """The ledger with the compiler's registers and shared memory.

    What the model said stays beside them. A kernel that did not compile keeps its model.
    """
    if compiled.failed:
        return ledger
    return replace(ledger, accounts=with_compiled(ledger.accounts, figures_of(compiled)))
