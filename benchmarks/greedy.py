"""What compilers do: merge the pair of kernels that saves most, until none saves anything."""

from __future__ import annotations

from fuseledger.graph.graph import Graph
from fuseledger.planner.bits import bits
from fuseledger.planner.bound import in_order
from fuseledger.planner.candidates import neighbours
from fuseledger.planner.partition import Reach
from fuseledger.planner.plan import candidate_cost
from fuseledger.planner.schedules import ScheduleSearch


def greedy_groups(graph: Graph, search: ScheduleSearch, max_ops: int = 10) -> list[int]:
    """Masks of the kernels that greedy pair merging ends with, priced as the planner prices."""
    reach, near = Reach.of(graph), neighbours(graph)
    groups = {1 << i: candidate_cost(search, (i,)) or 0.0 for i in range(len(graph.ops))}
    gains: dict[tuple[int, int], float] = {}

    def gain(a: int, b: int) -> float:
        merged = a | b
        above = below = around = 0
        for i in bits(merged):
            above |= reach.above[i]
            below |= reach.below[i]
        for i in bits(a):
            around |= near[i]
        if not around & b or above & below & ~merged or merged.bit_count() > max_ops:
            return 0.0
        cost = candidate_cost(search, tuple(bits(merged)))
        return 0.0 if cost is None else groups[a] + groups[b] - cost

    while True:
        masks = sorted(groups)
        pairs = [(a, b) for a in masks for b in masks if a < b]
        for pair in pairs:
            if pair not in gains:
                gains[pair] = gain(*pair)
        pairs.sort(key=lambda pair: (-gains[pair], pair))
        for a, b in pairs:
            if gains[a, b] <= 1e-9:
                return sorted(groups)
            merged = {m: c for m, c in groups.items() if m not in (a, b)}
            merged[a | b] = groups[a] + groups[b] - gains[a, b]
            if _acyclic(graph, list(merged)):
                groups = merged
                break
            gains[a, b] = 0.0
        else:
            return sorted(groups)


def _acyclic(graph: Graph, masks: list[int]) -> bool:
    return in_order(graph, masks)[0] is not None
