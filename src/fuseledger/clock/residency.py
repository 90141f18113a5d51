"""Which reads of a kernel sequence find their tensor still in L2.

A least-recently-used cache: a tensor is still there if what was touched since, itself included,
fits. Where a part of it fits, that part is served: the share falls linearly from one at `FULL` of
the capacity to none at `EMPTY` of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseledger.clock.library_kernel import LibraryKernel

FULL, EMPTY = 0.5, 1.1
"""Shares of L2: hashing and the two partitions of Ampere's and Hopper's L2 leave about half of it
to a tensor read from every SM; some of a tensor stays while it is not much larger than L2."""


def resident_shares(distance_bytes: float, l2_bytes: float) -> float:
    """Share of a tensor that L2 still holds after so many bytes were touched."""
    fill = distance_bytes / l2_bytes
    return min(1.0, max(0.0, (EMPTY - fill) / (EMPTY - FULL)))


def dram_and_l2_bytes(
    kernels: Sequence[LibraryKernel], l2_bytes: float, *, warm: bool
) -> list[tuple[float, float]]:
    """(bytes that reach DRAM, bytes that L2 serves) of each kernel.

    `warm`: the sequence ran just before, so its first reads may hit too. A storage that was
    touched before is read, or written over, in L2 as far as it is still there; a fresh one goes to
    DRAM, for what its lines push out has to be written back as well.
    """
    order: dict[str, int] = {}
    """Storage → its size; kept in the order of last use."""
    costs: list[tuple[float, float]] = []
    for run in (0, 1) if warm else (1,):
        for kernel in kernels:
            dram = l2 = 0.0
            for streams in (kernel.reads, kernel.writes):
                for stream in streams:
                    share = _share(order, stream.storage, stream.bytes, l2_bytes)
                    dram += (1.0 - share) * stream.bytes
                    l2 += share * stream.bytes
            if run:
                costs.append((dram, l2))
            for stream in (*kernel.reads, *kernel.writes):
                order.pop(stream.storage, None)
                order[stream.storage] = stream.bytes
    return costs


def _share(order: dict[str, int], storage: str, size: int, l2_bytes: float) -> float:
    """Resident share of a storage; none of a fresh one."""
    if storage not in order:
        return 0.0
    touched = 0.0
    limit = EMPTY * l2_bytes
    for other in reversed(order):
        if other == storage:
            return resident_shares(touched + size, l2_bytes)
        touched += order[other]
        if touched + size > limit:
            return 0.0
    return 0.0
