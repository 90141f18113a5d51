"""Greedy pair merging, which is what compilers do: the plan that ours must never be dearer than.

Where not every group could be grown, the groups that merging passes through are candidates too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from fuseledger.graph.graph import Graph
from fuseledger.planner.bits import bits
from fuseledger.planner.partition import Reach
from fuseledger.planner.running_order import RunningOrder
from fuseledger.planner.starting import lowest

Pair = tuple[int, int]

LEAST_SAVED = 1e-9
"""What a merge saves at least: less is rounding."""


def merge_pairs(
    graph: Graph,
    near: list[int],
    cost: Callable[[tuple[int, ...], float], float | None],
    *,
    max_ops: int,
    among: int | None = None,
    deadline: float = math.inf,
) -> tuple[list[int], dict[int, float]]:
    """(masks of the last kernels, cost of every kernel on the way).

    The pair of neighbours that saves most becomes one kernel, until none saves anything. `cost` is
    that of `candidates.py`. `among` is a mask of the ops that may be merged: all of them where it
    is None.
    """
    reach = Reach.of(graph)
    merging = (1 << len(graph.ops)) - 1 if among is None else among
    home = {i: 1 << i for i in range(len(graph.ops))}
    now = {1 << i: cost((i,), math.inf) or 0.0 for i in home}
    ever = dict(now)
    order = RunningOrder(graph)
    best: list[tuple[float, Pair]] = []
    """A heap of pairs and what they save, less than nothing; some of kernels that are no more."""

    def gain(merged: int, apart: float) -> float:
        """What merging saves, and 0 where it may not be."""
        above = below = 0
        for i in bits(merged):
            above |= reach.above[i]
            below |= reach.below[i]
        if above & below & ~merged or merged.bit_count() > max_ops:
            return 0.0
        together = cost(tuple(bits(merged)), apart)
        return 0.0 if together is None else apart - together

    def pairs_of(mask: int) -> list[Pair]:
        """The kernel beside each of its neighbours."""
        around = 0
        for i in bits(mask):
            around |= near[i]
        others = dict.fromkeys(home[i] for i in bits(around & merging & ~mask))
        return [(min(mask, other), max(mask, other)) for other in others]

    def offer(pairs: Iterable[Pair]) -> None:
        for a, b in pairs:
            saved = gain(a | b, now[a] + now[b])
            if saved > LEAST_SAVED:
                heappush(best, (-saved, (a, b)))

    offer(dict.fromkeys(pair for mask in now if mask & merging for pair in pairs_of(mask)))
    while best and time.monotonic() < deadline:
        saved, (a, b) = heappop(best)
        if a not in now or b not in now or not order.merge(lowest(a), lowest(b)):
            continue
        now[a | b] = ever[a | b] = now.pop(a) + now.pop(b) + saved
        home.update((i, a | b) for i in bits(a | b))
        offer(pairs_of(a | b))
    return sorted(now), ever
