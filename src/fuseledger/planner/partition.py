"""Least-cost partition of a graph into convex kernels.

Candidates are connected convex sets of ops, and siblings that share an input, grown one op at a
time. A plan is built by dynamic programming over down-sets (sets of ops closed under
predecessors): from each down-set, every candidate whose inputs are ready leads to a larger one.
Where there are too many down-sets a beam keeps the best of each size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from fuseledger.graph.graph import Graph
from fuseledger.planner.bits import bits
from fuseledger.planner.repeats import WINDOW, representatives

Cost = Callable[[tuple[int, ...]], float | None]
"""Cost of a set of ops as one kernel, or None where it is not usable."""

MAX_OPS = 10
MAX_CANDIDATES = 50_000
EXHAUSTIVE = 2_000
"""Distinct structures up to which every convex set is grown."""
PROMISING = 6
"""Beyond, sets of each size that are grown further from each first op: those that save most over
their ops apart."""
MAX_STATES = 300_000
MAX_TRIED = 5_000_000
"""Candidates looked at before dynamic programming gives way to a beam."""
BEAM = 64


@dataclass(slots=True)
class Partition:
    """Groups of op positions in an order in which they can run."""

    groups: list[tuple[int, ...]]
    cost: float
    optimal: bool
    """Whether no cheaper partition into any candidates exists: nothing was cut short."""
    candidates: int
    states: int
    cut_short: list[str] = field(default_factory=list[str])
    gap: float | None = None
    """Proved distance to the cheapest partition into the candidates, as a share of the cost."""


@dataclass(slots=True)
class Reach:
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


def neighbours(graph: Graph) -> list[int]:
    """For each op a mask of those it shares an intermediate or an activation with."""
    near = [0] * len(graph.ops)
    for i, before in enumerate(graph.predecessors):
        for j in before:
            near[i] |= 1 << j
            near[j] |= 1 << i
    for name, readers in graph.consumers.items():
        if graph.tensors[name].role == "weight" or len(readers) > 8:
            continue
        for a, b in pairwise(readers):
            near[a] |= 1 << b
            near[b] |= 1 << a
    return near


@dataclass(slots=True)
class Candidates:
    """Usable candidates: mask → cost, and the masks of what each needs done before."""

    cost: dict[int, float]
    capped: bool
    promising_only: bool = False
    """Whether growth was limited to the sets of each size that save most."""


def enumerate_candidates(
    graph: Graph,
    cost: Cost,
    *,
    max_ops: int = MAX_OPS,
    limit: int = MAX_CANDIDATES,
    distinct: Callable[[], int] | None = None,
) -> Candidates:
    """All convex connected sets of up to `max_ops` ops with a cost, smallest first.

    `distinct` tells how many structures have been priced so far: equal layers count once.
    """
    reach, near = Reach.of(graph), neighbours(graph)
    barriers = sum(1 << i for i, op in enumerate(graph.ops) if op.is_opaque)
    firsts = representatives(graph)
    seen_once = _windows(firsts)
    found: dict[int, float] = {}
    layer: dict[int, tuple[int, int, int]] = {}
    for i in bits(seen_once):
        price = cost((i,))
        assert price is not None, "a single op is always a kernel"
        found[1 << i] = price
        if not barriers >> i & 1:
            layer[1 << i] = (reach.above[i], reach.below[i], near[i])
    capped = promising_only = False
    for _ in range(max_ops - 1):
        grown: dict[int, tuple[int, int, int]] = {}
        if (distinct() if distinct else len(found)) > EXHAUSTIVE:
            promising_only = True
            layer = _promising(found, layer)
        for mask, (above, below, around) in layer.items():
            for i in bits(around & seen_once & ~mask & ~barriers):
                wider = mask | 1 << i
                if wider in grown or wider in found:
                    continue
                up, down = above | reach.above[i], below | reach.below[i]
                if up & down & ~wider:
                    continue
                if len(found) >= limit:
                    capped = True
                    break
                price = cost(tuple(bits(wider)))
                grown[wider] = (up, down, around | near[i])
                if price is not None:
                    found[wider] = price
            if capped:
                break
        layer = grown
        if capped or not layer:
            break
    return Candidates(_shifted(found, firsts), capped, promising_only)


def _windows(firsts: list[int]) -> int:
    """Mask of the ops that some first window covers."""
    mask = 0
    for i, first in enumerate(firsts):
        if first == i:
            mask |= (1 << WINDOW) - 1 << i
    return mask & (1 << len(firsts)) - 1


def _shifted(found: dict[int, float], firsts: list[int]) -> dict[int, float]:
    """The candidates of every window: those of the first equal one, moved to where it is."""
    if all(first == i for i, first in enumerate(firsts)):
        return found
    starting: dict[int, list[int]] = {}
    for mask in found:
        starting.setdefault((mask & -mask).bit_length() - 1, []).append(mask)
    moved: dict[int, float] = {}
    for i, first in enumerate(firsts):
        for mask in starting[first]:
            if first == i or mask >> first < 1 << WINDOW:
                moved[mask << i - first] = found[mask]
    return moved


def _promising(
    found: dict[int, float], layer: dict[int, tuple[int, int, int]]
) -> dict[int, tuple[int, int, int]]:
    """The sets of a layer that save most, a few for each first op."""
    kept: dict[int, tuple[int, int, int]] = {}
    count: dict[int, int] = {}
    for mask in sorted(layer, key=lambda mask: _saving(found, mask)):
        first = mask & -mask
        if count.get(first, 0) < PROMISING:
            count[first] = count.get(first, 0) + 1
            kept[mask] = layer[mask]
    return kept


def _saving(found: dict[int, float], mask: int) -> tuple[float, int]:
    """Cost of a set beside its ops apart (negative: it saves); ties by position."""
    return found.get(mask, float("inf")) - sum(found[1 << i] for i in bits(mask)), mask


def partition(graph: Graph, candidates: Candidates, *, max_states: int = MAX_STATES) -> Partition:
    """The cheapest partition into candidates, exactly where down-sets are few, else by beam.

    From a down-set, the kernel that holds its lowest undone op either runs next, or waits for
    others; only kernels that it may wait for, directly or through others, are tried besides. What
    runs side by side is so put in one order instead of all.
    """
    count = len(graph.ops)
    full = (1 << count) - 1
    moves = _Moves.of(graph, candidates)
    best: dict[int, tuple[float, int, int]] = {0: (0.0, 0, 0)}
    levels: list[list[int]] = [[] for _ in range(count + 1)]
    levels[0].append(0)
    states, beam = 0, False
    for size in range(count):
        level = levels[size]
        if states + len(level) > max_states or moves.tried > MAX_TRIED or beam:
            beam = True
            level = sorted(level, key=lambda s: (best[s][0], s))[:BEAM]
        states += len(level)
        for state in level:
            base = best[state][0]
            for mask, price in moves.after(state, thorough=not beam):
                after = state | mask
                total = base + price
                known = best.get(after)
                if known is None or total < known[0] - 1e-12:
                    best[after] = (total, state, mask)
                    if known is None:
                        levels[after.bit_count()].append(after)
        levels[size] = []
    groups: list[tuple[int, ...]] = []
    state = full
    while state:
        _, before, mask = best[state]
        groups.append(tuple(bits(mask)))
        state = before
    groups.reverse()
    cut: list[str] = []
    if beam:
        cut.append(f"more than {states:,} down-sets: beam of {BEAM}")
    if candidates.capped:
        cut.append(f"candidates capped at {len(candidates.cost):,}")
    if candidates.promising_only and not candidates.capped:
        cut.append(
            f"beyond {EXHAUSTIVE:,} structures only the {PROMISING} best groups of a size and "
            "first op were grown"
        )
    gap = None if beam else 0.0
    return Partition(groups, best[full][0], not cut, len(candidates.cost), states, cut, gap)


@dataclass(slots=True)
class _Moves:
    """The kernels worth running next after a down-set."""

    holding: list[list[tuple[int, int, float]]]
    """For each op the candidates with it: mask, what they read from outside, cost."""
    tried: int = 0
    """Candidates looked at so far: the measure of work done."""

    @staticmethod
    def of(graph: Graph, candidates: Candidates) -> _Moves:
        needs_of = [sum(1 << j for j in before) for before in graph.predecessors]
        holding: list[list[tuple[int, int, float]]] = [[] for _ in graph.ops]
        for mask, price in candidates.cost.items():
            members = list(bits(mask))
            needs = 0
            for i in members:
                needs |= needs_of[i]
            move = (mask, needs & ~mask, price)
            for i in members:
                holding[i].append(move)
        return _Moves(holding)

    def after(self, state: int, *, thorough: bool) -> list[tuple[int, float]]:
        """(mask, cost) of each candidate to try.

        Those that hold the lowest undone op, and those that it may wait for: all of them, or,
        not `thorough`, only where nothing that holds it can run.
        """
        first = ~state & state + 1
        found: dict[int, float] = {}
        waiting = self._look(first, state, 0, found)
        if found and not thorough:
            return list(found.items())
        seen = first
        while waiting & ~seen:
            low = waiting & ~seen & -(waiting & ~seen)
            seen |= low
            waiting |= self._look(low, state, first, found)
        return list(found.items())

    def _look(self, op: int, state: int, without: int, found: dict[int, float]) -> int:
        """Add the candidates with `op` that can run; return what the others wait for."""
        waiting = 0
        moves = self.holding[op.bit_length() - 1]
        self.tried += len(moves)
        for mask, needs, price in moves:
            if mask & state or mask & without:
                continue
            if needs & ~state:
                waiting |= needs & ~state
            else:
                found[mask] = price
        return waiting
