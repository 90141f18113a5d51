"""A nest's matrix products as tiles: their sides in a block, their steps, and how their loops nest.

A product walks its reduced axes in steps. One whose result becomes an operand of another is made in
the other's loop: tile by tile, each as long as a step of that loop, and at once where its own
reduced axes are short.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod

from msgspec import Struct

from fuseledger.graph.op import Op
from fuseledger.ledger.live_values import (
    LOOP_LANES,
    LOOP_POINTS,
    Part,
    Parts,
    bits_of,
    power_of_two,
)
from fuseledger.ledger.matrix_units import SIDE, WHOLE_DEPTH
from fuseledger.ledger.nest import Nest

STEPS = (64, 128, 256)
"""Bytes of a step that are tried: those of TorchInductor's configurations for products of two-byte
elements (32 to 128 of them; torch/_inductor/template_heuristics/triton.py, torch 2.13)."""

Contractions = list[tuple[int, tuple[str, ...], tuple[str, ...]]]
"""(op, axes of its left side alone, axes of its right side alone) per product."""
Regions = Mapping[int, Mapping[str, int]]
"""Op → axis → points of a block."""


class Product(Struct, frozen=True):
    """One matrix product of a nest."""

    position: int
    dtype: str
    """Of its operands."""
    rows: Part
    columns: Part
    reduces: frozenset[str]
    steps: Mapping[int, int]
    """Bytes of a step → points of it along the reduced axes."""
    depth: int
    """Points along the reduced axes, rounded up to a power of two."""
    outer: int | None
    """The product, of these, whose operand its result becomes, in its loop."""

    @property
    def is_at_once(self) -> bool:
        """Whether it has no loop of its own in the other's."""
        return self.outer is not None and self.depth <= WHOLE_DEPTH


class Products:
    """The products of one nest."""

    def __init__(self, nest: Nest, contractions: Contractions, parts: Parts) -> None:
        positions = [i for i, _, _ in contractions]
        self.each: list[Product] = []
        for i, rows, columns in contractions:
            op = nest.ops[i]
            outer = outer_product(nest, i, positions)
            through = nest.held_through.get(op.writes[0].tensor, _NONE)
            steps = {size: step_of(nest, i, size, is_inner=outer is not None) for size in STEPS}
            product = Product(
                position=i,
                dtype=nest.graph.tensors[op.reads[0].tensor].dtype,
                rows=parts.part(i, rows, through),
                columns=parts.part(i, columns, through),
                reduces=frozenset(op.reduces),
                steps=steps,
                depth=_depth(op),
                outer=None if outer is None else positions.index(outer),
            )
            self.each.append(product)
        self.together = {size: self._together(size) for size in STEPS}
        """Bytes of a step → products whose accumulators live at once, for each product: its own
        and those of the loops around it."""

    def sides(self, regions: Regions, step_bytes: int) -> list[tuple[int, int]]:
        """Per product: rows and columns of a block's tile that hold elements of it."""
        found: list[tuple[int, int]] = []
        for each in self.each:
            region = regions[each.position]
            rows = each.rows.elements(region, self.points(each.rows, step_bytes))
            columns = each.columns.elements(region, self.points(each.columns, step_bytes))
            found.append((rows, columns))
        return found

    def points(self, part: Part, step_bytes: int) -> int:
        """Points of the loops along which a part is walked that it holds at once: a step of the
        product that reduces them."""
        for each in self.each:
            if not each.reduces.isdisjoint(part.looped):
                return each.steps[step_bytes]
        return LOOP_POINTS

    @cached_property
    def tails(self) -> list[int | None]:
        """Per product: the last one of its loop, where several share one."""
        found = [each.outer if each.is_at_once else None for each in self.each]
        shared = set(found)
        return [k if k in shared and last is None else last for k, last in enumerate(found)]

    def _together(self, step_bytes: int) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for k, each in enumerate(self.each):
            around, outer = [k], each.outer
            while outer is not None:
                if self.each[outer].depth > self.each[outer].steps[step_bytes]:
                    around.append(outer)
                outer = self.each[outer].outer
            found.append(tuple(around))
        return found


def step_of(nest: Nest, position: int, step_bytes: int, *, is_inner: bool) -> int:
    """Points along the reduced axes that one step of a product takes, a power of two.

    A product in the loop of another takes up to `WHOLE_DEPTH` points at once; one whose sum is
    rescaled as it goes `LOOP_POINTS`.
    """
    op = nest.ops[position]
    depth = _depth(op)
    if is_inner and depth <= WHOLE_DEPTH:
        return depth
    if position in nest.rescaled:
        return max(SIDE, min(depth, LOOP_POINTS))
    bits = max([8, *(bits_of(nest, access.tensor) for access in op.reads[:2])])
    return max(SIDE, min(depth, step_bytes * 8 // bits))


def _depth(op: Op) -> int:
    """Points along the reduced axes, rounded up to a power of two."""
    return power_of_two(prod(op.sizes[name] for name in op.reduces))


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
            lanes = prod(power_of_two(tiles.get(name, 1)) for name in op.kept)
            left = max(LOOP_POINTS, LOOP_LANES // lanes)
        for name, size in reversed(op.sizes.items()):
            if name in op.reduces:
                found[name] = min(size, left)
                left = max(1, left // max(1, size))
    return found


def outer_product(nest: Nest, position: int, products: list[int]) -> int | None:
    """The product whose operand the result of another becomes, in its loop; else None."""
    if len(products) < 2:
        return None
    reached = {position}
    for edge in sorted(nest.edges, key=lambda edge: edge.producer):
        if edge.producer in reached:
            reached.add(edge.consumer)
            if edge.consumer in products:
                return edge.consumer
    return None


_NONE: frozenset[str] = frozenset()
