"""Flip points: the value of a size or a device figure at which a verdict changes."""

from __future__ import annotations

from collections.abc import Callable

from fuseledger.devices import Device
from fuseledger.ledger.price import Price


def capacity_flips(price: Price, device: Device, sizes: dict[str, int]) -> tuple[str, ...]:
    """What would make the largest held tensor fit: capacity, or the axis it is whole along.

    The bytes are a product over axes, so the size at which they meet the room is a division.
    """
    if not price.held:
        return ()
    item = max(price.held, key=lambda held: held.bytes)
    flips = [f"fits from {item.bytes / 1024:,.0f} KB a block"]
    rooms = [device.accumulator_bytes_per_block or 0]
    if item.shared_bytes is not None:
        rooms.append(device.shared_memory_per_block_bytes or 0)
    whole = [(size, name) for name, size in item.extents if sizes.get(name) == size]
    if whole and max(rooms):
        size, name = max(whole)
        flips.append(f"fits while {name} is at most {size * max(rooms) // item.bytes:,}")
    return tuple(flips)


def grid_flips(price: Price) -> tuple[str, ...]:
    """The machine that the grid would fill."""
    return (f"fills a machine of up to {price.blocks} SMs",)


def last_true(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """The greatest integer in [low, high] for which a monotone property holds, or None.

    The property holds up to some value and fails beyond; found by bisection.
    """
    if not holds(low):
        return None
    if holds(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
