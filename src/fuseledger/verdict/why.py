"""Why one kernel costs more than the kernels it would be made of: the account that worsens most."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fuseledger.clock.time import GENERATED
from fuseledger.ledger.account import format_bytes, format_flops
from fuseledger.ledger.price import Price
from fuseledger.planner.schedules import ScheduleSearch


def dearer(search: ScheduleSearch, together: Price, apart: Sequence[Price]) -> tuple[str, str]:
    """(account, words) of what worsens most in time when several kernels become one."""
    slow_template = _slow_template(search, together, apart)
    if slow_template is not None:
        return "realisation", slow_template
    device = search.device
    stream = device.stream_gbs or 1.0
    once = max(1.0, together.work_once)
    extra = together.extra_flops - sum(p.extra_flops for p in apart)
    merged = search.clock.time(together)
    slower = dict(merged.terms)
    before: dict[str, float] = {}
    for price in apart:
        for name, us in search.clock.time(price).terms:
            before[name] = before.get(name, 0.0) + us
    work_us = max(slower.get(n, 0) - before.get(n, 0) for n in ("matrix", "lanes", "special"))
    bytes_us = (together.dram_bytes - sum(p.dram_bytes for p in apart)) / stream / 1e3
    l2_us = slower.get("l2", 0.0) - before.get("l2", 0.0)
    if extra > 0.01 * once and work_us >= max(bytes_us, l2_us):
        return "epilogue", f"{format_flops(extra)} ({extra / once:,.0%}) are computed again"
    if merged.padding > 1.01 and work_us >= max(bytes_us, l2_us):
        return "epilogue", f"its tiles are padded by {merged.padding - 1:.0%}"
    if bytes_us > 0 and bytes_us >= l2_us:
        walked = f", walked {together.walks} times" if together.walks > 1 else ""
        return "traffic", f"{format_bytes(bytes_us * stream * 1e3)} more are moved{walked}"
    sms = device.sm_count or 1
    longest = max(apart, key=lambda price: search.clock.time(price).total_us)
    if together.blocks < min(sms, longest.blocks):
        return "parallelism", f"a grid of {together.blocks} leaves SMs idle"
    loaded = together.l2_bytes - sum(p.l2_bytes for p in apart)
    if l2_us > 0 and loaded > 0:
        return "capacity", (
            f"what must be held leaves room for small tiles only, which load "
            f"{format_bytes(loaded)} more of operands"
        )
    return "parallelism", f"a grid of {together.blocks} blocks fills the machine less well"


def _slow_template(search: ScheduleSearch, together: Price, apart: Sequence[Price]) -> str | None:
    """That a library call would pay and generated code does not, where that is so."""
    clock = search.clock
    merged, times = clock.time(together), [clock.time(price) for price in apart]
    calls = [p.calls for p, t in zip(apart, times, strict=True) if t.realised != GENERATED]
    if merged.realised != GENERATED or not calls:
        return None
    with_library = clock.time(replace(together, calls=calls[0]))
    if with_library.total_us >= sum(time.total_us for time in times):
        return None
    words = (
        f"{together.calls.why_generated}: generated code reaches {merged.matrix_share:.0%} of the "
        f"peak, {with_library.realised} {with_library.matrix_share:.0%}"
    )
    padded = merged.padding / with_library.padding - 1
    return f"{words}; its tiles are padded by {padded:.0%} more" if padded >= 0.005 else words
