"""Structurally equal regions: eighty equal transformer layers are enumerated once.

Every op gets a signature in which other ops, tensors and axes appear only by how far back they
were last met. Where the signatures of a window of ops repeat, the candidates that start there are
those of the first such window, shifted.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Access
from fuseledger.graph.structure import Shift, start_of

WINDOW = 48
"""Ops that a candidate may span where regions repeat: two transformer layers, or more where a unit
is longer than one."""


WIDELY = 8
"""Readers of a tensor, or parts that an op joins, beyond which not every one of them is tried
together with the op that makes the tensor, or joins the parts."""
SIBLINGS = 16
"""Readers of a tensor beyond which those that follow each other are not tried side by side."""


def is_widely_read(graph: Graph, tensor: str) -> bool:
    """Whether a tensor has more readers than are tried one by one with what makes it."""
    return len(graph.consumers[tensor]) > WIDELY


def joins_many(graph: Graph, op: int) -> bool:
    """Whether an op joins more parts that the graph makes than are tried one by one."""
    return len(graph.predecessors[op]) > WIDELY


def representatives(graph: Graph, window: int) -> list[int]:
    """For each op the first op from which the next `window` ops look the same."""
    marks = _signatures(graph, window)
    count = len(marks)
    first: dict[tuple[int, ...], int] = {}
    found: list[int] = []
    for i in range(count):
        key = tuple(marks[i : i + window])
        # the end of the graph is part of what a window looks like
        found.append(first.setdefault(key, i) if len(key) == window else i)
    return found


def _signatures(graph: Graph, window: int) -> list[int]:
    """A number for each op, equal where no candidate within a window can tell two ops apart."""
    numbers: dict[object, int] = {}
    last_axis: dict[str, tuple[int, int]] = {}
    last_reader: dict[str, int] = {}
    last_start: dict[str, tuple[int, ...]] = {}
    outputs = set(graph.outputs)
    marks: list[int] = []

    def back(i: int, j: int | None) -> int | None:
        """How many ops ago, or None where that is never or too long."""
        return None if j is None or i - j >= window else i - j

    for i, op in enumerate(graph.ops):
        place = {axis.name: k for k, axis in enumerate(op.axes)}

        def access(a: Access, i: int = i) -> tuple[object, ...]:
            tensor = graph.tensors[a.tensor]
            near = back(i, last_reader.get(a.tensor))
            start = start_of(graph, graph.ops[i], a)
            before = last_start.get(a.tensor, start)
            return (
                back(i, graph.producer.get(a.tensor)),
                near,
                tensor.role == "weight" or len(graph.consumers[a.tensor]) > SIBLINGS,
                is_widely_read(graph, a.tensor),
                graph.consumers[a.tensor][0] == i,
                near and tuple(one - two for one, two in zip(start, before, strict=True)),
            )

        mark = (
            graph.structures[i].kind,
            _apart(graph.structures[i].shifts),
            joins_many(graph, i),
            tuple(_axis_back(last_axis, axis.name, i, window) for axis in op.axes),
            tuple(access(a) for a in op.reads),
            tuple(
                (
                    w.tensor in outputs,
                    tuple(sorted({min(j - i, window) for j in graph.consumers.get(w.tensor, ())})),
                )
                for w in op.writes
            ),
        )
        marks.append(numbers.setdefault(mark, len(numbers)))
        for name, k in place.items():
            last_axis[name] = (i, k)
        for a in op.reads:
            last_reader[a.tensor] = i
            last_start[a.tensor] = start_of(graph, op, a)
    return marks


def _apart(shifts: Sequence[Shift]) -> tuple[tuple[int, ...], ...]:
    """How far an op's slices of one tensor start from the first of them."""
    first: dict[str, tuple[int, ...]] = {}
    return tuple(
        tuple(a - b for a, b in zip(start, first.setdefault(name, start), strict=True))
        for name, start in shifts
    )


def _axis_back(
    last: dict[str, tuple[int, int]], name: str, i: int, window: int
) -> tuple[int, int] | None:
    """How many ops ago the axis was last walked, and as which of that op's axes."""
    found = last.get(name)
    return None if found is None or i - found[0] >= window else (i - found[0], found[1])
