"""Occupancy from compiled figures: how many blocks an SM keeps, and what limits them."""

from __future__ import annotations

from msgspec import Struct

from fuseledger.devices import Device
from fuseledger.triton.compile import Compiled

ALLOCATED_REGISTERS = 256
"""Registers are given to a warp of 32 threads in units of so many: 8 a thread (CUDA Programming
Guide, Compute Capabilities; on AMD likewise 8 a lane since CDNA 2)."""
MOST_BLOCKS = 32
"""Blocks an SM keeps where the device does not say."""


class Occupancy(Struct, frozen=True, kw_only=True):
    """Blocks of a kernel that one SM keeps at once, and what limits them."""

    blocks: int
    limit: str
    share: float
    """Resident threads over the threads an SM can keep."""


def occupancy(compiled: Compiled, device: Device) -> Occupancy | None:
    """Blocks per SM, and the resource that limits them; None for a kernel that did not compile.

    0 blocks where a single one exceeds an SM: the launch would fail.
    """
    if compiled.failed or not compiled.threads:
        return None
    limits: dict[str, int] = {"blocks": device.blocks_per_sm or MOST_BLOCKS}
    if device.threads_per_sm:
        limits["threads"] = device.threads_per_sm // compiled.threads
    if device.registers_per_sm and compiled.registers:
        units = -(-compiled.registers * 32 // ALLOCATED_REGISTERS)
        warps = -(-compiled.threads // 32)
        limits["registers"] = device.registers_per_sm // (units * ALLOCATED_REGISTERS * warps)
    if device.shared_memory_per_sm_bytes and compiled.shared_bytes:
        each = compiled.shared_bytes + (device.shared_memory_reserved_per_block_bytes or 0)
        limits["shared memory"] = device.shared_memory_per_sm_bytes // each
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    share = blocks * compiled.threads / device.threads_per_sm if device.threads_per_sm else 0.0
    return Occupancy(blocks=blocks, limit=limit, share=share)
