"""Which ops of a kernel are made of which, and which reductions can share a walk."""

from __future__ import annotations

from collections.abc import Callable

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
            and set(other.kept) == set(op.kept)
            and fits(j)
            and w.known(w.result_key(j, other.writes[0].tensor, frame)) is None
        ):
            found.append(j)
    return sorted(found)
