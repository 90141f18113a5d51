"""Part of a graph as a graph of its own, and a graph at other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from fuseledger.graph.axis import Axis
from fuseledger.graph.graph import Graph, Result
from fuseledger.graph.op import Op
from fuseledger.graph.tensor import Tensor
from fuseledger.graph.view import View


def part_of(graph: Graph, positions: Sequence[int]) -> Graph:
    """The ops at `positions` alone: what they read from others is an input, what others read of
    them an output."""
    ops = tuple(graph.ops[i] for i in positions)
    inside = set(positions)
    made = {write.tensor for op in ops for write in op.writes}
    tensors: dict[str, Tensor] = {}
    leaving: list[str] = []
    for name in dict.fromkeys(a.tensor for op in ops for a in (*op.reads, *op.writes)):
        tensor = graph.tensors[name]
        if name in made:
            leaves = name in graph.outputs or not inside.issuperset(graph.consumers.get(name, ()))
            if leaves:
                leaving.append(name)
            tensors[name] = replace(tensor, role="output" if leaves else "intermediate")
        else:
            tensors[name] = tensor if tensor.is_external else replace(tensor, role="input")
    return _with(graph.name, ops, tensors, leaving)


def free_axes(graph: Graph) -> list[str]:
    """Axes whose size means nothing to any index: every coordinate they are in is they alone, and
    is that axis of its tensor. Largest first."""
    sizes = {axis.name: axis.size for op in graph.ops for axis in op.axes}
    bound: set[str] = set()
    for op in graph.ops:
        bound |= op.scans
        for access in (*op.reads, *op.writes):
            for axis, index in zip(graph.tensors[access.tensor].axes, access.index, strict=True):
                if index.axis != axis.name:
                    bound.update(name for name, _ in index.terms)
                    bound.add(axis.name)
    free = [name for name, size in sizes.items() if name not in bound and size > 1]
    return sorted(free, key=lambda name: (-sizes[name], name))


def resized(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with axes of other sizes. Only free axes keep their meaning."""

    def resize(axis: Axis) -> Axis:
        return Axis(axis.name, sizes.get(axis.name, axis.size))

    tensors = {
        name: replace(
            tensor, dims=tuple(tuple(resize(axis) for axis in dim) for dim in tensor.dims)
        )
        for name, tensor in graph.tensors.items()
    }
    ops = tuple(replace(op, axes=tuple(resize(axis) for axis in op.axes)) for op in graph.ops)
    return _with(graph.name, ops, tensors, [result.view.base for result in graph.results])


def _with(name: str, ops: tuple[Op, ...], tensors: dict[str, Tensor], leaving: list[str]) -> Graph:
    results = tuple(
        Result(each, View.whole(each, tensors[each].shape, tensors[each].dtype)) for each in leaving
    )
    return Graph(name=name, ops=ops, tensors=tensors, results=results)
