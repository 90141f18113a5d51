"""What ops that differ in names alone have in common: the key to searching equal layers once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuseledger.graph.op import Access, Op

if TYPE_CHECKING:
    from fuseledger.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Structure:
    """An op with its names taken out: ops of one `kind` are alike but for `axes` and `tensors`."""

    kind: int
    """Equal for ops whose loops, index maps, dtypes and work are equal."""
    axes: tuple[str, ...]
    """Axis names in order of first use."""
    tensors: tuple[str, ...]
    """Tensor names in order of first use."""


def structures(graph: Graph) -> tuple[Structure, ...]:
    """The structure of each op; `kind` numbers them within the graph."""
    kinds: dict[object, int] = {}
    found: list[Structure] = []
    for op in graph.ops:
        shape, axes, tensors = _shape(graph, op)
        kind = kinds.setdefault(shape, len(kinds))
        found.append(Structure(kind, tuple(axes), tuple(tensors)))
    return tuple(found)


def _shape(graph: Graph, op: Op) -> tuple[object, dict[str, int], dict[str, int]]:
    axes: dict[str, int] = {}
    tensors: dict[str, int] = {}

    def axis(name: str) -> int:
        return axes.setdefault(name, len(axes))

    def access(a: Access) -> tuple[object, ...]:
        tensor = graph.tensors[a.tensor]
        coordinates = tuple(
            (
                axis(dim.name),
                dim.size,
                index.offset,
                index.divisor,
                index.lookup,
                tuple((axis(name), stride) for name, stride in index.terms),
            )
            for dim, index in zip(tensor.axes, a.index, strict=True)
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
        tuple(sorted(op.attributes.items())) if op.kind == "declared" else (),
    )
    return shape, axes, tensors
