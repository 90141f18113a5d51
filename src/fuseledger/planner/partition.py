"""Least-cost partition of a graph into candidate kernels, by dynamic programming over down-sets.

A down-set is a set of ops closed under predecessors: what may have run so far. From each, every
candidate whose inputs are ready leads to a larger one. Where there are too many down-sets a beam
keeps the best of each size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from fuseledger.graph.graph import Graph
from fuseledger.planner.bits import bits

BEAM = 64


class Effort(Struct, frozen=True, kw_only=True):
    """How much work may go into one search over down-sets, in counts: the same on any machine."""

    states: int = 300_000
    """Down-sets looked at."""
    tried: int = 5_000_000
    """Candidates looked at."""


class Reach(Struct):
    """Ancestors and descendants of every op, as bit masks."""

    above: list[int]
    below: list[int]

    @staticmethod
    def of(graph: Graph) -> Reach:
        """Transitive closure of the graph."""
        count = len(graph.ops)
        above, below = [0] * count, [0] * count
        for i in range(count):
            for j in graph.predecessors[i]:
                above[i] |= above[j] | 1 << j
        for i in range(count - 1, -1, -1):
            for j in graph.successors[i]:
                below[i] |= below[j] | 1 << j
        return Reach(above, below)


def best_partition(
    graph: Graph,
    cost: Mapping[int, float],
    effort: Effort,
    *,
    above: float = math.inf,
    deadline: float = math.inf,
    moved: Callable[[int], object] | None = None,
) -> tuple[list[int] | None, bool]:
    """(masks of the cheapest partition in an order in which they run, whether that is proved).

    `cost` may be reduced costs, which are not negative: then down-sets dearer than `above` lead
    to no plan worth having. No partition, proved: none costs less than `above`. No partition,
    not proved: the effort was spent. `moved` hears how many ops the search has covered.

    From a down-set, the kernel that holds its lowest undone op either runs next, or waits for
    others; only kernels that it may wait for, directly or through others, are tried besides. What
    runs side by side is so put in one order instead of all.
    """
    moves = _Moves.of(graph, cost)
    count = len(graph.ops)
    best: dict[int, tuple[float, int, int]] = {0: (0.0, 0, 0)}
    levels: list[list[int]] = [[] for _ in range(count + 1)]
    levels[0].append(0)
    states = 0
    for size in range(count):
        level = levels[size]
        states += len(level)
        if states > effort.states:
            return None, False
        for state in level:
            if moves.tried > effort.tried or time.monotonic() > deadline:
                return None, False
            _extend(best, levels, state, moves.after(state, thorough=True), above)
        levels[size] = []
        if moved is not None and level:
            moved(size)
    return _path(best, (1 << count) - 1), True


def beam_partition(
    graph: Graph, cost: Mapping[int, float], *, width: int = BEAM, above: float = math.inf
) -> list[int] | None:
    """A cheap partition: the best down-sets of each size alone are pursued.

    With reduced costs, the duals guide it: what is kept is what is nearest to the bound.
    """
    moves = _Moves.of(graph, cost)
    count = len(graph.ops)
    best: dict[int, tuple[float, int, int]] = {0: (0.0, 0, 0)}
    levels: list[list[int]] = [[] for _ in range(count + 1)]
    levels[0].append(0)
    for size in range(count):
        for state in sorted(levels[size], key=lambda s: (best[s][0], s))[:width]:
            _extend(best, levels, state, moves.after(state, thorough=False), above)
        levels[size] = []
    return _path(best, (1 << count) - 1)


def _extend(
    best: dict[int, tuple[float, int, int]],
    levels: list[list[int]],
    state: int,
    moves: list[tuple[int, float]],
    above: float,
) -> None:
    """Add what the moves make of a down-set, where it is new or cheaper than known."""
    base = best[state][0]
    for mask, price in moves:
        total = base + price
        if total > above:
            continue
        after = state | mask
        known = best.get(after)
        if known is None:
            levels[after.bit_count()].append(after)
        elif total >= known[0] - 1e-12:
            continue
        best[after] = (total, state, mask)


def _path(best: dict[int, tuple[float, int, int]], state: int) -> list[int] | None:
    if state not in best:
        return None
    masks: list[int] = []
    while state:
        _, state, mask = best[state]
        masks.append(mask)
    return masks[::-1]


_Move = tuple[int, int, float, int]
"""A candidate: mask, what it reads from outside, cost, its lowest op."""


class _Moves(Struct):
    """The kernels worth running next after a down-set."""

    starting: list[list[_Move]]
    """For each op the candidates whose lowest it is."""
    holding: list[list[_Move]]
    """For each op the candidates with it, those with the latest lowest op first."""
    tried: int = 0
    """Candidates looked at and down-sets reached so far: the measure of work done."""

    @staticmethod
    def of(graph: Graph, cost: Mapping[int, float]) -> _Moves:
        needs_of = [sum(1 << j for j in before) for before in graph.predecessors]
        starting: list[list[_Move]] = [[] for _ in graph.ops]
        holding: list[list[_Move]] = [[] for _ in graph.ops]
        for mask, price in cost.items():
            members = list(bits(mask))
            needs = 0
            for i in members:
                needs |= needs_of[i]
            starting[members[0]].append((mask, needs & ~mask, price, members[0]))
        for moves in reversed(starting):
            for move in moves:
                for i in bits(move[0]):
                    holding[i].append(move)
        return _Moves(starting, holding)

    def after(self, state: int, *, thorough: bool) -> list[tuple[int, float]]:
        """(mask, cost) of each candidate to try.

        Those that hold the lowest undone op, and those that it may wait for: all of them, or,
        not `thorough`, only where nothing that holds it can run.
        """
        first = (~state & state + 1).bit_length() - 1
        found: dict[int, float] = {}
        waiting = 0
        # everything below the lowest undone op is done: what holds it starts with it
        for mask, needs, price, _ in self.starting[first]:
            if mask & state:
                continue
            if missing := needs & ~state:
                waiting |= missing
            else:
                found[mask] = price
        self.tried += len(self.starting[first])
        if waiting and (thorough or not found):
            self._wait(first, waiting, state, found)
        self.tried += len(found)
        return list(found.items())

    def _wait(self, first: int, waiting: int, state: int, found: dict[int, float]) -> None:
        """Add the candidates that run before `first`: those with ops that others wait for."""
        seen = 0
        while waiting & ~seen:
            low = waiting & ~seen & -(waiting & ~seen)
            seen |= low
            for mask, needs, price, lowest in self.holding[low.bit_length() - 1]:
                if lowest <= first:
                    break
                self.tried += 1
                if mask & state:
                    continue
                if missing := needs & ~state:
                    waiting |= missing
                else:
                    found[mask] = price
