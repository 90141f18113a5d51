"""What compilers do: merge the pair of kernels that saves most, until none saves anything."""

from __future__ import annotations

from fuseledger.graph.graph import Graph
from fuseledger.planner.bits import bits
from fuseledger.planner.bound import in_order
from fuseledger.planner.candidates import neighbours
from fuseledger.planner.partition import Reach
from fuseledger.planner.plan import candidate_cost
from fuseledger.planner.schedules import ScheduleSearch

Pair = tuple[int, int]


def greedy_groups(graph: Graph, search: ScheduleSearch, max_ops: int = 10) -> list[int]:
    """Masks of the kernels that greedy pair merging ends with, priced as the planner prices."""
    reach, near = Reach.of(graph), neighbours(graph)
    home = {i: 1 << i for i in range(len(graph.ops))}
    cost = {1 << i: candidate_cost(search, (i,)) or 0.0 for i in home}

    def gain(merged: int, apart: float) -> float:
        """What merging saves, and 0 where it may not be."""
        above = below = 0
        for i in bits(merged):
            above |= reach.above[i]
            below |= reach.below[i]
        if above & below & ~merged or merged.bit_count() > max_ops:
            return 0.0
        together = candidate_cost(search, tuple(bits(merged)))
        return 0.0 if together is None else apart - together

    def pairs_of(mask: int) -> list[Pair]:
        """The kernel beside each of its neighbours."""
        around = 0
        for i in bits(mask):
            around |= near[i]
        others = dict.fromkeys(home[i] for i in bits(around & ~mask))
        return [(min(mask, other), max(mask, other)) for other in others]

    gains = {pair: 0.0 for mask in cost for pair in pairs_of(mask)}
    for a, b in gains:
        gains[a, b] = gain(a | b, cost[a] + cost[b])
    while gains:
        a, b = min(gains, key=lambda pair: (-gains[pair], pair))
        saved = gains.pop((a, b))
        if saved <= 1e-9:
            break
        merged = [mask for mask in cost if mask not in (a, b)] + [a | b]
        if in_order(graph, merged)[0] is None:
            continue
        cost[a | b] = cost.pop(a) + cost.pop(b) - saved
        home.update((i, a | b) for i in bits(a | b))
        gains = {pair: each for pair, each in gains.items() if not {a, b} & set(pair)}
        for one, two in pairs_of(a | b):
            gains[one, two] = gain(one | two, cost[one] + cost[two])
    return sorted(cost)
