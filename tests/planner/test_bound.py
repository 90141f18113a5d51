"""The LP bound and the MILP behind a beam."""

from __future__ import annotations

import math
import random

import pytest
from graphs import random_graph, runnable

from fuseledger.devices import load
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import check_legal
from fuseledger.planner.bits import bits
from fuseledger.planner.bound import improve, in_order, relax
from fuseledger.planner.candidates import enumerate_candidates
from fuseledger.planner.partition import Effort, beam_partition, best_partition
from fuseledger.planner.plan import PlanOptions, make_plan

pytest.importorskip("highspy")


def wide_graph(branches: int) -> Graph:
    """Branches of three pointwise ops on one input, added up at the end: many down-sets."""
    b = GraphBuilder(f"wide{branches}")
    x = b.input("x", (1024, 1024), "fp16")
    total = x
    for i in range(branches):
        y = b.map("relu", [b.map("tanh", [b.map("exp", [x])])], name=f"branch{i}")
        total = b.map("add", [total, y])
    b.output(total, "y")
    return b.finish()


def random_candidates(seed: int) -> tuple[Graph, dict[int, float]]:
    """A random DAG of 12 to 20 ops, and candidates of random cost."""
    graph = random_graph(seed, 12 + seed % 9)
    draw = random.Random(seed)
    found = enumerate_candidates(graph, lambda g, _: 1 + draw.random() * len(g) ** 0.7)
    return graph, found.cost


def test_every_way_to_the_optimum_agrees() -> None:
    """On random DAGs of 12 to 20 ops: over down-sets, on reduced costs, and by MILP.

    The relaxation lies below, and reduced costs add up to what a plan costs above it.
    """
    for seed in range(12):
        graph, cost = random_candidates(seed)
        masks, proved = best_partition(graph, cost, Effort())
        assert masks is not None
        assert proved
        exact = sum(cost[mask] for mask in masks)
        relaxed = relax(graph, cost)
        assert relaxed.lower <= exact + 1e-9
        assert relaxed.lower + sum(relaxed.reduced[m] for m in masks) == pytest.approx(exact)
        if relaxed.groups is not None:
            assert sum(cost[m] for m in relaxed.groups) == pytest.approx(exact)
        above = exact - relaxed.lower + 1e-9
        kept = {m: r for m, r in relaxed.reduced.items() if r <= above}
        again, proved = best_partition(graph, kept, Effort(), above=above)
        assert again is not None
        assert proved
        assert sum(cost[m] for m in again) == pytest.approx(exact)
        near = {m: cost[m] for m, r in relaxed.reduced.items() if r <= above * 1.1}
        none = improve(graph, near, exact * 0.99, relaxed.lower, deadline=math.inf)
        assert none.groups is None
        found = improve(graph, near, exact * 1.1, relaxed.lower, deadline=math.inf)
        assert found.closed
        assert found.groups is not None
        assert found.cost == pytest.approx(exact)
        check_legal(graph, [tuple(bits(mask)) for mask in found.groups])


def test_nothing_is_found_below_the_optimum() -> None:
    """Down-sets dearer than the limit are left out, and that is a proof; little effort is none."""
    for seed in range(10):
        graph, cost = random_candidates(seed)
        masks, _ = best_partition(graph, cost, Effort())
        assert masks is not None
        exact = sum(cost[mask] for mask in masks)
        assert best_partition(graph, cost, Effort(), above=exact * 0.999) == (None, True)
        assert best_partition(graph, cost, Effort(tried=5)) == (None, False)


def test_a_beam_is_a_plan_no_cheaper_than_the_optimum() -> None:
    """A beam of one down-set a size, guided by reduced costs, is a runnable partition."""
    for seed in range(12):
        graph, cost = random_candidates(seed)
        masks, _ = best_partition(graph, cost, Effort())
        assert masks is not None
        beam = beam_partition(graph, relax(graph, cost).reduced, width=1)
        assert beam is not None
        check_legal(graph, [tuple(bits(mask)) for mask in beam])
        assert sum(cost[m] for m in beam) >= sum(cost[m] for m in masks) - 1e-9


def test_a_plan_cut_short_is_within_its_printed_gap() -> None:
    """With hardly any effort, on a wide graph: the exact cost lies between bound and plan."""
    graph = wide_graph(5)
    device = load("h100-sxm")
    exact = make_plan(graph, device)
    assert exact.partition.gap == 0.0
    short = make_plan(graph, device, PlanOptions(effort=Effort(states=1)))
    assert short.partition.gap is not None
    least = short.partition.cost * (1 - short.partition.gap)
    assert least <= exact.partition.cost + 1e-6 <= short.partition.cost + 2e-6


def test_no_time_still_makes_a_plan() -> None:
    """A time limit of nothing: a runnable plan, no dearer than one kernel an op, and why."""
    graph = wide_graph(5)
    planned = make_plan(graph, load("h100-sxm"), PlanOptions(time_limit_s=0.0))
    check_legal(graph, planned.partition.groups)
    assert planned.totals.time_us <= planned.baseline.time_us * (1 + 1e-9)
    assert not planned.partition.optimal
    assert "time limit" in planned.status


def test_groups_on_a_cycle_are_named() -> None:
    """{a, c} and {b} of the chain a → b → c wait for each other."""
    graphs = (random_graph(seed, 3) for seed in range(200))
    graph = next(graph for graph in graphs if graph.predecessors == ((), (0,), (1,)))
    order, cycle = in_order(graph, [0b101, 0b010])
    assert order is None
    assert sorted(cycle) == [0, 1]
    assert not runnable(graph, [tuple(bits(m)) for m in (0b101, 0b010)])
