"""Loops of emitted code."""

from __future__ import annotations

import ast

from fuseledger.frontends.source import load
from fuseledger.ledger.kernel import AxisSchedule, Kernel, Schedule
from fuseledger.triton.emit import EmitOptions, emit_kernel

SHORT = EmitOptions(loop_points=16, block_elements=16, whole_depth=16)
"""Loops where a tile would hold all."""
SOURCE = "max(batch_norm(conv(x[3,4,10,10],w[16,4,3,3])), axis=1)"


def _loops(body: list[ast.stmt], outer: frozenset[str]) -> list[tuple[set[str], frozenset[str]]]:
    """(names that a loop assigns itself, indices of the loops around it)."""
    found: list[tuple[set[str], frozenset[str]]] = []
    for each in body:
        if isinstance(each, ast.For):
            assert isinstance(each.target, ast.Name)
            own = {each.target.id}
            found.append((own, outer))
            found += _loops(each.body, outer | own)
    return found


def test_no_loop_assigns_the_index_of_a_loop_around_it() -> None:
    """A statistic looped inside the walk of its reader has indices of its own."""
    graph = load(SOURCE, dtype="fp32", dims={})
    axes = tuple(
        (axis.name, AxisSchedule("loop", min(axis.size, 64)))
        for op in graph.ops
        for axis in op.axes
        if axis.size > 1
    )
    whole = Kernel(
        ops=tuple(range(len(graph.ops))), schedule=Schedule(axes=tuple(dict(axes).items()), walks=2)
    )
    source = emit_kernel(graph, whole, options=SHORT).source
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    loops = _loops(function.body, frozenset())
    assert len(loops) >= 3
    assert all(own.isdisjoint(outer) for own, outer in loops)
