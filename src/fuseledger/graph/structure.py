"""What ops that differ in names alone have in common: the key to searching equal layers once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from fuseledger.graph.axis import Index
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Coord, Read, rename

if TYPE_CHECKING:
    from fuseledger.graph.graph import Graph

Shift = tuple[str, tuple[int, ...]]
"""A tensor and where a slice of it starts."""


class Structure(Struct, frozen=True):
    """An op with its names taken out: ops of one `kind` are alike but for the names it lists."""

    kind: int
    """Equal for ops whose loops, index maps, dtypes and work are equal."""
    axes: tuple[str, ...]
    """Axis names in order of first use."""
    tensors: tuple[str, ...]
    """Tensor names in order of first use."""
    shifts: tuple[Shift, ...]
    """Slices of tensors that are read or written: where all of them start changes no figure, where
    they start beside each other may."""
    leaves: tuple[frozenset[int] | None, ...]
    """For each result its readers, or None where it leaves the graph."""


def structures(graph: Graph) -> tuple[Structure, ...]:
    """The structure of each op; `kind` numbers them within the graph."""
    kinds: dict[object, int] = {}
    found: list[Structure] = []
    outputs = frozenset(graph.outputs)
    sliced = {
        access.tensor
        for op in graph.ops
        for access in (*op.reads, *op.writes)
        if any(start_of(graph, op, access))
    }
    for op in graph.ops:
        shape, axes, tensors, starts = _shape(graph, op)
        shifts = [(name, start) for name, start in starts if name in sliced]
        kind = kinds.setdefault(shape, len(kinds))
        leaves = tuple(
            None if w.tensor in outputs else frozenset(graph.consumers.get(w.tensor, ()))
            for w in op.writes
        )
        found.append(Structure(kind, tuple(axes), tuple(tensors), tuple(shifts), leaves))
    return tuple(found)


def signature(graph: Graph, positions: Sequence[int]) -> object:
    """Equal for sets of ops that differ in names alone: as kernels they cost the same."""
    axes: dict[str, int] = {}
    tensors: dict[str, int] = {}
    starts: dict[str, tuple[int, ...]] = {}
    inside = frozenset(positions)
    found: list[object] = []
    for i in positions:
        each = graph.structures[i]
        found.append(each.kind)
        found += [axes.setdefault(name, len(axes)) for name in each.axes]
        found += [tensors.setdefault(name, len(tensors)) for name in each.tensors]
        for tensor, offsets in each.shifts:
            start = starts.setdefault(tensor, offsets)
            found += [offset - first for offset, first in zip(offsets, start, strict=True)]
        found += [readers is not None and readers <= inside for readers in each.leaves]
    return tuple(found)


def start_of(graph: Graph, op: Op, access: Access) -> tuple[int, ...]:
    """Where the slice that an access reads starts; 0 along what is no slice.

    A slice lies inside its tensor: padding is another matter, whose offset changes the work.
    """
    if not any(index.offset for index in access.index):
        return (0,) * len(access.index)
    return tuple(
        index.offset if _is_inside(index, op.sizes, axis.size) else 0
        for axis, index in zip(graph.tensors[access.tensor].axes, access.index, strict=True)
    )


def _is_inside(index: Index, sizes: Mapping[str, int], size: int) -> bool:
    if not index.offset or not index.is_affine:
        return False
    low, high = index.bounds(sizes.__getitem__)
    return low >= 0 and high < size


def _shape(graph: Graph, op: Op) -> tuple[object, dict[str, int], dict[str, int], list[Shift]]:
    axes: dict[str, int] = {}
    tensors: dict[str, int] = {}
    starts: list[Shift] = []

    def axis(name: str) -> int:
        return axes.setdefault(name, len(axes))

    def numbered(name: str) -> Coord:
        return Coord(str(axis(name)))

    def access(a: Access) -> tuple[object, ...]:
        tensor = graph.tensors[a.tensor]
        starts.append((a.tensor, start_of(graph, op, a)))
        coordinates = tuple(
            (
                axis(dim.name),
                dim.size,
                index.offset - start,
                start > 0,
                index.divisor,
                index.lookup,
                tuple((axis(name), stride) for name, stride in index.terms),
            )
            for dim, index, start in zip(tensor.axes, a.index, starts[-1][1], strict=True)
        )
        number = tensors.setdefault(a.tensor, len(tensors))
        return number, tensor.dtype, tensor.role == "output", coordinates

    shape = (
        op.kind,
        op.combine,
        tuple((axis(a.name), a.size) for a in op.axes),
        tuple(sorted(axis(name) for name in op.reduces)),
        tuple(sorted(axis(name) for name in op.scans)),
        tuple(access(read) for read in op.reads),
        tuple(access(write) for write in op.writes),
        op.flops,
        op.special_ops,
        op.is_contraction,
        # bodies say which epilogues a library has, and whether a softmax can be walked online
        None if op.body is None else rename(op.body, slots=Read, axes=numbered),
        tuple(sorted(op.attributes.items())) if op.kind == "declared" else (),
    )
    return shape, axes, tensors, starts
