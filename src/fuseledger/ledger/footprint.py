"""R5, the footprint: what a block holds at once, who holds it, and the occupancy that remains.

Owned tensors and accumulators live through every loop outside their own; operands of contractions
are staged in shared memory, once per pipeline stage. Each held tensor has one holder.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cached_property
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.devices import Device
from fuseledger.graph.tensor import DTYPE_BITS
from fuseledger.ledger.compiled import (
    Figures,
    Known,
    of_any_pipeline,
    schedule_key,
    use_compiled,
    without_pipeline,
)
from fuseledger.ledger.kernel import Pipeline
from fuseledger.ledger.live_values import LOOP_POINTS, power_of_two
from fuseledger.ledger.nest import Nest
from fuseledger.ledger.price import WARP_THREADS, Held, Price
from fuseledger.ledger.products import STEPS, Products
from fuseledger.ledger.registers import RegisterModel
from fuseledger.ledger.staging import Staging

ACCUMULATOR_BYTES = 4
"""Reductions accumulate in fp32."""
LOOP = "loop"
"""Stands for the in-block loops among the extents of what is held."""
FRAGMENT = 8 * 4 * WARP_THREADS
"""Elements of a pointwise chain in flight at once: eight a thread, of four warps. The chain after
an accumulator works on it in place."""
SMALL_BYTES = 64 * 1024
"""Held tensors up to this size go to registers first, larger ones to shared memory."""
WARPS = (4, 8, 16)
"""Warps of a block."""


class Footprint:
    """Adds holders, shared memory, registers, warps and occupancy to prices of one nest.

    `halos` names, per op, the axes along which a block sees other extents than the tiles, and
    whether a tile of the grid drives them (else loops of the block do: a pool inside a sum);
    `most` has their extents in a block that is the whole kernel (a pool may leave a rest unread).
    """

    def __init__(
        self,
        nest: Nest,
        device: Device,
        contractions: list[tuple[int, tuple[str, ...], tuple[str, ...]]],
        halos: Mapping[int, Mapping[str, bool]],
        most: Mapping[int, Mapping[str, int]],
        known: Known | None = None,
    ) -> None:
        self._nest = nest
        self._known = known
        self._near = of_any_pipeline(known) if known else {}
        self._extent = _Extents(nest, halos, most)
        self.limits = Limits.of(device)
        self.products = Products(nest, contractions, self._extent)
        self._staging = Staging(nest, device.arch, self.products)
        self.registers = RegisterModel(nest, device, self.products, self._extent)

    @cached_property
    def _owning(self) -> tuple[list[_Holding], list[_Part]]:
        return _results(self._nest, self._extent, owning=True)

    @cached_property
    def _walking(self) -> tuple[list[_Holding], list[_Part]]:
        return _results(self._nest, self._extent, owning=False)

    def place(self, price: Price, regions: dict[int, dict[str, int]]) -> None:
        """Fill in what a block holds, who holds it, and the vetoes of what finds no room."""
        held, in_flight = self._owning if price.walks == 1 else self._walking
        price.held = [
            Held(
                name=name,
                register_bytes=elements * ACCUMULATOR_BYTES,
                shared_bytes=None if in_registers else (elements * bits + 7) // 8,
                extents=extents,
            )
            for part, tensors in held
            for extents, elements in (part.extents(regions[part.position]),)
            for name, bits, in_registers in tensors
        ]
        most = 0
        for part in in_flight:
            most = max(most, part.elements(regions[part.position]))
            if most >= FRAGMENT:
                most = FRAGMENT
                break
        price.register_bytes = most * ACCUMULATOR_BYTES
        self._fit(price, regions)

    def _fit(self, price: Price, regions: dict[int, dict[str, int]]) -> None:
        """Place what is held beside the pipeline asked for, or the longest shorter one that leaves
        room; veto where none does."""
        in_flight, pipeline = price.register_bytes, price.pipeline
        while pipeline is not None:
            price.pipeline = pipeline
            price.staged = self._staging.of(regions, pipeline.step_bytes, owning=price.walks == 1)
            price.vetoes = self._hold(price, in_flight)
            pipeline = _shorter(pipeline) if price.vetoes and price.staged is not None else None

    def _hold(self, price: Price, in_flight: int) -> tuple[tuple[str, str], ...]:
        """Give each held tensor to one holder; a veto of each that finds none."""
        room_shared, room_registers = self.limits.shared_bytes, self.limits.accumulator_bytes
        shared, registers = price.staged_bytes, in_flight
        vetoes: list[tuple[str, str]] = []
        for item in sorted(price.held, key=_register_bytes, reverse=True):
            fits_shared = item.shared_bytes is not None and (
                room_shared is None or shared + item.shared_bytes <= room_shared
            )
            fits_registers = (
                room_registers is None or registers + item.register_bytes <= room_registers
            )
            if fits_registers and (item.register_bytes <= SMALL_BYTES or not fits_shared):
                item.holder = "registers"
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
                vetoes.append(("capacity", reason))
        if room_shared is not None and shared > room_shared:
            reason = f"{shared // 1024} KB of staged operands do not fit {room_shared // 1024} KB"
            vetoes.append(("capacity", reason))
        price.shared_bytes, price.register_bytes = shared, registers
        return tuple(vetoes)

    def occupy(self, price: Price, regions: dict[int, dict[str, int]]) -> None:
        """Fill in warps, registers and blocks per SM.

        Fewest warps with which nothing spills, or those that spill least. A schedule that was
        compiled has the compiler's figures; one that differs from it in its pipeline alone is taken
        to need the same registers.
        """
        owning = price.walks == 1
        block = self.registers.block(regions, price.tiles, owning=owning, pipeline=price.pipeline)
        best: tuple[int, int, int, Figures | None] | None = None
        for warps in WARPS:
            needed = self.registers.needed(block, warps, owning=owning)
            limit = self.limits.registers_of(warps)
            spilled = max(0, needed - limit) * 4
            found = None
            if self._known:
                key = schedule_key(price, warps)
                found = self._known.get(key)
                near = self._near.get(without_pipeline(key)) if found is None else None
                if near is not None:
                    needed, spilled = near.registers, near.spill_bytes
            spills = found.spill_bytes if found is not None else spilled
            if best is None or spills * warps < best[0]:
                best = (spills * warps, warps, needed, found)
                price.warps, price.registers, price.spill_bytes = warps, min(needed, limit), spilled
            if not spills:
                break
        if best is not None and best[3] is not None:
            use_compiled(price, best[3], self.limits.shared_bytes)
        price.blocks_per_sm = self.limits.blocks_per_sm(price)


class Limits(Struct, frozen=True, kw_only=True):
    """What the device gives a block and an SM; None where it does not say."""

    shared_bytes: int | None
    accumulator_bytes: int | None
    shared_bytes_per_sm: int | None
    reserved_bytes: int
    registers_per_sm: int | None
    registers_per_thread: int
    threads_per_sm: int | None
    blocks: int

    @staticmethod
    def of(device: Device) -> Limits:
        """The device's figures, read once."""
        return Limits(
            shared_bytes=device.shared_memory_per_block_bytes,
            accumulator_bytes=device.accumulator_bytes_per_block,
            shared_bytes_per_sm=device.shared_memory_per_sm_bytes,
            reserved_bytes=device.shared_memory_reserved_per_block_bytes or 0,
            registers_per_sm=device.registers_per_sm,
            registers_per_thread=device.registers_per_thread_max or 255,
            threads_per_sm=device.threads_per_sm,
            blocks=device.blocks_per_sm or 32,
        )

    def blocks_per_sm(self, price: Price) -> int:
        """Blocks that an SM keeps at once, at least 1: the least over all limits."""
        threads = WARP_THREADS * price.warps
        blocks = self.blocks
        if self.threads_per_sm:
            blocks = min(blocks, self.threads_per_sm // threads)
        if self.registers_per_sm:
            blocks = min(blocks, self.registers_per_sm // (price.registers * threads))
        if self.shared_bytes_per_sm and price.shared_bytes:
            each = price.shared_bytes + self.reserved_bytes
            blocks = min(blocks, self.shared_bytes_per_sm // each)
        return max(1, blocks)

    def registers_of(self, warps: int) -> int:
        """Registers that a thread of a block of so many warps may use."""
        file = self.registers_per_sm or 65536
        return min(self.registers_per_thread, file // (WARP_THREADS * warps))


class _Part:
    """Part of a tensor in a block, prepared for asking its size under many schedules.

    Along tiled axes and axes that must be whole it is as long as the block's region. In-block
    loops are another matter: together they hold LOOP_POINTS at most.
    """

    __slots__ = ("halo", "kept", "listed", "looped", "position", "reduced", "sizes")

    def __init__(
        self,
        position: int,
        listed: tuple[str, ...],
        looped: tuple[str, ...],
        halo: tuple[str, ...],
        sizes: Mapping[str, int],
        reduced: Set[str],
    ) -> None:
        self.position = position
        self.listed = listed
        self.kept = tuple(axis for axis in listed if axis not in reduced)
        self.reduced = tuple(axis for axis in listed if axis in reduced)
        self.looped = looped
        self.halo = halo
        """All axes in order, where some are loops unless the region is short of the whole."""
        self.sizes = sizes
        """Most of each axis that is a loop, or 0 where it is one in any case."""

    def extents(
        self, region: Mapping[str, int], points: int = LOOP_POINTS
    ) -> tuple[tuple[tuple[str, int], ...], int]:
        """(axis, elements held along it) in order, in-block loops together; and their product."""
        looped = elements = 1
        found: list[tuple[str, int]] = []
        if self.halo:
            for axis in self.halo:
                extent = region[axis]
                if axis not in self.sizes or extent < self.sizes[axis]:
                    found.append((axis, extent))
                    elements *= extent
                else:
                    looped *= extent
        else:
            for axis in self.listed:
                extent = region[axis]
                found.append((axis, extent))
                elements *= extent
            for axis in self.looped:
                looped *= region[axis]
        if looped > 1:
            looped = min(looped, points)
            found.append((LOOP, looped))
        return tuple(found), elements * looped

    def elements(self, region: Mapping[str, int], points: int = LOOP_POINTS) -> int:
        """Product of the extents."""
        if self.halo:
            return self.extents(region, points)[1]
        looped = elements = 1
        for axis in self.looped:
            looped *= region[axis]
        for axis in self.listed:
            elements *= region[axis]
        return elements * (looped if looped < points else points)

    def lanes(self, region: Mapping[str, int], points: int = LOOP_POINTS) -> int:
        """Elements as compilers of tiles round them up: what is reduced, and the rest."""
        if self.halo:
            return power_of_two(self.elements(region, points))
        looped = reduced = kept = 1
        for axis in self.looped:
            looped *= region[axis]
        for axis in self.reduced:
            reduced *= region[axis]
        for axis in self.kept:
            kept *= region[axis]
        reduced *= looped if looped < points else points
        return power_of_two(kept) * power_of_two(reduced)


_Holding = tuple[_Part, list[tuple[str, int, bool]]]
"""A part, and what has its extents: (tensor, bits, whether only registers may hold it)."""


class _Extents:
    """The parts of one nest; ops with the same region share those of the same axes."""

    def __init__(
        self,
        nest: Nest,
        halos: Mapping[int, Mapping[str, bool]],
        most: Mapping[int, Mapping[str, int]],
    ) -> None:
        self._most = most
        self._open = frozenset(nest.open_axes)
        self._tiled = self._open - nest.split_axes
        self._reduced = frozenset[str]().union(*(op.reduces for op in nest.ops.values()))
        self._halos = halos
        self._known: dict[tuple[object, ...], _Part] = {}

    def part(self, position: int, axes: tuple[str, ...], whole: frozenset[str]) -> _Part:
        """The part along `axes` of what an op works on, held whole along `whole`."""
        halos = self._halos.get(position)
        key = (-1 if halos is None else position, axes, whole)
        found = self._known.get(key)
        if found is None:
            listed = self._tiled | whole
            looped = tuple(axis for axis in axes if axis not in listed)
            halo, sizes = (), dict[str, int]()
            if halos is not None:
                closed = {n for n, is_tiled in halos.items() if is_tiled and n not in self._open}
                if not closed.isdisjoint(looped):
                    halo = axes
                    sizes = {n: self._most[position][n] if n in closed else 0 for n in looped}
            rest = tuple(axis for axis in axes if axis in listed)
            found = self._known[key] = _Part(position, rest, looped, halo, sizes, self._reduced)
        return found


def _results(nest: Nest, extents: _Extents, *, owning: bool) -> tuple[list[_Holding], list[_Part]]:
    """(held, in flight): owned tensors and accumulators, and results of pointwise chains.

    Where carried tensors are walked twice, not `owning`, they are not held.
    """
    tensors = nest.graph.tensors
    held: list[_Holding] = []
    in_flight: dict[_Part, None] = {}

    def hold(part: _Part, name: str, *, in_registers: bool) -> None:
        tensor = (name, DTYPE_BITS[tensors[name].dtype], in_registers)
        if held and held[-1][0] is part:
            held[-1][1].append(tensor)
        else:
            held.append((part, [tensor]))

    for i, op in nest.ops.items():
        accumulates = op.combine is not None and not op.scans
        for write in op.writes:
            carried = nest.carried.get(write.tensor, _NONE) if owning else _NONE
            through = nest.held_through.get(write.tensor, _NONE)
            part = extents.part(i, op.kept, carried | through)
            if carried or through or accumulates:
                hold(part, write.tensor, in_registers=bool(through or not carried))
            else:
                in_flight[part] = None
    for name, whole in nest.carried.items() if owning else ():
        if name in nest.external:
            i, access = nest.external[name][0]
            hold(extents.part(i, access.axes, whole), name, in_registers=False)
    return held, list(in_flight)


def _shorter(pipeline: Pipeline) -> Pipeline | None:
    """The next pipeline that takes less shared memory: fewer stages, then shorter steps, then no
    overlap at all."""
    if pipeline.stages > 2:
        return replace(pipeline, stages=pipeline.stages - 1)
    if pipeline.step_bytes > STEPS[0]:
        return replace(pipeline, step_bytes=pipeline.step_bytes // 2)
    return replace(pipeline, stages=1) if pipeline.stages > 1 else None


_NONE: frozenset[str] = frozenset()
_register_bytes = attrgetter("register_bytes")
