"""Ops: one loop nest each, with index maps for what it reads and writes."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any, Literal

from msgspec import Struct, field

from fuseledger.graph.axis import Axis, Index
from fuseledger.graph.scalar import FUNCTIONS, Call, Coord, Expr, Read, walk, work

Kind = Literal["loop", "move", "opaque", "declared"]


class Combine(Struct, frozen=True, kw_only=True):
    """An associative combine: what a reduction keeps, and its work per point."""

    results: tuple[str, ...]
    flops: int
    special: int = 0
    merge_flops: int = 1
    """Work of merging two partial results, per result point."""


COMBINES: dict[str, Combine] = {
    "sum": Combine(results=("sum",), flops=1),
    "prod": Combine(results=("prod",), flops=1),
    "max": Combine(results=("max",), flops=1),
    "min": Combine(results=("min",), flops=1),
    "any": Combine(results=("any",), flops=1),
    "all": Combine(results=("all",), flops=1),
    "argmax": Combine(results=("argmax",), flops=2, merge_flops=2),
    "argmin": Combine(results=("argmin",), flops=2, merge_flops=2),
    "max_index": Combine(results=("max", "index"), flops=2, merge_flops=2),
    "min_index": Combine(results=("min", "index"), flops=2, merge_flops=2),
    "max_sumexp": Combine(results=("max", "sumexp"), flops=4, special=1, merge_flops=6),
    "moments": Combine(results=("mean", "m2"), flops=6, merge_flops=9),
}
"""`moments` is (mean, Σ(x−mean)²), merged as Chan et al. (1979); `max_sumexp` (t, Σ exp(x−t)), one
exponential a point: a block takes the maximum of what it has at hand first."""


class Access(Struct, frozen=True, kw_only=True, dict=True):
    """A tensor read or written through an index map: one `Index` per axis of the tensor."""

    tensor: str
    index: tuple[Index, ...]
    fill: float | None = None
    """Value of coordinates outside the tensor; None where there are none."""

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Names of the op's axes that the coordinates depend on, in order, once each."""
        return tuple(dict.fromkeys(name for index in self.index for name, _ in index.terms))

    @cached_property
    def plain(self) -> tuple[str | None, ...]:
        """The axis that each coordinate equals, None where it is anything else."""
        return tuple(index.axis for index in self.index)

    @cached_property
    def is_lookup(self) -> bool:
        """Whether a value that the op reads says where."""
        return any(index.lookup is not None for index in self.index)


class Op(Struct, frozen=True, kw_only=True, dict=True):
    """One loop nest: `writes = combine over reduces (body(reads))` at every point of `axes`."""

    name: str
    function: str
    """What it is, in the field's words: `gemm`, `bias`, `softmax.statistic`, `aten.sort`."""
    kind: Kind = "loop"
    label: str | None = None
    """The composite that it was lowered from (`softmax`, `layer_norm`), else None."""
    axes: tuple[Axis, ...]
    reduces: frozenset[str] = frozenset()
    scans: frozenset[str] = frozenset()
    """Axes walked in order with a carry, and kept in the result (cumulative sums)."""
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    body: Expr | None = None
    """None for an opaque or declared op."""
    combine: str | None = None
    """Key of `COMBINES`; None where nothing is reduced or scanned."""
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    """An opaque op's own attributes, for display and evaluation; a declared op's figures."""

    @property
    def is_opaque(self) -> bool:
        """Whether nothing is known of it but its tensors: a barrier."""
        return self.kind == "opaque"

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis name → size."""
        return {axis.name: axis.size for axis in self.axes}

    def axes_behind(self, access: Access) -> frozenset[str]:
        """Axes that the coordinates of a read depend on, those of looked-up values included."""
        found = set(access.axes)
        for index in access.index if access.is_lookup else ():
            if index.lookup is not None:
                found |= self.axes_behind(self.reads[index.lookup])
        return frozenset(found)

    @cached_property
    def looks_up(self) -> bool:
        """Whether a read's place is the value of another."""
        return any(read.is_lookup for read in self.reads)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Names of the axes that are not reduced, in order."""
        return tuple(axis.name for axis in self.axes if axis.name not in self.reduces)

    @cached_property
    def points(self) -> int:
        """Number of loop points that do work.

        A coordinate with a divisor (transposed convolution) is an integer at one point in
        `divisor`: the loop nest is one dense convolution per phase of the output index.
        """
        total = prod(self.sizes.values())
        for access in self.reads[:1]:
            for index in access.index:
                total //= index.divisor
        return total

    @cached_property
    def output_points(self) -> int:
        """Number of elements of each result."""
        return prod(size for name, size in self.sizes.items() if name not in self.reduces)

    @cached_property
    def is_contraction(self) -> bool:
        """Σ of a product of two reads, each with an axis that the other lacks: matrix units."""
        if self.combine != "sum" or not self.reduces or not isinstance(self.body, Call):
            return False
        if self.body.function != "mul":
            return False
        first, second = self.body.args
        if not (isinstance(first, Read) and isinstance(second, Read)):
            return False
        a, b = (set(self.reads[read.slot].axes) for read in (first, second))
        kept = set(self.kept)
        return bool(a & b & self.reduces) and bool((a - b) & kept) and bool((b - a) & kept)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations outside the special-function unit; 2 per multiply-add. Of an
        opaque op, those that its attributes tell."""
        if self.is_opaque:
            return self.attributes.get("flops", 0)
        flops = work(self.body)[0] if self.body is not None else 0
        if self.combine is not None:
            flops += COMBINES[self.combine].flops
        return self.points * flops

    @cached_property
    def special_ops(self) -> int:
        """Operations of the special-function unit (exp2, log2, rcp, rsqrt, tanh, sin).

        What varies along some of the axes only is computed once for each of their points: a row's
        `rsqrt` once a row.
        """
        special = self.points * (COMBINES[self.combine].special if self.combine else 0)
        for each in walk(self.body) if self.body is not None else ():
            if isinstance(each, Call) and FUNCTIONS[each.function].special:
                special += self.points_of(each) * FUNCTIONS[each.function].special
        return special

    def points_of(self, part: Expr) -> int:
        """Points at which a part of the body has values of its own."""
        axes = frozenset[str]().union(
            *[self.axes_behind(self.reads[e.slot]) for e in walk(part) if isinstance(e, Read)],
            [e.axis for e in walk(part) if isinstance(e, Coord)],
        )
        if axes >= self.sizes.keys():
            return self.points
        return min(self.points, prod(self.sizes[name] for name in axes))

    @property
    def title(self) -> str:
        """Function, and the composite it belongs to where that says more."""
        if self.label is None or self.function.startswith(self.label):
            return self.function
        return f"{self.label}.{self.function}"
