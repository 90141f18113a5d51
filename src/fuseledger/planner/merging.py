"""Greedy pair merging, which is what compilers do: the plan that ours must never be dearer than.

Where not every group could be grown, the groups that merging passes through are candidates too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from fuseledger.graph.graph import Graph
from fuseledger.planner.bits import bits
from fuseledger.planner.bound import in_order
from fuseledger.planner.partition import Reach

Pair = tuple[int, int]


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

    gains: dict[Pair, float] = {
        pair: 0.0 for mask in now if mask & merging for pair in pairs_of(mask)
    }
    for a, b in gains:
        gains[a, b] = gain(a | b, now[a] + now[b])
    while gains and time.monotonic() < deadline:
        _, (a, b) = min((-each, pair) for pair, each in gains.items())
        saved = gains.pop((a, b))
        if saved <= 1e-9:
            break
        if in_order(graph, [*(mask for mask in now if mask not in (a, b)), a | b])[0] is None:
            continue
        now[a | b] = ever[a | b] = now.pop(a) + now.pop(b) - saved
        home.update((i, a | b) for i in bits(a | b))
        gains = {(c, d): each for (c, d), each in gains.items() if not {a, b} & {c, d}}
        for one, two in pairs_of(a | b):
            gains[one, two] = gain(one | two, now[one] + now[two])
    return sorted(now), ever
