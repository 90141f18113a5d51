"""Structurally equal regions: eighty equal transformer layers are enumerated once.

Every op gets a signature in which other ops, tensors and axes appear only by how far back they
were last met. Where the signatures of a window of ops repeat, the candidates that start there are
those of the first such window, shifted.
"""

from __future__ import annotations

from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Access

WINDOW = 48
"""Ops that a candidate may span where regions repeat: two transformer layers."""


def representatives(graph: Graph, window: int = WINDOW) -> list[int]:
    """For each op the first op from which the next `window` ops look the same."""
    marks = _signatures(graph)
    count = len(marks)
    first: dict[tuple[int, ...], int] = {}
    found: list[int] = []
    for i in range(count):
        key = tuple(marks[i : i + window])
        # the end of the graph is part of what a window looks like
        found.append(first.setdefault(key, i) if len(key) == window else i)
    return found


def _signatures(graph: Graph) -> list[int]:
    numbers: dict[object, int] = {}
    last_axis: dict[str, tuple[int, int]] = {}
    last_reader: dict[str, int] = {}
    outputs = set(graph.outputs)
    marks: list[int] = []
    for i, op in enumerate(graph.ops):
        place = {axis.name: k for k, axis in enumerate(op.axes)}

        def access(a: Access, i: int = i, place: dict[str, int] = place) -> tuple[object, ...]:
            tensor = graph.tensors[a.tensor]
            maker = graph.producer.get(a.tensor)
            reader = last_reader.get(a.tensor)
            return (
                tensor.dtype,
                None if maker is None else i - maker,
                None if reader is None else i - reader,
                tensor.role == "weight",
                tuple(
                    (
                        axis.size,
                        index.axis == axis.name,
                        index.offset,
                        index.divisor,
                        index.lookup,
                        tuple((place[name], stride) for name, stride in index.terms),
                    )
                    for axis, index in zip(tensor.axes, a.index, strict=True)
                ),
            )

        mark = (
            op.kind,
            op.combine,
            op.flops,
            op.special_ops,
            op.is_contraction,
            tuple(
                (
                    axis.size,
                    axis.name in op.reduces,
                    axis.name in op.scans,
                    _back(last_axis, axis.name, i),
                )
                for axis in op.axes
            ),
            tuple(access(a) for a in op.reads),
            tuple(
                (
                    graph.tensors[w.tensor].dtype,
                    w.tensor in outputs,
                    tuple(j - i for j in graph.consumers.get(w.tensor, ())),
                )
                for w in op.writes
            ),
            tuple(sorted(op.attributes.items())) if op.kind == "declared" else (),
        )
        marks.append(numbers.setdefault(mark, len(numbers)))
        for name, k in place.items():
            last_axis[name] = (i, k)
        for a in op.reads:
            last_reader[a.tensor] = i
    return marks


def _back(last: dict[str, tuple[int, int]], name: str, i: int) -> tuple[int, int] | None:
    """How many ops ago the axis was last walked, and as which of that op's axes."""
    found = last.get(name)
    return None if found is None else (i - found[0], found[1])
