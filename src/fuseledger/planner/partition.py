"""Least-cost partition of a graph into candidate kernels, by dynamic programming over down-sets.

A down-set is a set of ops closed under predecessors: what may have run so far. From each, every
candidate whose inputs are ready leads to a larger one. Where there are too many down-sets a beam
keeps the best of each size. A down-set is kept as its lowest undone op and what is done beyond it:
in a long graph that is a few bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from fuseledger.graph.graph import Graph
from fuseledger.planner.bits import bits
from fuseledger.planner.starting import Starting

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


State = tuple[int, int]
"""A down-set: its lowest undone op, and a mask of what is done from there on, that op as bit 0."""


def best_partition(
    graph: Graph,
    cost: Mapping[int, float] | Starting,
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
    moves = _Moves(graph, cost)
    count = len(graph.ops)
    found = _Found.start(count)
    states = 0
    for size in range(count):
        level = found.levels[size]
        states += len(level)
        if states > effort.states:
            return None, False
        for state in level:
            if moves.tried > effort.tried or time.monotonic() > deadline:
                return None, False
            found.extend(state, moves.after(state, thorough=True), above)
        found.levels[size] = []
        if moved is not None and level:
            moved(size)
    return found.path(count), True


def beam_partition(
    graph: Graph, cost: Mapping[int, float], *, width: int = BEAM, above: float = math.inf
) -> list[int] | None:
    """A cheap partition: the best down-sets of each size alone are pursued.

    With reduced costs, the duals guide it: what is kept is what is nearest to the bound.
    """
    moves = _Moves(graph, cost)
    count = len(graph.ops)
    found = _Found.start(count)
    for size in range(count):
        level = sorted(found.levels[size], key=lambda s: (found.best[s][0], s[1] << s[0]))
        for state in level[:width]:
            found.extend(state, moves.after(state, thorough=False), above)
        found.levels[size] = []
    return found.path(count)


class _Found(Struct):
    """Down-sets reached so far."""

    best: dict[State, tuple[float, State, int]]
    """Down-set → (cost, the one before, the kernel between them, from that one's lowest op on)."""
    levels: list[list[State]]
    """Down-sets by how many ops are done."""

    @staticmethod
    def start(ops: int) -> _Found:
        """Nothing is done."""
        levels: list[list[State]] = [[] for _ in range(ops + 1)]
        levels[0].append((0, 0))
        return _Found({(0, 0): (0.0, (0, 0), 0)}, levels)

    def extend(self, state: State, moves: list[tuple[int, float]], above: float) -> None:
        """Add what the moves make of a down-set, where it is new or cheaper than known."""
        base = self.best[state][0]
        first, done = state
        for mask, price in moves:
            total = base + price
            if total > above:
                continue
            rest = done | mask
            step = (~rest & rest + 1).bit_length() - 1
            after = (first + step, rest >> step)
            known = self.best.get(after)
            if known is None:
                self.levels[after[0] + after[1].bit_count()].append(after)
            elif total >= known[0] - 1e-12:
                continue
            self.best[after] = (total, state, mask)

    def path(self, ops: int) -> list[int] | None:
        """The kernels that lead to all ops done, in order."""
        state = (ops, 0)
        if state not in self.best:
            return None
        masks: list[int] = []
        while state != (0, 0):
            _, before, mask = self.best[state]
            masks.append(mask << before[0])
            state = before
        return masks[::-1]


_Move = tuple[int, int, float]
"""A candidate from its lowest op on: mask, what it reads from outside there, cost."""
_Earlier = tuple[int, int]
"""What a candidate reads before its lowest op: the first such op, and a mask from there on."""


class _Holding(Struct, frozen=True):
    """The candidates with one lowest op and some other op in common."""

    start: int
    moves: list[_Move]
    earlier: dict[int, _Earlier]
    """By mask, of all that start there and read anything before."""


class _Moves:
    """The kernels worth running next after a down-set."""

    def __init__(self, graph: Graph, cost: Mapping[int, float] | Starting) -> None:
        starting = cost if isinstance(cost, Starting) else Starting.of(len(graph.ops), cost)
        self.before = graph.predecessors
        self.starting: list[list[_Move]] = []
        """For each op the candidates whose lowest it is: equal windows share them."""
        self.with_op: list[dict[int, list[_Move]]] = []
        """For each op, of these, those with the op so many places on."""
        known: dict[int, tuple[list[_Move], dict[int, list[_Move]]]] = {}
        for first, sets in enumerate(starting.sets):
            shared = known.get(id(sets))
            if shared is None:
                shared = known[id(sets)] = self._prepared(first, sets)
            self.starting.append(shared[0])
            self.with_op.append(shared[1])
        self.span = max((max(each, default=0) for each in self.with_op), default=0)
        self.tried = 0
        """Candidates looked at and down-sets reached so far: the measure of work done."""
        self._earlier: dict[int, dict[int, _Earlier]] = {}
        self._holding: dict[int, list[_Holding]] = {}

    def _prepared(
        self, first: int, sets: Mapping[int, float]
    ) -> tuple[list[_Move], dict[int, list[_Move]]]:
        moves: list[_Move] = []
        with_op: dict[int, list[_Move]] = {}
        for mask, price in sets.items():
            needs = 0
            places = list(bits(mask))
            for place in places:
                for j in self.before[first + place]:
                    if j >= first:
                        needs |= 1 << j - first
            move = (mask, needs & ~mask, price)
            moves.append(move)
            for place in places:
                with_op.setdefault(place, []).append(move)
        return moves, with_op

    def holding(self, op: int) -> list[_Holding]:
        """The candidates with `op`, those with the latest start first."""
        found = self._holding.get(op)
        if found is None:
            starts = range(op, max(-1, op - self.span - 1), -1)
            found = self._holding[op] = [
                _Holding(start, moves, self._read_before(start))
                for start in starts
                if (moves := self.with_op[start].get(op - start))
            ]
        return found

    def _read_before(self, start: int) -> dict[int, _Earlier]:
        """What the candidates that start at an op read before it, by mask; none that read nothing
        there."""
        found = self._earlier.get(start)
        if found is None:
            found = self._earlier[start] = {}
            for mask, _, _ in self.starting[start]:
                reads = {j for i in bits(mask) for j in self.before[start + i] if j < start}
                if reads:
                    first = min(reads)
                    found[mask] = first, sum(1 << j - first for j in reads)
        return found

    def after(self, state: State, *, thorough: bool) -> list[tuple[int, float]]:
        """(mask from the lowest undone op on, cost) of each candidate to try.

        Those that hold the lowest undone op, and those that it may wait for: all of them, or,
        not `thorough`, only where nothing that holds it can run.
        """
        first, done = state
        found: dict[int, float] = {}
        waiting = 0
        # everything below the lowest undone op is done: what holds it starts with it
        for mask, needs, price in self.starting[first]:
            if mask & done:
                continue
            if missing := needs & ~done:
                waiting |= missing
            else:
                found[mask] = price
        self.tried += len(self.starting[first])
        if waiting and (thorough or not found):
            self._wait(state, waiting, found)
        self.tried += len(found)
        return list(found.items())

    def _wait(self, state: State, waiting: int, found: dict[int, float]) -> None:
        """Add the candidates that run before the lowest undone op: those with ops that others
        wait for. Masks are long where the graph is: most work is done on those from the lowest
        op of a candidate on."""
        first, done = state
        seen = 0
        while left := waiting & ~seen:
            low = left & -left
            seen |= low
            for held in self.holding(first + low.bit_length() - 1):
                shift = held.start - first
                if shift <= 0:
                    break
                beyond = done >> shift
                missing = 0
                for mask, needs, price in held.moves:
                    if mask & beyond:
                        continue
                    lacks = needs & ~beyond
                    missing |= lacks
                    if mask in held.earlier:
                        start, reads = held.earlier[mask]
                        reads = reads << start - first if start > first else reads >> first - start
                        if reads := reads & ~done:
                            waiting |= reads
                            continue
                    if not lacks:
                        found[mask << shift] = price
                self.tried += len(held.moves)
                waiting |= missing << shift
