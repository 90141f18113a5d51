"""The graph: ops and tensors in topological order."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct, field

from fuseledger.graph.op import Access, Op
from fuseledger.graph.structure import Structure, structures
from fuseledger.graph.tensor import Tensor
from fuseledger.graph.view import View


class Result(Struct, frozen=True):
    """An output under the source's name: a view of a stored tensor (a transpose costs nothing)."""

    name: str
    view: View


class Graph(Struct, frozen=True, kw_only=True, dict=True):
    """Ops in topological order, and every tensor they touch, by name."""

    name: str
    ops: tuple[Op, ...]
    tensors: dict[str, Tensor]
    results: tuple[Result, ...]
    """What leaves the graph, in the source's order."""
    notes: tuple[str, ...] = field(default=())
    """What a reader should know of the reading: dropped mutations, assumptions."""

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the stored tensors that leave the graph, each once."""
        return tuple(dict.fromkeys(result.view.base for result in self.results))

    @cached_property
    def producer(self) -> dict[str, int]:
        """Tensor name → position of the op that writes it."""
        return {w.tensor: i for i, op in enumerate(self.ops) for w in op.writes}

    @cached_property
    def consumers(self) -> dict[str, tuple[int, ...]]:
        """Tensor name → positions of the ops that read it, each once."""
        readers: dict[str, dict[int, None]] = {}
        for i, op in enumerate(self.ops):
            for read in op.reads:
                readers.setdefault(read.tensor, {})[i] = None
        return {name: tuple(found) for name, found in readers.items()}

    @cached_property
    def floor_bytes(self) -> int:
        """Inputs, weights and constants that are read, and outputs, once each.

        A tensor read through lookups alone (an embedding table, perhaps by way of pointwise ops)
        counts the rows looked up.
        """
        read = sum(
            self.touched_bytes(name) for name in self.consumers if self.tensors[name].is_external
        )
        return read + sum(
            self.tensors[name].bytes for name in self.outputs if name in self.producer
        )

    def touched_bytes(self, name: str) -> int:
        """Bytes of the tensor that its readers can touch: fewer than all for lookups and slices."""
        from fuseledger.graph.reach import touched_elements
        from fuseledger.graph.tensor import dtype_bytes

        tensor = self.tensors[name]
        touched = 0
        for op, access in self._reads.get(name, ()):
            touched += touched_elements(tensor, access, op)
            if touched >= tensor.elements:
                return tensor.bytes
        return dtype_bytes(tensor.dtype, touched)

    @cached_property
    def _reads(self) -> dict[str, list[tuple[Op, Access]]]:
        """Tensor name → its reads, lookups of made tensors followed to what these are made of."""
        from fuseledger.graph.lookups import followed

        ops = dict(enumerate(self.ops))
        if any(a.is_lookup and a.tensor in self.producer for op in self.ops for a in op.reads):
            _, ops, _ = followed(self, ops)
        found: dict[str, list[tuple[Op, Access]]] = {}
        for op in ops.values():
            for access in op.reads:
                found.setdefault(access.tensor, []).append((op, access))
        return found

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each op, positions of the ops it reads from, each once, ascending."""
        return tuple(
            tuple(sorted({self.producer[r.tensor] for r in op.reads if r.tensor in self.producer}))
            for op in self.ops
        )

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each op, positions of the ops that read from it, each once, ascending."""
        after: list[list[int]] = [[] for _ in self.ops]
        for i, before in enumerate(self.predecessors):
            for j in before:
                after[j].append(i)
        return tuple(tuple(found) for found in after)

    @cached_property
    def structures(self) -> tuple[Structure, ...]:
        """Each op with its names taken out."""
        return structures(self)

    @cached_property
    def barriers(self) -> dict[str, int]:
        """Function of each opaque op → how many there are."""
        counts: dict[str, int] = {}
        for op in self.ops:
            if op.is_opaque:
                counts[op.function] = counts.get(op.function, 0) + 1
        return counts
