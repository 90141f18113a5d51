"""The partition against brute force."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from graphs import convex_sets, partitions, random_graph, runnable
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseledger.devices import load, replace_figures
from fuseledger.errors import IllegalPlan
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import check_legal
from fuseledger.planner.candidates import Cost, Limits, enumerate_candidates
from fuseledger.planner.partition import Effort
from fuseledger.planner.plan import PlanOptions, candidate_cost, make_plan, new_search
from fuseledger.planner.solve import solve

REGIMES = {
    "launch-bound": lambda d, size: 5.0 + d.random() * 0.1 * size,
    "bandwidth-bound": lambda d, size: 1.0 + d.random() * 10 * size**0.5,
    "compute-bound": lambda d, size: d.random() * size,
    "capacity-tight": lambda d, size: None if size > 1 and d.random() < 0.6 else d.random() * 10,
    "superlinear": lambda d, size: 1.0 + d.random() * size**1.5,
}
"""Cost of a group as a function of a random source and the group's size."""


def as_priced(cost: dict[tuple[int, ...], float]) -> Cost:
    """The same as the planner asks for it."""
    return lambda group, _: cost.get(group)


def brute_force(graph: Graph, cost: dict[tuple[int, ...], float]) -> float:
    """The least cost over all runnable partitions into groups that have a cost."""
    best = float("inf")
    for groups in partitions(len(graph.ops), list(cost)):
        total = sum(cost[group] for group in groups)
        if total < best and runnable(graph, groups):
            best = total
    return best


@pytest.mark.parametrize("regime", REGIMES)
def test_partition_is_the_brute_force_optimum(regime: str) -> None:
    """On 200 random DAGs a regime (1,000 in all) the planner's cost is the least there is."""
    for seed in range(200):
        graph = random_graph(seed, 4 + seed % 6)
        draw = random.Random(f"{regime}{seed}")
        cost: dict[tuple[int, ...], float] = {}
        for group in convex_sets(graph):
            price = REGIMES[regime](draw, len(group))
            if price is not None:
                cost[group] = price
        candidates = enumerate_candidates(graph, as_priced(cost), Limits(max_ops=9))
        found = solve(graph, candidates, effort=Effort())
        check_legal(graph, found.groups)
        assert found.optimal
        assert found.cost == pytest.approx(sum(cost[g] for g in found.groups))
        assert found.cost == pytest.approx(brute_force(graph, cost)), (regime, seed)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    ops=st.integers(2, 7),
    rows=st.sampled_from([64, 4096]),
    objective=st.sampled_from(["time", "bytes"]),
    shared=st.sampled_from([16 * 1024, 232_448]),
)
def test_ledger_priced_plans_are_the_brute_force_optimum(
    seed: int, ops: int, rows: int, objective: str, shared: int
) -> None:
    """With the real ledger's prices too, on small and large tensors, tight and ample capacity."""
    graph = random_graph(seed, ops, rows=rows)
    device = replace_figures(load("h100-sxm"), shared_memory_per_block_bytes=shared)
    options = PlanOptions(objective=objective)  # pyright: ignore[reportArgumentType]
    planned = make_plan(graph, device, options)
    search = new_search(graph, device, options)
    cost = {
        group: price
        for group in convex_sets(graph)
        if (price := candidate_cost(search, group)) is not None
    }
    assert planned.partition.cost == pytest.approx(brute_force(graph, cost), rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), ops=st.integers(1, 40))
def test_plans_are_legal_and_never_dearer_than_one_kernel_an_op(seed: int, ops: int) -> None:
    """A plan is a runnable partition, and no slower than the unfused baseline by the same clock."""
    graph = random_graph(seed, ops)
    planned = make_plan(graph, load("h100-sxm"))
    check_legal(graph, planned.partition.groups)
    assert planned.totals.time_us <= planned.baseline.time_us * (1 + 1e-9)


def test_a_partition_that_waits_for_itself_is_illegal() -> None:
    """a → b → c with {a, c} in one kernel cannot run in any order."""
    graph = random_graph(1, 3)
    chain = next(random_graph(s, 3) for s in range(100) if _is_chain(random_graph(s, 3)))
    for order in ([(0, 2), (1,)], [(1,), (0, 2)]):
        with pytest.raises(IllegalPlan):
            check_legal(chain, order)
    with pytest.raises(IllegalPlan):
        check_legal(graph, [(0,), (1,)])


def _is_chain(graph: Graph) -> bool:
    return graph.predecessors == ((), (0,), (1,))


EXPRESSION = "softmax(x[64,512] @ w[512,512] + bias) @ v[512,64] + gelu"
PRINTED = """
import sys
from fuseledger.devices import load as device
from fuseledger.frontends.source import load
from fuseledger.planner.plan import make_plan
plan = make_plan(load(sys.argv[1]), device("h100-sxm"))
print([k.kernel for k in plan.kernels], plan.totals)
"""


def _printed(source: str, seed: str) -> str:
    """Kernels and totals of a plan made by a process with a hash seed."""
    return subprocess.run(
        [sys.executable, "-c", PRINTED, source], env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def test_plans_do_not_depend_on_the_hash_seed() -> None:
    """Processes with different hash seeds print the same partition."""
    assert len({_printed(EXPRESSION, seed) for seed in ("0", "1", "2")}) == 1


def test_splits_of_equally_long_axes_do_not_depend_on_the_hash_seed() -> None:
    """Of two reduced axes of 600, the nest's first is split."""
    found = {_printed("sum(x[8,600,600], axis=[1,2])", seed) for seed in ("0", "1", "5")}
    assert len(found) == 1
    assert "split" in found.pop()
