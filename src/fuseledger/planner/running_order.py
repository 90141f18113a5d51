"""Kernels in an order in which they can run, kept up while pairs of them are merged.

Two kernels can become one unless a third lies on a way from one to the other: it would wait for
the one and be waited for by it. Such a way lies between the places of the two, so that a merge
looks at, and moves, only what lies there (Pearce and Kelly, "A dynamic topological sort algorithm
for directed acyclic graphs", 2006).
"""

from __future__ import annotations

from collections.abc import Sequence

from fuseledger.graph.graph import Graph


class RunningOrder:
    """Every op a kernel of its own, to begin with, in the graph's order."""

    def __init__(self, graph: Graph) -> None:
        count = len(graph.ops)
        self._before, self._after = graph.predecessors, graph.successors
        self._home = list(range(count))
        self._ops: list[list[int]] = [[i] for i in range(count)]
        self._place = list(range(count))

    def merge(self, one: int, other: int) -> bool:
        """Make one kernel of the two that hold these ops; False where it would wait for itself."""
        place = self._place
        first, last = sorted((self._home[one], self._home[other]), key=place.__getitem__)
        later = self._between(first, last, self._after)
        if any(last in self._beside(kernel, self._after) for kernel in later):
            return False
        earlier = self._between(last, first, self._before)
        moved = [
            *sorted(earlier, key=place.__getitem__), first, *sorted(later, key=place.__getitem__)
        ]  # fmt: skip
        slots = sorted(place[kernel] for kernel in (*moved, last))
        for kernel, slot in zip(moved, slots, strict=False):  # one slot is left over
            place[kernel] = slot
        for i in self._ops[last]:
            self._home[i] = first
        self._ops[first] += self._ops[last]
        return True

    def _beside(self, kernel: int, near: Sequence[Sequence[int]]) -> set[int]:
        """The kernels that one reads from, or that read from it."""
        return {self._home[j] for i in self._ops[kernel] for j in near[i]} - {kernel}

    def _between(self, start: int, end: int, near: Sequence[Sequence[int]]) -> set[int]:
        """What is met from one kernel on, before the place of another."""
        low, high = sorted((self._place[start], self._place[end]))
        found: set[int] = set()
        waiting = [start]
        while waiting:
            for kernel in self._beside(waiting.pop(), near):
                if low < self._place[kernel] < high and kernel not in found:
                    found.add(kernel)
                    waiting.append(kernel)
        return found
