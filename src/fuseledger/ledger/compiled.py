"""What a compiler said of a kernel under one schedule, in place of the model of the figures."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.ledger.account import Account, format_count, format_kib
from fuseledger.ledger.price import Price


class Figures(Struct, frozen=True, kw_only=True):
    """Registers and shared memory of one kernel."""

    registers: int
    """Per thread."""
    spill_bytes: int
    """Per thread."""
    shared_bytes: int
    """Per block."""


ScheduleKey = tuple[object, ...]
"""What tells one schedule of a nest from another: tiles of its open axes, walks, pipeline, who
merges parts, warps."""
Known = Mapping[ScheduleKey, Figures]
"""The schedules of a nest that were compiled."""


def schedule_key(price: Price, warps: int) -> ScheduleKey:
    """The key of a price's schedule with so many warps."""
    return (*price.tiles.values(), price.walks, price.pipeline, price.merge, warps)


def of_any_pipeline(known: Known) -> dict[ScheduleKey, Figures]:
    """By the key of a schedule without its pipeline, what was compiled that spills most: the best
    guess for the other pipelines. GEMM+bias+GELU+residual in tiles of 128×64 takes 208 to 211
    registers on sm_80 and sm_90 whatever its pipeline; 238 on gfx942, but 313 in steps of 256 B."""
    found: dict[ScheduleKey, Figures] = {}
    for key, figures in known.items():
        near = without_pipeline(key)
        if near not in found or figures.spill_bytes > found[near].spill_bytes:
            found[near] = figures
    return found


def without_pipeline(key: ScheduleKey) -> ScheduleKey:
    """The key that schedules which differ in their pipeline share."""
    return (*key[:-3], *key[-2:])


def use_compiled(price: Price, found: Figures, shared_limit: int | None) -> None:
    """Put compiled figures into a price; what was modelled stays beside them."""
    price.modelled = Figures(
        registers=price.registers, spill_bytes=price.spill_bytes, shared_bytes=price.shared_bytes
    )
    price.registers, price.spill_bytes = found.registers, found.spill_bytes
    price.shared_bytes = found.shared_bytes
    reason = does_not_fit(found, shared_limit)
    if reason is not None:
        price.vetoes += (("capacity", reason),)


def does_not_fit(found: Figures, shared_limit: float | None) -> str | None:
    """Why a compiled kernel cannot be launched, or None."""
    if shared_limit is None or found.shared_bytes <= shared_limit:
        return None
    return f"{format_kib(found.shared_bytes)} compiled do not fit {format_kib(shared_limit)}"


def with_compiled(accounts: Mapping[str, Account], found: Figures) -> dict[str, Account]:
    """A kernel's accounts with the compiler's registers and shared memory beside the modelled."""
    registers, capacity = accounts["registers"], accounts["capacity"]
    words = f"{found.registers} compiled"
    if found.spill_bytes:
        words += f"; {found.spill_bytes:,} B a thread spill"
    words += f"; modelled {format_count(registers.value)}: {registers.derivation}"
    held = f"{format_kib(found.shared_bytes)} compiled; modelled {format_kib(capacity.value)}"
    return {
        **accounts,
        "registers": replace(
            registers,
            value=found.registers,
            derivation=words,
            provenance="compiled",
            modelled=registers.value,
        ),
        "capacity": replace(
            capacity,
            value=found.shared_bytes,
            derivation=f"{held}: {capacity.derivation}",
            provenance="compiled",
            modelled=capacity.value,
            veto=does_not_fit(found, capacity.limit),
        ),
    }
