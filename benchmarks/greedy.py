"""Greedy pair merging, priced as the planner prices."""

from __future__ import annotations

from fuseledger.graph.graph import Graph
from fuseledger.planner.candidates import MAX_OPS, neighbours
from fuseledger.planner.merging import merge_pairs
from fuseledger.planner.plan import candidate_cost
from fuseledger.planner.schedules import ScheduleSearch


def greedy_groups(graph: Graph, search: ScheduleSearch, max_ops: int = MAX_OPS) -> list[int]:
    """Masks of the kernels that greedy pair merging ends with."""
    near = neighbours(graph)
    masks, _ = merge_pairs(
        graph, near, lambda g, apart: candidate_cost(search, g, apart), max_ops=max_ops
    )
    return masks
