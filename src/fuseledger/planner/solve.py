"""The cheapest partition of a graph into given candidates, and what is proved of it.

1. Dynamic programming over down-sets with a little effort: enough for chains of layers.
2. Otherwise the LP relaxation gives a lower bound and what each candidate costs above it. A beam
   that follows these reduced costs gives a plan; candidates dearer than the distance between the
   two can be in no better one, and are dropped.
3. Dynamic programming again on the candidates left, on reduced costs, leaving out down-sets above
   that distance.
4. Where that is still too much, an integer search with limits on its nodes and time.

Efforts are counts, so that a plan is the same on any machine; the time limit is a stop for those
who cannot wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from fuseledger.errors import MissingExtra
from fuseledger.graph.graph import Graph
from fuseledger.planner.bits import bits
from fuseledger.planner.bound import SLACK, improve, relax
from fuseledger.planner.candidates import Candidates
from fuseledger.planner.partition import BEAM, Effort, beam_partition, best_partition

FIRST_TRIES = 10
"""Times that each candidate may be looked at before the relaxation is asked."""


class Partition(Struct):
    """Groups of op positions in an order in which they can run."""

    groups: list[tuple[int, ...]]
    cost: float
    optimal: bool
    """Whether no cheaper partition into any candidates exists: nothing was cut short."""
    candidates: int
    cut_short: list[str] = field(default_factory=list[str])
    gap: float | None = None
    """Proved distance to the cheapest partition into the candidates, as a share of the cost."""


def solve(
    graph: Graph,
    candidates: Candidates,
    *,
    effort: Effort,
    deadline: float = math.inf,
    moved: Callable[[int], object] | None = None,
) -> Partition:
    """The cheapest partition into candidates, or the best one found and its proved gap."""
    starting, count = candidates.starting, len(candidates.starting)
    tries = min(effort.tried, FIRST_TRIES * (count + len(graph.ops)))
    first = Effort(states=effort.states, tried=tries)
    masks, proved = best_partition(graph, starting, first, deadline=deadline, moved=moved)
    if masks is not None:
        gap: float | None = 0.0
        cut: list[str] = []
    else:
        assert not proved, "single ops are candidates"
        masks, gap, cut = _bounded(graph, candidates.cost, effort, deadline)
    cut += candidates.cut_short
    return Partition(
        [tuple(bits(mask)) for mask in masks],
        sum(starting.price(mask) for mask in masks),
        not cut,
        count,
        cut,
        gap,
    )


def _bounded(
    graph: Graph, cost: dict[int, float], effort: Effort, deadline: float
) -> tuple[list[int], float | None, list[str]]:
    """(masks, proved gap, what was cut short) where the relaxation has to help."""
    try:
        relaxed = relax(graph, cost)
    except MissingExtra as missing:
        masks, _ = best_partition(graph, cost, effort, deadline=deadline)
        if masks is not None:
            return masks, 0.0, []
        masks = _beam(graph, cost, cost)
        return masks, None, [f"too many down-sets: beam of {BEAM}; no bound: {missing}"]
    if relaxed.groups is not None:
        return relaxed.groups, 0.0, []
    masks = _beam(graph, cost, relaxed.reduced)
    known = sum(cost[mask] for mask in masks)
    slack = SLACK * max(1.0, known)
    above = known - relaxed.lower
    if above <= slack:
        return masks, 0.0, []
    kept = {mask: each for mask, each in relaxed.reduced.items() if each <= above + slack}
    better, proved = best_partition(graph, kept, effort, above=above + slack, deadline=deadline)
    if better is not None:
        return better, 0.0, []
    if proved:
        return masks, 0.0, []
    found = improve(graph, {m: cost[m] for m in kept}, known, relaxed.lower, deadline=deadline)
    if found.groups is not None:
        masks = found.groups
    if found.closed:
        return masks, 0.0, []
    gap = max(0.0, 1 - found.lower / found.cost)
    return masks, gap, [f"too many down-sets: beam of {BEAM} and an integer search cut short"]


def _beam(graph: Graph, cost: Mapping[int, float], guide: Mapping[int, float]) -> list[int]:
    """A plan found by beam, or one kernel an op where that is cheaper."""
    apart = [1 << i for i in range(len(graph.ops))]
    masks = beam_partition(graph, guide)
    assert masks is not None, "single ops are candidates"
    return min(masks, apart, key=lambda groups: sum(cost[mask] for mask in groups))
