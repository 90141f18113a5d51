"""R5, the footprint: what a block holds at once, who holds it, and the occupancy that remains.

Owned tensors and accumulators live through every loop outside their own; operands of contractions
are staged in shared memory, once per pipeline stage. Each held tensor has one holder.
"""

from __future__ import annotations

from math import prod

from fuseledger.devices import Device
from fuseledger.graph.tensor import DTYPE_BITS
from fuseledger.ledger.nest import Nest
from fuseledger.ledger.price import WARP_THREADS, Held, Price

ACCUMULATOR_BYTES = 4
"""Reductions accumulate in fp32."""
LOOP_POINTS = 64
"""Points of the in-block loops that a block works on at once, where nothing must be whole."""
LOOP = "loop"
"""Stands for the in-block loops among the extents of what is held."""
STEP_BYTES = 64
"""Bytes along the reduced axis that one pipeline stage of a contraction loads of each row."""
FRAGMENT = 8 * 4 * WARP_THREADS
"""Elements of a pointwise chain in flight at once: eight a thread, of four warps. The chain after
an accumulator works on it in place."""
REGISTERS_BASE = 24
"""Addresses, loop counters and predicates of a thread, in registers."""
SMALL_BYTES = 64 * 1024
"""Held tensors up to this size go to registers first, larger ones to shared memory."""
MAX_WARPS = 16


class Footprint:
    """Adds holders, shared memory, registers, warps and occupancy to prices of one nest."""

    def __init__(
        self,
        nest: Nest,
        device: Device,
        contractions: list[tuple[int, tuple[str, ...], tuple[str, ...]]],
    ) -> None:
        self.nest = nest
        self.device = device
        tensors = nest.graph.tensors
        self._results = [
            (
                i,
                write.tensor,
                DTYPE_BITS[tensors[write.tensor].dtype],
                op.combine is not None and not op.scans,
                tuple(name for name in op.sizes if name not in op.reduces),
            )
            for i, op in nest.ops.items()
            for write in op.writes
        ]
        self._owned_inputs = [
            (name, *nest.external[name][0], DTYPE_BITS[tensors[name].dtype])
            for name in nest.carried
            if name in nest.external
        ]
        self._operands: list[tuple[int, tuple[str, ...], int, int]] = []
        for i, rows, columns in contractions:
            op = nest.ops[i]
            depth = prod(op.sizes[name] for name in op.reduces)
            for access, side in ((op.reads[0], rows), (op.reads[1], columns)):
                if access.tensor in nest.external:
                    bits = DTYPE_BITS[tensors[access.tensor].dtype]
                    self._operands.append((i, side, min(depth, STEP_BYTES * 8 // bits), bits))
        self._warps: dict[int, tuple[int, int, int]] = {}

    def add(self, price: Price, regions: dict[int, dict[str, int]]) -> None:
        """Fill in everything of the price that R5 decides."""
        self._hold(price, regions)
        price.staged_bytes = sum(
            (_elements(self._extents(side, regions[i], price.tiles, _NONE)) * step * bits + 7) // 8
            for i, side, step, bits in self._operands
        )
        self._place(price)
        self._occupancy(price)

    def _hold(self, price: Price, regions: dict[int, dict[str, int]]) -> None:
        nest = self.nest
        owning = price.walks == 1
        in_flight = 0
        for i, name, bits, accumulates, axes in self._results:
            carried = nest.carried.get(name, _NONE) if owning else _NONE
            through = nest.held_through.get(name, _NONE)
            extents = self._extents(axes, regions[i], price.tiles, carried | through)
            elements = _elements(extents)
            if carried or through or accumulates:
                in_registers = through or not carried
                price.held.append(
                    Held(
                        name=name,
                        register_bytes=elements * ACCUMULATOR_BYTES,
                        shared_bytes=None if in_registers else (elements * bits + 7) // 8,
                        extents=extents,
                    )
                )
            else:
                in_flight = max(in_flight, min(elements, FRAGMENT) * ACCUMULATOR_BYTES)
        if owning:
            for name, i, access, bits in self._owned_inputs:
                axes = nest.carried[name]
                extents = self._extents(access.axes, regions[i], price.tiles, axes)
                elements = _elements(extents)
                price.held.append(
                    Held(
                        name=name,
                        register_bytes=elements * ACCUMULATOR_BYTES,
                        shared_bytes=(elements * bits + 7) // 8,
                        extents=extents,
                    )
                )
        price.register_bytes = in_flight

    def _extents(
        self,
        names: tuple[str, ...],
        region: dict[str, int],
        tiles: dict[str, int],
        whole: frozenset[str],
    ) -> tuple[tuple[str, int], ...]:
        """Elements held along each of `names`; in-block loops together hold LOOP_POINTS at most."""
        nest = self.nest
        extents: list[tuple[str, int]] = []
        looped = 1
        for name in names:
            extent = region[name]
            tiled = name in tiles and name not in nest.split_axes
            if name in whole or tiled or (name not in tiles and extent < nest.sizes[name]):
                extents.append((name, extent))
            else:
                looped *= extent
        if looped > 1:
            extents.append((LOOP, min(looped, LOOP_POINTS)))
        return tuple(extents)

    def _place(self, price: Price) -> None:
        """Give each held tensor to one holder; veto where neither has room."""
        room_shared = self.device.shared_memory_per_block_bytes
        room_registers = self.device.accumulator_bytes_per_block
        shared, registers = price.staged_bytes * price.stages, price.register_bytes
        while room_shared is not None and price.stages > 1 and shared > room_shared:
            price.stages -= 1
            shared = price.staged_bytes * price.stages
        for item in sorted(price.held, key=lambda held: -held.register_bytes):
            fits_shared = item.shared_bytes is not None and (
                room_shared is None or shared + item.shared_bytes <= room_shared
            )
            fits_registers = (
                room_registers is None or registers + item.register_bytes <= room_registers
            )
            if fits_registers and (item.register_bytes <= SMALL_BYTES or not fits_shared):
                registers += item.register_bytes
            elif fits_shared and item.shared_bytes is not None:
                item.holder = "shared memory"
                shared += item.shared_bytes
            else:
                left = [f"{((room_registers or 0) - registers) // 1024} KB of registers"]
                if item.shared_bytes is not None:
                    left.append(
                        f"{max(0, (room_shared or 0) - shared) // 1024} KB of shared memory"
                    )
                reason = (
                    f"{item.name} needs {item.words} = {item.bytes / 1024:,.0f} KB a block; "
                    f"{' and '.join(left)} are left"
                )
                price.vetoes += (("capacity", reason),)
        if room_shared is not None and shared > room_shared:
            reason = f"{shared // 1024} KB of staged operands do not fit {room_shared // 1024} KB"
            price.vetoes += (("capacity", reason),)
        price.shared_bytes, price.register_bytes = shared, registers

    def _occupancy(self, price: Price) -> None:
        """Warps from the registers that must be held; blocks per SM from every limit."""
        device = self.device
        if price.register_bytes not in self._warps:
            self._warps[price.register_bytes] = self._warps_for(price.register_bytes)
        price.warps, price.registers, price.spill_bytes = self._warps[price.register_bytes]
        threads = WARP_THREADS * price.warps
        limits = [device.blocks_per_sm or 32]
        if device.threads_per_sm:
            limits.append(device.threads_per_sm // threads)
        if device.registers_per_sm:
            limits.append(device.registers_per_sm // (price.registers * threads))
        if device.shared_memory_per_sm_bytes and price.shared_bytes:
            reserved = device.shared_memory_reserved_per_block_bytes or 0
            limits.append(device.shared_memory_per_sm_bytes // (price.shared_bytes + reserved))
        price.blocks_per_sm = max(1, min(limits))

    def _warps_for(self, register_bytes: int) -> tuple[int, int, int]:
        """(warps, registers per thread, bytes spilled per thread) for what a block must hold.

        The fewest of 4, 8 or 16 warps with which nothing spills.
        """
        limit = self.device.registers_per_thread_max or 255
        file = self.device.registers_per_sm or 65536
        warps = 4
        while True:
            threads = WARP_THREADS * warps
            needed = REGISTERS_BASE + -(-register_bytes // (4 * threads))
            cap = min(limit, file // threads)
            if needed <= cap or warps == MAX_WARPS:
                return warps, min(needed, cap), max(0, needed - cap) * 4
            warps *= 2


_NONE: frozenset[str] = frozenset()


def _elements(extents: tuple[tuple[str, int], ...]) -> int:
    total = 1
    for _, extent in extents:
        total *= extent
    return total
