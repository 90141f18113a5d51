"""Merging kernels against the quotient graph."""

from __future__ import annotations

import random

import networkx as nx
import pytest
from graphs import digraph, random_graph

from fuseledger.planner.running_order import RunningOrder


@pytest.mark.parametrize("seed", range(40))
def test_kernels_merge_exactly_where_none_waits_for_itself(seed: int) -> None:
    """Any two kernels become one where networkx finds no cycle among the kernels that result."""
    ops = digraph(random_graph(seed, 30))
    order = RunningOrder(random_graph(seed, 30))
    home = {i: i for i in ops}
    draw = random.Random(seed)
    for _ in range(60):
        one, other = draw.sample(sorted(ops), 2)
        if home[one] == home[other]:
            continue
        merged = {i: home[one] if kernel == home[other] else kernel for i, kernel in home.items()}
        kernels = nx.DiGraph((merged[a], merged[b]) for a, b in ops.edges if merged[a] != merged[b])
        possible = nx.is_directed_acyclic_graph(kernels)
        assert order.merge(one, other) == possible
        home = merged if possible else home
