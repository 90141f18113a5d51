"""Clones: a pointwise op for each of its readers, computed in each kernel that reads it."""

from __future__ import annotations

from msgspec.structs import replace

from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Op
from fuseledger.graph.tensor import Tensor

MOST_OPS = 400
"""Ops of a graph beyond which clones of clones are too many to plan."""


def with_clones(graph: Graph) -> Graph:
    """The graph in which every pointwise result that stays inside has one reader.

    Readers come first, so that what a clone reads is cloned for it too. A graph that would have
    more than `MOST_OPS` ops is returned as it is.
    """
    ops: list[Op] = []  # last one first
    tensors = dict(graph.tensors)
    for i in reversed(range(len(graph.ops))):
        op = graph.ops[i]
        name = op.writes[0].tensor
        readers = [k for k, other in enumerate(ops) if any(r.tensor == name for r in other.reads)]
        if not _is_pointwise(op) or name in graph.outputs or len(readers) < 2:
            ops.append(op)
            continue
        for copy, k in enumerate(readers[1:], start=1):
            renamed = f"{name}~{copy}"
            tensors[renamed] = replace(tensors[name], name=renamed)
            ops[k] = _reading(ops[k], name, renamed)
            ops.append(_writing(op, tensors[renamed], copy))
        ops.append(op)
        if len(ops) > MOST_OPS:
            return graph
    return replace(graph, ops=tuple(reversed(ops)), tensors=tensors)


def _is_pointwise(op: Op) -> bool:
    return op.kind == "loop" and op.combine is None and not op.scans and len(op.writes) == 1


def _reading(op: Op, name: str, renamed: str) -> Op:
    reads = tuple(replace(r, tensor=renamed) if r.tensor == name else r for r in op.reads)
    return replace(op, reads=reads)


def _writing(op: Op, tensor: Tensor, copy: int) -> Op:
    writes = (replace(op.writes[0], tensor=tensor.name),)
    return replace(op, name=f"{op.name}~{copy}", writes=writes)
