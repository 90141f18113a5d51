"""Which ops of a kernel are made of which, and which reductions can share a walk."""

from __future__ import annotations

from collections.abc import Callable

from fuseledger.graph.op import Op
from fuseledger.triton.emit_body import Writer
from fuseledger.triton.scope import Frame


def above(w: Writer, i: int) -> set[int]:
    """An op and all that it is made of."""
    found = {i}
    for edge in reversed(w.nest.edges):
        if edge.consumer in found:
            found.add(edge.producer)
    return found


def siblings(w: Writer, i: int, frame: Frame, fits: Callable[[int], bool]) -> list[int]:
    """The reduction at `i` and those that can share its walk: over the same axes, for the same
    results, of which none needs another, not made yet, and that fit."""
    op = w.nest.ops[i]
    before = {j: above(w, j) for j in w.nest.positions}
    found = [i]
    for j, other in w.nest.ops.items():
        if (
            j not in found
            and all(j not in before[k] and k not in before[j] for k in found)
            and other.combine is not None
            and other.reduces == op.reduces
            and _places(w, other) == _places(w, op)
            and fits(j)
            and w.known(w.result_key(j, other.writes[0].tensor, frame)) is None
        ):
            found.append(j)
    return sorted(found)


def _places(w: Writer, op: Op) -> set[str] | None:
    """Lanes, and axes of loops around, that a reduction keeps; None where some are not in sight.

    Reductions of equal places are walked together: rows of (m, d) are rows of m too.
    """
    kept = [name for name in op.kept if w.extent(name) > 1]
    if any(name not in w.variables for name in kept):
        return None
    found = {name: w.variables[name] for name in kept}
    return {v.group or name for name, v in found.items() if v.group or v.depth}
