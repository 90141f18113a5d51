"""The chain planner against the ordinary ledger and against every cut."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseledger.devices import load, replace_figures
from fuseledger.errors import CutError
from fuseledger.graph.builder import GraphBuilder
from fuseledger.planner.chain import Chain, best_cut, cut_chain
from fuseledger.planner.plan import PlanOptions, cut_groups, make_plan, new_search, plan_of_groups
from fuseledger.textbook.chain import Stage, chain_graph

DEVICE = load("textbook")
STAGE = st.tuples(
    st.integers(1, 10**7), st.one_of(st.just(0), st.integers(1, 10**7)), st.floats(0, 1e10),
    st.integers(0, 200),
)  # fmt: skip


def stages_of(rows):
    """Stages with names of their own."""
    return [Stage(f"s{i}", *row) for i, row in enumerate(rows)]


def all_cuts(count):
    """All 2ⁿ⁻¹ cuts of a chain."""
    for joins in product((False, True), repeat=count - 1):
        lengths = [1]
        for joined in joins:
            if joined:
                lengths[-1] += 1
            else:
                lengths.append(1)
        yield lengths


@settings(max_examples=40, deadline=None)
@given(
    st.lists(STAGE, min_size=1, max_size=10), st.floats(1, 5), st.sampled_from(["time", "bytes"])
)
def test_no_cut_is_better(rows, penalty, objective):
    """The ledger prices the chosen cut as the planner does, and no other cut lower."""
    graph = chain_graph(stages_of(rows), spill_penalty=penalty)
    options = PlanOptions(objective=objective)
    found = make_plan(graph, DEVICE, options)
    search = new_search(graph, DEVICE, options)

    def cost(cut):
        choices = [search.choose(group) for group in cut_groups(graph, cut)]
        if objective == "bytes":
            return sum(choice.bytes + 1e-6 * choice.time_us for choice in choices)
        return sum(choice.time_us for choice in choices)

    chosen = [len(kernel.ops) for kernel in found.plan.kernels]
    assert found.partition.cost == pytest.approx(cost(chosen), rel=1e-12)
    assert cost(chosen) <= min(map(cost, all_cuts(len(rows)))) * (1 + 1e-12)


@settings(max_examples=10, deadline=None)
@given(st.lists(STAGE, min_size=1, max_size=30), st.integers(20, 600))
def test_every_kernel_has_the_ledgers_figures(rows, limit):
    """Bytes and time of the vector of kernels that end at each stage are the ledger's."""
    device = replace_figures(DEVICE, registers_per_thread_max=limit)
    graph = chain_graph(stages_of(rows))
    chain = Chain.of(graph)
    search = new_search(graph, device, PlanOptions())
    for last in {0, len(rows) // 2, len(rows) - 1}:
        moved, time_us = chain.kernels_ending_at(last, device)
        choices = [search.choose(tuple(range(start, last + 1))) for start in range(last + 1)]
        assert moved.tolist() == [choice.bytes for choice in choices]
        np.testing.assert_allclose(time_us, [choice.time_us for choice in choices], rtol=1e-12)


def test_two_thousand_stages():
    """A long chain is cut exactly: its cost is that of the plan's own ledger."""
    rng = np.random.default_rng(0)
    rows = zip(
        rng.integers(1, 10**7, 2000).tolist(), rng.integers(0, 10**7, 2000).tolist(),
        (rng.random(2000) * 1e8).tolist(), rng.integers(0, 120, 2000).tolist(), strict=True,
    )  # fmt: skip
    graph = chain_graph(stages_of(rows))
    cut, cost = cut_chain(Chain.of(graph), DEVICE)
    assert sum(cut) == 2000
    assert len(cut) > 100
    assert plan_of_groups(graph, DEVICE, cut_groups(graph, cut)).totals.time_us == pytest.approx(
        cost
    )


def test_best_cut_of_a_chain_that_spills():
    """Two stages of 200 and 100 registers stay apart; with a penalty of 1 they are fused."""
    rows = [(1 << 26, 1 << 26, 0.0, 200), (1 << 26, 0, 0.0, 100)]
    assert best_cut(chain_graph(stages_of(rows)), DEVICE) == [1, 1]
    assert best_cut(chain_graph(stages_of(rows), spill_penalty=1.0), DEVICE) == [2]


def test_only_chains_of_declared_ops_are_cut():
    """A graph with loop nests is left to the general planner, and `best_cut` says so."""
    builder = GraphBuilder("two maps")
    x = builder.input("x", (8,), "fp32")
    builder.output(builder.map("exp", [builder.map("relu", [x])]), "y")
    graph = builder.finish()
    assert Chain.of(graph) is None
    with pytest.raises(CutError, match="two maps is no chain"):
        best_cut(graph, DEVICE)
