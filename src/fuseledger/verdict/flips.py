"""Flip points: the value of a size or a device figure at which a verdict changes."""

from __future__ import annotations

from collections.abc import Callable

from fuseledger.ledger.price import Price


def capacity_flips(price: Price) -> tuple[str, ...]:
    """What would make the largest held tensor fit: capacity, or the extent it is whole along."""
    if not price.held:
        return ()
    item = max(price.held, key=lambda held: held.register_bytes)
    need = item.register_bytes if item.shared_bytes is None else item.shared_bytes
    room = max(price.register_bytes, price.shared_bytes)
    flips = [f"fits from {need / 1024:,.0f} KB a block"]
    longest = max(item.extents, default=1)
    if room and need and longest > 1:
        flips.append(f"fits while the extent of {longest} is at most {longest * room // need}")
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
