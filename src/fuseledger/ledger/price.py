"""Pricing a kernel under a schedule: plain numbers, computed thousands of times per plan.

The rules R2–R6 of the theory, in figures. `ledger.py` turns the chosen price into accounts with
their derivations; nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from fuseledger.devices import Device
from fuseledger.graph.op import COMBINES, Access, Op
from fuseledger.graph.reach import reach, touched_elements
from fuseledger.graph.tensor import Tensor, dtype_bytes
from fuseledger.ledger.nest import Edge, Nest

ACCUMULATOR_BYTES = 4
"""Reductions accumulate in fp32."""
LOOP_POINTS = 64
"""Points of the in-block loops that a block works on at once, where nothing must be whole."""
MATRIX_TILE = (16, 8)
"""Least tile of a matrix unit: mma.m16n8 on NVIDIA; the sides may swap."""
REGISTERS_BASE = 24
"""Addresses, loop counters and predicates of a thread, in registers."""
WARP_THREADS = 32


@dataclass(slots=True, kw_only=True)
class Held:
    """Something that a block holds at once."""

    name: str
    register_bytes: int
    shared_bytes: int | None
    """Bytes where it is kept in shared memory; None: an accumulator, registers only."""
    words: str
    """The product behind the bytes: `1024·32·4 B`."""
    holder: str = "registers"


@dataclass(slots=True, kw_only=True)
class Price:
    """What one kernel costs under one schedule."""

    tiles: dict[str, int]
    walks: int
    blocks: int
    read_bytes: int
    """Every external tensor once per walk."""
    write_bytes: int
    partial_bytes: int = 0
    """Bytes beyond the results themselves that partial results write and read."""
    parts: int = 1
    l2_bytes: int = 0
    """Bytes that the tiling makes blocks load, re-reads included."""
    flops: dict[str, float] = field(default_factory=dict[str, float])
    """Pipe key (`matrix:fp16`, `lanes:fp32`) → floating-point operations, recompute included."""
    special_ops: float = 0.0
    extra_flops: float = 0.0
    """Of the above, computed more than once."""
    held: list[Held] = field(default_factory=list[Held])
    staged_bytes: int = 0
    shared_bytes: int = 0
    register_bytes: int = 0
    stages: int = 1
    warps: int = 4
    registers: int = 32
    spill_bytes: int = 0
    launches: int = 1
    blocks_per_sm: int = 1
    vetoes: tuple[tuple[str, str], ...] = ()
    """(account, reason) where the schedule is not usable."""

    @property
    def dram_bytes(self) -> int:
        """Compulsory traffic of the kernel."""
        return self.read_bytes + self.write_bytes + self.partial_bytes


class Pricer:
    """Prices the schedules of one nest on one device; what no schedule changes is computed once."""

    def __init__(self, nest: Nest, device: Device) -> None:
        self.nest = nest
        self.device = device
        graph = nest.graph
        self.tensors = graph.tensors
        self.read_once = external_bytes(nest)
        self.read_bytes = sum(self.read_once.values())
        self.write_bytes = sum(self.tensors[name].bytes for name in nest.outputs)
        self.flops_once = sum(op.flops + op.special_ops for op in nest.ops.values())
        self._linked = any(edge.links for edge in nest.edges)
        self._out: dict[int, list[Edge]] = {i: [] for i in nest.positions}
        for edge in nest.edges:
            self._out[edge.producer].append(edge)

    # -- facts that no schedule changes ------------------------------------------------------

    @cached_property
    def contractions(self) -> list[tuple[int, tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
        """(op, axes of the left side alone, of the right side alone, reduced) per contraction."""
        found: list[tuple[int, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = []
        for i, op in self.nest.ops.items():
            if not op.is_contraction:
                continue
            left, right = set(op.reads[0].axes()), set(op.reads[1].axes())
            kept = [name for name in op.sizes if name not in op.reduces]
            found.append(
                (
                    i,
                    tuple(name for name in kept if name in left and name not in right),
                    tuple(name for name in kept if name in right and name not in left),
                    tuple(sorted(op.reduces)),
                )
            )
        return found

    @cached_property
    def contiguous(self) -> dict[str, int]:
        """Open axis → least tile that fills a sector of every tensor it is contiguous in."""
        sector = self.device.sector_bytes or 32
        least: dict[str, int] = {}
        reads = [access for accesses in self.nest.external.values() for _, access in accesses]
        writes = [w for op in self.nest.ops.values() for w in op.writes if w.tensor in self.nest.outputs]
        for access in (*reads, *writes):
            tensor = self.tensors[access.tensor]
            if not access.index or access.index[-1].axis is None:
                continue
            axis = access.index[-1].axis
            elements = max(1, sector * tensor.elements // max(1, tensor.bytes))
            least[axis] = max(least.get(axis, 1), min(elements, self.nest.sizes[axis]))
        return least

    @cached_property
    def cone(self) -> set[int]:
        """Ops that must run again when carried tensors are walked twice."""
        makers = {edge.tensor.name: edge.producer for edge in self.nest.edges}
        pending = [makers[name] for name in self.nest.carried if name in makers]
        found: set[int] = set()
        before: dict[int, list[int]] = {}
        for edge in self.nest.edges:
            before.setdefault(edge.consumer, []).append(edge.producer)
        while pending:
            i = pending.pop()
            if i not in found:
                found.add(i)
                pending.extend(before.get(i, ()))
        return found

    @cached_property
    def rewalked_bytes(self) -> int:
        """Bytes that one more walk over the carried tensors reads again."""
        cone = self.cone
        return sum(
            self.read_once[name]
            for name, reads in self.nest.external.items()
            if name in self.nest.carried or any(i in cone for i, _ in reads)
        )

    # -- one schedule ------------------------------------------------------------------------

    def regions(self, tiles: dict[str, int]) -> dict[int, dict[str, int]]:
        """Extent of every axis of every op inside one block: tiles, halos, or the whole axis."""
        ops = self.nest.ops
        if not self._linked:
            return {i: {a.name: tiles.get(a.name, a.size) for a in op.axes} for i, op in ops.items()}
        found: dict[int, dict[str, int]] = {}
        for i in reversed(self.nest.positions):
            op = ops[i]
            region = {a.name: tiles.get(a.name, a.size) for a in op.axes}
            needed: dict[str, int] = {}
            for edge in self._out[i]:
                inner = found[edge.consumer]
                for axis, index in zip(edge.tensor.axes, edge.access.index, strict=True):
                    extent = reach(index, inner, axis.size)
                    needed[axis.name] = max(needed.get(axis.name, 1), extent)
            region.update((name, extent) for name, extent in needed.items() if name in region)
            found[i] = region
        return found

    def price(self, tiles: dict[str, int], *, walks: int = 1, stages: int = 2) -> Price:
        """The price of one choice of tiles for the open axes (an axis left out is whole)."""
        nest = self.nest
        tiles = {name: min(tiles.get(name, nest.sizes[name]), nest.sizes[name]) for name in nest.open_axes}
        counts = {name: -(-nest.sizes[name] // tile) for name, tile in tiles.items()}
        blocks = prod(counts.values())
        regions = self.regions(tiles)
        price = Price(
            tiles=tiles, walks=walks, blocks=blocks, read_bytes=self.read_bytes,
            write_bytes=self.write_bytes, stages=stages,
        )  # fmt: skip
        self._work(price, regions, counts)
        self._partials(price, counts)
        if walks > 1:
            price.read_bytes += (walks - 1) * self.rewalked_bytes
        price.l2_bytes = self._loaded(regions, counts, blocks, walks) + self.write_bytes
        self._footprint(price, regions)
        self._occupancy(price)
        return price

    def _work(self, price: Price, regions: dict[int, dict[str, int]], counts: dict[str, int]) -> None:
        for i, op in self.nest.ops.items():
            again = self._factor(op, regions[i], price.tiles, counts, price.blocks)
            if price.walks > 1 and i in self.cone:
                again *= price.walks
            flops = op.flops * again
            if flops:
                key = self._pipe(op)
                price.flops[key] = price.flops.get(key, 0.0) + flops
            price.special_ops += op.special_ops * again
            price.extra_flops += (op.flops + op.special_ops) * (again - 1)

    def _factor(
        self, op: Op, region: dict[str, int], tiles: dict[str, int], counts: dict[str, int], blocks: int
    ) -> float:
        """Times that the op's points are computed over all blocks (R4)."""
        again = float(blocks)
        for axis in op.axes:
            extent = region[axis.name]
            if axis.name in tiles and extent == tiles[axis.name]:
                again /= counts[axis.name]
            else:
                again *= extent / axis.size if axis.size else 1
        return max(1.0, again)

    def _pipe(self, op: Op) -> str:
        dtype = self.tensors[op.reads[0].tensor].dtype if op.reads else "fp32"
        return f"matrix:{dtype}" if op.is_contraction else f"lanes:{dtype}"

    def _partials(self, price: Price, counts: dict[str, int]) -> None:
        """R3: a reduced axis on the grid makes parts, written and read by whoever folds them."""
        for op in self.nest.ops.values():
            parts = prod(counts[name] for name in op.reduces if name in counts)
            if parts <= 1 or op.combine is None:
                continue
            results = [self.tensors[w.tensor] for w in op.writes]
            part_bytes = sum(t.elements * max(ACCUMULATOR_BYTES, 0) for t in results)
            result_bytes = sum(t.bytes for t in results)
            written = parts * part_bytes
            folds = written <= self.FOLD_SHARE * (price.read_bytes + price.write_bytes)
            leaves = any(t.role == "output" for t in results)
            # the result's own bytes are in write_bytes and in its reader's traffic already
            if folds and not leaves:
                price.partial_bytes += 2 * written - 2 * result_bytes if written > result_bytes else 0
            else:
                price.partial_bytes += 2 * written
                price.launches = 2
            price.parts = max(price.parts, parts)
            merge = COMBINES[op.combine].merge_flops * (parts - 1) * op.output_points
            price.flops["lanes:fp32"] = price.flops.get("lanes:fp32", 0.0) + merge

    FOLD_SHARE = 0.1
    """Partials up to this share of a kernel's own traffic are folded by whoever reads them; more
    get a combine kernel."""

    def _loaded(
        self, regions: dict[int, dict[str, int]], counts: dict[str, int], blocks: int, walks: int
    ) -> int:
        """Bytes that all blocks load from L2: each operand's tile, once per block and walk."""
        total = 0
        for name, reads in self.nest.external.items():
            tensor = self.tensors[name]
            again = walks if name in self.nest.carried or any(i in self.cone for i, _ in reads) else 1
            most = 0
            for i, access in reads:
                elements = self._tile_elements(tensor, access, regions[i], self.nest.ops[i])
                most = max(most, dtype_bytes(tensor.dtype, elements))
            total += max(most * blocks, self.read_once[name]) * again
        return total

    def _tile_elements(self, tensor: Tensor, access: Access, region: dict[str, int], op: Op) -> int:
        elements = 1
        for axis, index in zip(tensor.axes, access.index, strict=True):
            if index.lookup is None:
                elements *= reach(index, region, axis.size)
            else:
                source = op.reads[index.lookup]
                elements *= min(axis.size, prod(region[name] for name in source.axes()))
        return elements

    def _footprint(self, price: Price, regions: dict[int, dict[str, int]]) -> None:
        """R5: owned tensors, accumulators and staged operands, and who holds them."""
        nest = self.nest
        seen: set[str] = set()
        transient = 0
        for i, op in nest.ops.items():
            region = regions[i]
            for write in op.writes:
                carried = nest.carried.get(write.tensor) if price.walks == 1 else None
                through = nest.held_through.get(write.tensor, frozenset[str]())
                tensor = self.tensors[write.tensor]
                accumulates = op.combine is not None and not op.scans
                whole = (carried or frozenset[str]()) | through
                names = [name for name in op.sizes if name not in op.reduces]
                elements, words = self._extent(names, region, price.tiles, whole)
                if carried or through:
                    element = ACCUMULATOR_BYTES if accumulates else tensor.elements and -(-tensor.bytes // tensor.elements)
                    stored = -(-tensor.bytes * elements // tensor.elements) if tensor.elements else 0
                    price.held.append(
                        Held(
                            name=write.tensor,
                            register_bytes=elements * ACCUMULATOR_BYTES,
                            shared_bytes=None if through else stored,
                            words=f"{words}·{element} B",
                        )
                    )
                    seen.add(write.tensor)
                elif accumulates:
                    price.held.append(
                        Held(
                            name=write.tensor, register_bytes=elements * ACCUMULATOR_BYTES,
                            shared_bytes=None, words=f"{words}·{ACCUMULATOR_BYTES} B",
                        )
                    )  # fmt: skip
                else:
                    transient = max(transient, elements * ACCUMULATOR_BYTES)
        if price.walks == 1:
            for name, axes in nest.carried.items():
                if name in nest.external:
                    i, access = nest.external[name][0]
                    tensor = self.tensors[name]
                    elements, words = self._extent(list(access.axes()), regions[i], price.tiles, axes)
                    stored = dtype_bytes(tensor.dtype, elements)
                    price.held.append(
                        Held(
                            name=name, register_bytes=elements * ACCUMULATOR_BYTES, shared_bytes=stored,
                            words=f"{words}·{stored // max(elements, 1) or 1} B",
                        )
                    )  # fmt: skip
        price.register_bytes = transient
        self._stage(price, regions)
        self._place(price)

    def _extent(
        self, names: list[str], region: dict[str, int], tiles: dict[str, int], whole: frozenset[str]
    ) -> tuple[int, str]:
        """Elements held along `names`, and the product in words."""
        elements, looped = 1, 1
        words: list[str] = []
        for name in names:
            looping = name not in tiles or name in self.nest.split_axes
            if name in whole or not looping or (
                name not in tiles and region[name] < self.nest.sizes[name]
            ):
                elements *= region[name]
                if region[name] > 1:
                    words.append(str(region[name]))
            else:
                looped *= region[name]
        if looped > 1:
            words.append(str(min(looped, LOOP_POINTS)))
        return elements * min(looped, LOOP_POINTS), "·".join(words) or "1"

    def _stage(self, price: Price, regions: dict[int, dict[str, int]]) -> None:
        """Shared memory for the operands that contractions stream, per pipeline stage."""
        staged = 0
        for i, left, right, reduced in self.contractions:
            op, region = self.nest.ops[i], regions[i]
            depth = prod(self.nest.sizes[name] for name in reduced)
            inside = self.nest.external
            for access, side in ((op.reads[0], left), (op.reads[1], right)):
                if access.tensor not in inside:
                    continue
                tensor = self.tensors[access.tensor]
                rows, _ = self._extent(list(side), region, price.tiles, frozenset())
                step = min(depth, max(8, 64 // max(1, -(-tensor.bytes // max(1, tensor.elements)))))
                staged += dtype_bytes(tensor.dtype, rows * step)
        price.staged_bytes = staged

    def _place(self, price: Price) -> None:
        """Give each held tensor to one holder; veto where neither holder has room."""
        device = self.device
        room_shared = device.shared_memory_per_block_bytes
        room_registers = device.accumulator_bytes_per_block
        shared, registers = price.staged_bytes * price.stages, price.register_bytes
        while room_shared is not None and price.stages > 1 and shared > room_shared:
            price.stages -= 1
            shared = price.staged_bytes * price.stages
        vetoes: list[tuple[str, str]] = []
        for item in sorted(price.held, key=lambda h: -h.register_bytes):
            fits_shared = item.shared_bytes is not None and (
                room_shared is None or shared + item.shared_bytes <= room_shared
            )
            fits_registers = room_registers is None or registers + item.register_bytes <= room_registers
            small = item.register_bytes <= 64 * 1024
            if fits_registers and (small or not fits_shared):
                registers += item.register_bytes
            elif fits_shared:
                assert item.shared_bytes is not None
                item.holder = "shared memory"
                shared += item.shared_bytes
            else:
                need = item.register_bytes if item.shared_bytes is None else item.shared_bytes
                limits = []
                if room_registers is not None:
                    limits.append(f"{(room_registers - registers) // 1024} KB of registers")
                if item.shared_bytes is not None and room_shared is not None:
                    limits.append(f"{max(0, room_shared - shared) // 1024} KB of shared memory")
                vetoes.append(
                    (
                        "capacity",
                        f"{item.name} needs {item.words} = {need / 1024:.0f} KB a block, "
                        f"{' or '.join(limits)} are left",
                    )
                )
        if room_shared is not None and shared > room_shared:
            vetoes.append(("capacity", f"{shared // 1024} KB of staged operands do not fit {room_shared // 1024} KB"))
        price.shared_bytes, price.register_bytes = shared, registers
        price.vetoes += tuple(vetoes)

    def _occupancy(self, price: Price) -> None:
        """Warps from the registers that must be held; blocks per SM from every limit."""
        device = self.device
        limit = device.registers_per_thread_max or 255
        threads = WARP_THREADS * price.warps
        while price.warps < 16 and REGISTERS_BASE + price.register_bytes / (4 * threads) > min(
            limit, 128 if price.warps < 8 else 168
        ):
            price.warps *= 2
            threads = WARP_THREADS * price.warps
        needed = REGISTERS_BASE + -(-price.register_bytes // (4 * threads))
        file_limit = (device.registers_per_sm or 65536) // threads
        cap = min(limit, file_limit)
        price.registers = min(needed, cap)
        price.spill_bytes = max(0, needed - cap) * 4
        per_sm = [device.blocks_per_sm or 32]
        if device.threads_per_sm:
            per_sm.append(device.threads_per_sm // threads)
        if device.registers_per_sm:
            per_sm.append(device.registers_per_sm // (max(price.registers, 1) * threads))
        if device.shared_memory_per_sm_bytes and price.shared_bytes:
            reserved = device.shared_memory_reserved_per_block_bytes or 0
            per_sm.append(device.shared_memory_per_sm_bytes // (price.shared_bytes + reserved))
        price.blocks_per_sm = max(1, min(per_sm))


def external_bytes(nest: Nest) -> dict[str, int]:
    """Bytes of each external tensor that the nest touches, once each."""
    found: dict[str, int] = {}
    for name, reads in nest.external.items():
        tensor = nest.graph.tensors[name]
        touched = sum(touched_elements(tensor, access, nest.ops[i]) for i, access in reads)
        found[name] = dtype_bytes(tensor.dtype, min(touched, tensor.elements))
    return found


def read_once(nest: Nest) -> int:
    """Bytes of everything the nest reads from outside, once each."""
    return sum(external_bytes(nest).values())


def least_tiles(pricer: Pricer) -> dict[str, int]:
    """The smallest tiles that matrix units and DRAM sectors allow."""
    nest = pricer.nest
    tiles = {name: min(pricer.contiguous.get(name, 1), nest.sizes[name]) for name in nest.open_axes}
    for name in nest.split_axes:
        tiles[name] = nest.sizes[name]
    for _, left, right, _ in pricer.contractions:
        extents = [prod(nest.sizes[n] for n in side) for side in (left, right)]
        goals = MATRIX_TILE if extents[0] >= extents[1] else MATRIX_TILE[::-1]
        for side, goal in zip((left, right), goals, strict=True):
            _grow_side(nest, side, goal, tiles)
    return tiles


def feeds_matrix_units(pricer: Pricer, tiles: dict[str, int]) -> bool:
    """Whether every contraction's tile, and every contiguous tile, is at least the least."""
    sizes = pricer.nest.sizes
    if any(tiles.get(name, least) < least for name, least in pricer.contiguous.items()):
        return False
    for _, left, right, _ in pricer.contractions:
        extents = [prod(tiles.get(name, sizes[name]) for name in side) for side in (left, right)]
        whole = [prod(sizes[name] for name in side) for side in (left, right)]
        enough = (
            all(e >= min(goal, w) for e, w, goal in zip(extents, whole, goals, strict=True))
            for goals in (MATRIX_TILE, MATRIX_TILE[::-1])
        )
        if not any(enough):
            return False
    return True


def _grow_side(nest: Nest, side: tuple[str, ...], goal: int, tiles: dict[str, int]) -> None:
    """Grow the tiles of one side's axes, innermost first, until their product reaches the goal."""
    total = prod(tiles.get(name, nest.sizes[name]) for name in side)
    for name in reversed(side):
        while total < goal and name in tiles and tiles[name] < nest.sizes[name]:
            before = tiles[name]
            tiles[name] = min(nest.sizes[name], before * 2)
            total = total // before * tiles[name]
