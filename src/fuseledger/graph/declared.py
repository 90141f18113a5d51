"""Declared ops: a kernel's worth of work of which only tensors and declared figures are known.

Each tensor has one axis of its own, as long as the tensor: nothing links the axes, so nothing is
priced but what the user declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fuseledger.graph.axis import Axis, Index
from fuseledger.graph.graph import Graph, Result
from fuseledger.graph.op import Access, Op
from fuseledger.graph.tensor import Role, Tensor
from fuseledger.graph.view import View


def flat_tensor(name: str, elements: int, dtype: str, role: Role) -> Tensor:
    """A tensor of one dimension along an axis of its own."""
    dims = ((Axis(f"i.{name}", elements),) if elements != 1 else (),)
    return Tensor(name=name, dims=dims, dtype=dtype, role=role)


def declared_op(
    name: str,
    function: str,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    attributes: Mapping[str, Any],
) -> Op:
    """An op that reads and writes whole flat tensors; `attributes` holds its declared figures."""
    return Op(
        name=name,
        function=function,
        kind="declared",
        axes=tuple(axis for tensor in (*reads, *writes) for axis in tensor.axes),
        reads=tuple(map(_whole, reads)),
        writes=tuple(map(_whole, writes)),
        attributes=dict(attributes),
    )


def declared_graph(name: str, ops: Sequence[Op], tensors: Sequence[Tensor]) -> Graph:
    """The graph of declared ops, in order; tensors of role `output` leave it."""
    results = [
        Result(t.name, View.whole(t.name, t.shape, t.dtype)) for t in tensors if t.role == "output"
    ]
    return Graph(
        name=name, ops=tuple(ops), tensors={t.name: t for t in tensors}, results=tuple(results)
    )


def _whole(tensor: Tensor) -> Access:
    return Access(tensor=tensor.name, index=tuple(Index.of(axis.name) for axis in tensor.axes))
