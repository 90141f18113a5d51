"""The LP bound and the MILP behind a beam."""

from __future__ import annotations

import random

import pytest
from graphs import random_graph, runnable

from fuseledger.devices import load
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import check_legal
from fuseledger.planner.bits import bits
from fuseledger.planner.bound import improve, in_order
from fuseledger.planner.partition import enumerate_candidates, partition
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


def test_bound_and_milp_agree_with_the_exact_partition() -> None:
    """On random DAGs of 12 to 20 ops the MILP, started from nothing, finds the exact cost."""
    for seed in range(40):
        graph = random_graph(seed, 12 + seed % 9)
        draw = random.Random(seed)
        candidates = enumerate_candidates(graph, lambda g, d=draw: 1 + d.random() * len(g) ** 0.7)
        exact = partition(graph, candidates)
        assert exact.gap == 0.0
        bound = improve(graph, candidates.cost, exact.cost * 2)
        assert bound.closed
        assert bound.groups is not None
        assert bound.cost == pytest.approx(exact.cost)
        assert bound.lower <= bound.cost + 1e-9
        check_legal(graph, bound.groups)


def test_a_beam_is_within_its_printed_gap() -> None:
    """A beam with few states, on a wide graph: the exact cost lies between bound and plan."""
    graph = wide_graph(5)
    device = load("h100-sxm")
    exact = make_plan(graph, device)
    assert exact.partition.gap == 0.0
    beam = make_plan(graph, device, PlanOptions(max_states=40))
    assert beam.partition.gap is not None
    least = beam.partition.cost * (1 - beam.partition.gap)
    assert least <= exact.partition.cost + 1e-6 <= beam.partition.cost + 2e-6


def test_groups_on_a_cycle_are_named() -> None:
    """{a, c} and {b} of the chain a → b → c wait for each other."""
    graphs = (random_graph(seed, 3) for seed in range(200))
    graph = next(graph for graph in graphs if graph.predecessors == ((), (0,), (1,)))
    order, cycle = in_order(graph, [0b101, 0b010])
    assert order is None
    assert sorted(cycle) == [0, 1]
    assert not runnable(graph, [tuple(bits(m)) for m in (0b101, 0b010)])
