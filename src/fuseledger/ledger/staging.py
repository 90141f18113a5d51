"""What a block stages in shared memory for its matrix products.

A product walks its reduced axes in steps. The operands of a step pass through shared memory, each
tile rounded up to powers of two as compilers of tiles hold it, in as many buffers as are in use at
once: a matrix unit that reads shared memory while others fill it (`wgmma`, `tcgen05`) needs one a
pipeline stage; elsewhere the step at hand is in registers, and one stage needs no buffer. Where all
of a step is in registers before it is multiplied (`mfma`), what the loop does not load ahead leaves
its room to what comes next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from fuseledger.graph.op import Access, Op
from fuseledger.ledger.account import format_kib
from fuseledger.ledger.live_values import bits_of, side_of
from fuseledger.ledger.matrix_units import product_unit
from fuseledger.ledger.nest import Nest
from fuseledger.ledger.products import Products, Regions

STAGES = (2, 3, 4, 5)
"""Stages of a pipeline that are tried: those of the configurations that `STEPS` are from."""
READS_SHARED = ("wgmma", "tcgen05")
"""Matrix units that read their operands from shared memory, asynchronously."""

WARPS = 4
"""Of a block, where nothing asks for more; `tcgen05` is not used beyond eight."""
COPY_BITS = 32
"""Least bits in a row that are copied to shared memory without registers (PTX `cp.async`)."""

Kind = Literal["piped", "source", "single", "made", "handed", "kept"]
"""How a tile passes through shared memory. `piped`: copied ahead, a buffer a stage. `source`: what
an operand is made of, copied ahead and read into registers. `single`: loaded through registers, one
buffer. `made`: the same without a load. `handed`: likewise, but that `wgmma` takes its rows from
registers. `kept`: loaded before the loop that the product is in, and read by each of its turns."""


class _Operand(Struct, frozen=True):
    """One operand of a product, or what it is made of."""

    product: int
    side: int
    """0: its rows, 1: its columns."""
    steps: Mapping[int, int]
    """Bytes of a step → elements along the reduced axes."""
    bits: int
    kind: Kind
    owned: bool = False
    """Whether it lies on chip, whole, where carried tensors are walked once."""


class Staged(Struct, frozen=True, kw_only=True):
    """Shared memory of a block's operands."""

    step_bytes: int
    """Of one buffer of operands that are copied ahead."""
    source_bytes: int = 0
    """Of one buffer of what operands are made of."""
    single_bytes: int = 0
    """Of what has one buffer."""
    kept_bytes: int = 0
    """Of these, loaded before the loop that reads them."""
    made_bytes: int = 0
    """Of these, made of what was copied ahead."""
    largest_bytes: int = 0
    """Of one operand."""
    rows: int
    """Rows of all operands, each once, also of those that are made of what is loaded."""
    is_read_there: bool
    """Whether the matrix unit reads shared memory."""
    passes: bool = False
    """Whether all of a step is in registers before it is multiplied."""

    def buffers(self, stages: int) -> int:
        """Buffers of a pipeline of so many stages."""
        return stages if self.is_read_there else max(1, stages - 1)

    def in_flight(self, ahead: int) -> int:
        """Bytes on their way with so many steps ahead; of what goes through registers, one step."""
        loaded = self.single_bytes - self.kept_bytes - self.made_bytes
        return (self.step_bytes + self.source_bytes) * ahead + loaded

    def words(self, stages: int) -> str:
        """The sum: `operands 32 KB × 2 buffers + 32 KB`."""
        parts: list[str] = []
        if self._is_in_turn(stages):
            return f"operands one by one, {format_kib(self.bytes(stages))} at most"
        if self.step_bytes:
            buffers = self.buffers(stages)
            plural = "s" if buffers > 1 else ""
            parts.append(f"{format_kib(self.step_bytes)} × {buffers} buffer{plural}")
        if self.source_bytes and stages > 1:
            parts.append(f"{format_kib(self.source_bytes)} × {stages - 1} of what they are made of")
        single = self.single_bytes - (self.kept_bytes if self.passes else 0)
        if single:
            parts.append(f"{format_kib(single)} once")
        return f"operands {' + '.join(parts)}"

    def bytes(self, stages: int) -> int:
        """Shared memory of a pipeline of so many stages."""
        if self._is_in_turn(stages):
            return self.largest_bytes
        single = self.single_bytes - (self.kept_bytes if self.passes else 0)
        sources = self.source_bytes * (stages - 1)
        return single + sources + self.step_bytes * self.buffers(stages)

    def _is_in_turn(self, stages: int) -> bool:
        """Whether operands follow each other: where nothing is loaded ahead, or less than what is
        kept before the loop."""
        ahead = self.single_bytes - self.kept_bytes + self.step_bytes * self.buffers(stages)
        nothing_ahead = stages == 1 or not self.step_bytes
        return self.passes and (nothing_ahead or ahead < self.kept_bytes)


class Staging:
    """The operands of one nest's products."""

    def __init__(self, nest: Nest, arch: str, products: Products) -> None:
        self._arch, self._products = arch, products
        self._operands: list[_Operand] = []
        for k, product in enumerate(products.each):
            outer = None if product.outer is None else products.each[product.outer]
            around = None if outer is None else nest.ops[outer.position]
            for side in (0, 1):
                for tensor, kind, owned in _tiles(nest, product.position, side, around, arch):
                    bits = bits_of(nest, tensor)
                    self._operands.append(_Operand(k, side, product.steps, bits, kind, owned))

    def of(self, regions: Regions, step_bytes: int, *, owning: bool) -> Staged | None:
        """What is staged under one schedule; None without products. `owning`: where carried
        tensors are walked once."""
        if not self._operands:
            return None
        sides = [
            (side_of(rows), side_of(columns))
            for rows, columns in self._products.sides(regions, step_bytes)
        ]
        units = {
            product_unit(self._arch, each.dtype, *own, WARPS)
            for each, own in zip(self._products.each, sides, strict=True)
        }
        piped = source = single = kept = made = largest = 0
        tiles = {(operand.product, operand.side) for operand in self._operands}
        for operand in self._operands:
            if operand.kind == "handed" and "wgmma" in units:
                continue
            rows = sides[operand.product][operand.side]
            found = rows * operand.steps[step_bytes] * operand.bits // 8
            largest = max(largest, found)
            if operand.kind == "source":
                source += 0 if owning and operand.owned else found
                continue
            if operand.kind == "piped":
                piped += found
                continue
            single += found
            if operand.kind == "kept":
                kept += found
            elif operand.kind != "single" and not (owning and operand.owned):
                made += found
        return Staged(
            step_bytes=piped, source_bytes=source, single_bytes=single, kept_bytes=kept,
            made_bytes=made, largest_bytes=largest, rows=sum(sides[k][side] for k, side in tiles),
            is_read_there=not units.isdisjoint(READS_SHARED), passes=units == {"mfma"},
        )  # fmt: skip


def _tiles(
    nest: Nest, position: int, side: int, outer: Op | None, arch: str
) -> Iterator[tuple[str, Kind, bool]]:
    """(tensor, how it passes through shared memory, whether it may be owned) of an operand and what
    it is made of; none where another product made it."""
    product = nest.ops[position]
    operand = product.reads[side]
    if operand.tensor in nest.external:
        if outer is not None and not outer.reduces & set(operand.axes):
            yield operand.tensor, "kept", False
        else:
            is_ahead = _is_copied_ahead(nest, product, operand)
            yield operand.tensor, "piped" if is_ahead else "single", False
        return
    behind = _behind(nest, operand.tensor)
    if any(nest.ops[i].is_contraction for i in behind):
        return
    sources = _sources(nest, product, operand, behind)
    is_chain = _only_of(nest, sources, behind)
    is_amd = arch.startswith("gfx")
    if not sources or (is_amd and not is_chain):
        yield operand.tensor, "single", False
        return
    if not is_chain or (bits_of(nest, operand.tensor) >= COPY_BITS and not is_amd):
        # a statistic that is ready when the loop starts is no reason to turn the tile
        is_handed = side == 0 and position not in nest.rescaled
        kind: Kind = "handed" if is_handed else "made"
        yield operand.tensor, kind, any(name in nest.carried for name in sources)
    for name in sources:
        yield name, "source", name in nest.carried


def _is_copied_ahead(nest: Nest, op: Op, access: Access) -> bool:
    last = access.index[-1]
    is_run = last.axis is not None and not (last.axis in op.reduces and len(op.reduces) > 1)
    return is_run or bits_of(nest, access.tensor) >= COPY_BITS


def _sources(nest: Nest, product: Op, operand: Access, behind: set[int]) -> list[str]:
    """External tensors of all of an operand's axes that it is made of, and that are copied ahead:
    what is a row or a column of it is small. (AMD's compiler does so for a chain alone.)"""
    found: dict[str, None] = {}
    for name, reads in nest.external.items():
        for i, access in reads:
            is_whole = i in behind and set(operand.axes) <= set(access.axes)
            if is_whole and _is_copied_ahead(nest, product, access):
                found[name] = None
    return list(found)


def _only_of(nest: Nest, sources: list[str], behind: set[int]) -> bool:
    """Whether an operand is made of one tensor's elements, each by itself: then it is read from
    shared memory in the layout in which the matrix unit takes it from registers (the lanes, which
    compute fp32 on NVIDIA, take operands from shared memory)."""
    ops = [nest.ops[i] for i in behind]
    reads = {access.tensor for op in ops for access in op.reads}
    made = {write.tensor for op in ops for write in op.writes}
    return reads - made == set(sources[:1]) and all(op.combine is None for op in ops)


def _behind(nest: Nest, tensor: str) -> set[int]:
    """Ops of the nest that a tensor is made of."""
    wanted, found = {tensor}, set[int]()
    for i in reversed(nest.positions):
        op = nest.ops[i]
        if any(write.tensor in wanted for write in op.writes):
            found.add(i)
            wanted.update(read.tensor for read in op.reads)
    return found
