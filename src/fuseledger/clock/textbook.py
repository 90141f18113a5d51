"""The textbook clock: max(bytes/bandwidth, FLOPs/peak) + launch, with a spill penalty.

Where a grid is declared it limits both terms, wave by wave, a block an SM: an SM draws so many
bytes per clock, and SMs without a block compute nothing.
"""

from __future__ import annotations

from fuseledger.clock.time import Time
from fuseledger.devices import Device
from fuseledger.ledger.declared import declared_price
from fuseledger.ledger.nest import Nest

SPILL_PENALTY = 3.0
"""Factor on memory time where no op declares another: definition of the chain exercise."""


def declared_time(nest: Nest, device: Device) -> Time:
    """The textbook clock, in µs: max(bytes/bandwidth, FLOPs/peak) + launch.

    Memory time × `spill_penalty` (declared by the chain, 3 by default) where the registers of the
    kernel exceed what a thread can have: what that adds is the time's `spill_us`.
    """
    price = declared_price(nest)
    limit = device.registers_per_thread_max
    memory_us = _memory_us(price.dram_bytes, price.blocks, device)
    compute_us = sum(price.flops.values()) / device.peak_for("fp16", matrix=True) * 1e6
    if price.blocks and device.sm_count:
        waves = -(-price.blocks // device.sm_count)
        compute_us *= waves * device.sm_count / price.blocks
    slowest = max(memory_us, compute_us)
    spilling = limit is not None and price.registers > limit
    spill_us = max(memory_us * _penalty(nest), compute_us) - slowest if spilling else 0.0
    launch_us = price.launches * device.launch_us("queued")
    terms = (("dram", memory_us), ("lanes", compute_us))
    return Time(slowest + spill_us + launch_us, launch_us, terms, 0.0, spill_us)


def _penalty(nest: Nest) -> float:
    declared = (op.attributes.get("spill_penalty") for op in nest.ops.values())
    return next((penalty for penalty in declared if penalty is not None), SPILL_PENALTY)


def _memory_us(moved: int, blocks: int, device: Device) -> float:
    """Time of the bytes: a declared grid's last wave may be too short to draw all bandwidth."""
    stream = device.require("stream_gbs")
    per_clock = device.dram_bytes_per_clock_per_sm
    if not blocks or not device.sm_count or not device.clock_mhz or per_clock is None:
        return moved / stream / 1e3
    per_sm = per_clock * device.clock_mhz / 1e3
    full, tail = divmod(blocks, device.sm_count)
    share = full * device.sm_count / min(stream, device.sm_count * per_sm)
    if tail:
        share += tail / min(stream, tail * per_sm)
    return moved / blocks * share / 1e3
