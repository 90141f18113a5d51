"""What a block stages in shared memory for its matrix products.

A product walks its reduced axes in steps. The operands of a step pass through shared memory, each
tile rounded up to powers of two as compilers of tiles hold it, in as many buffers as are in use at
once: a matrix unit that reads shared memory while others fill it (`wgmma`, `tcgen05`) needs one a
pipeline stage; elsewhere the step at hand is in registers, and one stage needs no buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Literal

from msgspec import Struct

from fuseledger.graph.op import Access, Op
from fuseledger.ledger.account import format_kib
from fuseledger.ledger.live_values import LOOP_LANES, LOOP_POINTS, Parts, bits_of, side_of
from fuseledger.ledger.matrix_units import SIDE, WHOLE_DEPTH, product_unit
from fuseledger.ledger.nest import Nest

STEPS, STAGES = (64, 128, 256), (2, 3, 4, 5)
"""Bytes of a step and stages of a pipeline that are tried: those of TorchInductor's configurations
for products of two-byte elements (32 to 128 of them;
torch/_inductor/template_heuristics/triton.py, torch 2.13)."""
READS_SHARED = ("wgmma", "tcgen05")
"""Matrix units that read their operands from shared memory, asynchronously."""

WARPS = 4
"""Of a block, where nothing asks for more; `tcgen05` is not used beyond eight."""
COPY_BITS = 32
"""Least bits in a row that are copied to shared memory without registers (PTX `cp.async`)."""

Contractions = list[tuple[int, tuple[str, ...], tuple[str, ...]]]
"""(op, axes of its left side alone, axes of its right side alone) per product."""


class _Operand(Struct, frozen=True):
    """One operand of a product."""

    product: int
    side: int
    """0: its rows, 1: its columns."""
    steps: Mapping[int, int]
    """Bytes of a step → elements along the reduced axes."""
    bits: int
    kind: Literal["piped", "single", "kept"]
    """`piped`: copied ahead, a buffer a stage. `single`: through registers, one buffer.
    `kept`: loaded before the loop that the product is in, and read by each of its turns."""


class Staged(Struct, frozen=True):
    """Shared memory of a block's operands."""

    step_bytes: int
    """Of one buffer of what is copied ahead."""
    single_bytes: int
    """Of what has one buffer."""
    kept_bytes: int
    """Of these, loaded before the loop that reads them."""
    is_read_there: bool
    """Whether the matrix unit reads shared memory."""
    rows: int
    """Rows of all operands."""

    def buffers(self, stages: int) -> int:
        """Buffers of a pipeline of so many stages."""
        return stages if self.is_read_there else max(1, stages - 1)

    def in_flight(self, ahead: int) -> int:
        """Bytes on their way with so many steps ahead; of what goes through registers, one step."""
        return self.step_bytes * ahead + self.single_bytes - self.kept_bytes

    def words(self, stages: int) -> str:
        """The sum: `operands 32 KB × 2 buffers + 32 KB`."""
        parts: list[str] = []
        if self.step_bytes:
            buffers = self.buffers(stages)
            plural = "s" if buffers > 1 else ""
            parts.append(f"{format_kib(self.step_bytes)} × {buffers} buffer{plural}")
        if self.single_bytes:
            parts.append(f"{format_kib(self.single_bytes)} once")
        return f"operands {' + '.join(parts)}"

    def bytes(self, stages: int) -> int:
        """Shared memory of a pipeline of so many stages."""
        return self.single_bytes + self.step_bytes * self.buffers(stages)


class Staging:
    """The operands of one nest's products."""

    def __init__(self, nest: Nest, arch: str, contractions: Contractions, parts: Parts) -> None:
        self._arch = arch
        self._operands: list[_Operand] = []
        self._sides = [
            (parts.part(i, rows, _NONE), parts.part(i, columns, _NONE))
            for i, rows, columns in contractions
        ]
        self._dtypes = [
            nest.graph.tensors[nest.ops[i].reads[0].tensor].dtype for i, _, _ in contractions
        ]
        products = [i for i, _, _ in contractions]
        self.steps: list[dict[int, int]] = []
        """Per product: bytes of a step → points of it along the reduced axes."""
        for k, i in enumerate(products):
            outer = outer_product(nest, i, products)
            is_inner = outer is not None
            steps = {size: step_of(nest, i, size, is_inner=is_inner) for size in STEPS}
            self.steps.append(steps)
            for side, access in enumerate(nest.ops[i].reads[:2]):
                kind = _kind(nest, nest.ops[i], access, outer)
                if kind is not None:
                    bits = bits_of(nest, access.tensor)
                    self._operands.append(_Operand(k, side, steps, bits, kind))

    def of(self, regions: Mapping[int, Mapping[str, int]], step_bytes: int) -> Staged | None:
        """What is staged under one schedule; None without products."""
        if not self._operands:
            return None
        sides = [
            (side_of(rows, regions), side_of(columns, regions)) for rows, columns in self._sides
        ]
        piped = single = kept = lines = 0
        for operand in self._operands:
            found = sides[operand.product][operand.side]
            lines += found
            found = found * operand.steps[step_bytes] * operand.bits // 8
            if operand.kind == "piped":
                piped += found
            else:
                single += found
                kept += found if operand.kind == "kept" else 0
        is_read_there = any(
            product_unit(self._arch, dtype, rows, columns, WARPS) in READS_SHARED
            for dtype, (rows, columns) in zip(self._dtypes, sides, strict=True)
        )
        return Staged(piped, single, kept, is_read_there, lines)


def _kind(
    nest: Nest, op: Op, access: Access, outer: Op | None
) -> Literal["piped", "single", "kept"] | None:
    """How an operand passes through shared memory; None where another product made it."""
    if access.tensor not in nest.external:
        made_of = _behind(nest, access.tensor)
        return None if any(nest.ops[i].is_contraction for i in made_of) else "single"
    if outer is not None and not outer.reduces & set(access.axes):
        return "kept"
    last = access.index[-1]
    is_run = last.axis is not None and not (last.axis in op.reduces and len(op.reduces) > 1)
    return "piped" if is_run or bits_of(nest, access.tensor) >= COPY_BITS else "single"


def _behind(nest: Nest, tensor: str) -> set[int]:
    """Ops of the nest that a tensor is made of."""
    wanted, found = {tensor}, set[int]()
    for i in reversed(nest.positions):
        op = nest.ops[i]
        if any(write.tensor in wanted for write in op.writes):
            found.add(i)
            wanted.update(read.tensor for read in op.reads)
    return found


def step_of(nest: Nest, position: int, step_bytes: int, *, is_inner: bool) -> int:
    """Points along the reduced axes that one step of a product takes, a power of two.

    A product in the loop of another takes up to `WHOLE_DEPTH` points at once; one whose sum is
    rescaled as it goes `LOOP_POINTS`.
    """
    op = nest.ops[position]
    depth = 1 << (prod(op.sizes[name] for name in op.reduces) - 1).bit_length()
    if is_inner and depth <= WHOLE_DEPTH:
        return depth
    if position in nest.rescaled:
        return max(SIDE, min(depth, LOOP_POINTS))
    bits = max([8, *(bits_of(nest, access.tensor) for access in op.reads[:2])])
    return max(SIDE, min(depth, step_bytes * 8 // bits))


def loop_steps(nest: Nest, tiles: Mapping[str, int], step_bytes: int) -> dict[str, int]:
    """Axis → points of it in one step of the loop that reduces it, innermost axes first.

    A kernel without products walks as many points as fill its lanes.
    """
    products = [i for i, op in nest.ops.items() if op.is_contraction]
    found: dict[str, int] = {}
    for i, op in nest.ops.items():
        if op.is_contraction:
            is_inner = outer_product(nest, i, products) is not None
            left = step_of(nest, i, step_bytes, is_inner=is_inner)
        elif products:
            continue
        else:
            lanes = prod(1 << (tiles.get(name, 1) - 1).bit_length() for name in op.kept)
            left = max(LOOP_POINTS, LOOP_LANES // lanes)
        for name, size in reversed(op.sizes.items()):
            if name in op.reduces:
                found[name] = min(size, left)
                left = max(1, left // max(1, size))
    return found


def outer_product(nest: Nest, position: int, products: list[int]) -> Op | None:
    """The product whose operand the result of another becomes, in its loop; else None."""
    if len(products) < 2:
        return None
    reached = {position}
    for edge in sorted(nest.edges, key=lambda edge: edge.producer):
        if edge.producer in reached:
            reached.add(edge.consumer)
            if edge.consumer in products:
                return nest.ops[edge.consumer]
    return None


_NONE: frozenset[str] = frozenset()
