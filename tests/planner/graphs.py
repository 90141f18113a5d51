"""Random small graphs, and the partitions of a graph by brute force."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, pairwise

import networkx as nx

from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.graph.view import View


def random_graph(seed: int, ops: int, *, rows: int = 256, columns: int = 512) -> Graph:
    """A connected-ish DAG of pointwise ops, row statistics and square matrix products."""
    draw = random.Random(seed)
    b = GraphBuilder(f"random{seed}")
    values: list[View] = [b.input("x", (rows, columns), "fp16")]
    while len(b.ops) < ops:
        kind = draw.choice(["unary", "unary", "binary", "binary", "row", "gemm"])
        source = draw.choice(values[-3:])
        if kind == "unary":
            values.append(b.map(draw.choice(["relu", "tanh", "exp"]), [source]))
        elif kind == "binary":
            values.append(b.map(draw.choice(["add", "mul"]), [source, draw.choice(values)]))
        elif kind == "row":
            (total,) = b.reduce("row_sum", [source], [-1], "sum", keepdim=True)
            if len(b.ops) < ops:
                values.append(b.map("sub", [draw.choice(values), total]))
            else:
                values.append(total)
        else:
            weight = b.weight("w", (columns, columns), "fp16")
            values.append(b.contract("gemm", "mk,kn->mn", [source, weight]))
    read = {access.tensor for op in b.ops for access in op.reads}
    for number, value in enumerate(values):
        if value.base not in read:
            b.output(value, f"y{number}")
    return b.finish()


def digraph(graph: Graph) -> nx.DiGraph:
    """The graph's ops and their dependencies."""
    found = nx.DiGraph()
    found.add_nodes_from(range(len(graph.ops)))
    found.add_edges_from((j, i) for i, before in enumerate(graph.predecessors) for j in before)
    return found


def sharing(graph: Graph) -> nx.Graph:
    """Ops joined where one reads the other, or both read one activation next to each other."""
    found = nx.Graph(digraph(graph).to_undirected())
    for name, readers in graph.consumers.items():
        if graph.tensors[name].role != "weight" and len(readers) <= 16:
            found.add_edges_from(pairwise(readers))
    return found


def convex_sets(graph: Graph) -> list[tuple[int, ...]]:
    """Every convex set of ops that shares tensors, by trying all subsets."""
    dag, near = digraph(graph), sharing(graph)
    below = {i: nx.descendants(dag, i) for i in dag}
    above = {i: nx.ancestors(dag, i) for i in dag}
    found: list[tuple[int, ...]] = []
    for size in range(1, len(dag) + 1):
        for group in combinations(range(len(dag)), size):
            inside = set(group)
            between = set().union(*(below[i] for i in group)) & set().union(
                *(above[i] for i in group)
            )
            if between <= inside and nx.is_connected(near.subgraph(group)):
                found.append(group)
    return found


def partitions(count: int, groups: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Every way to cover ops 0 … count−1 with disjoint groups."""
    by_first: dict[int, list[tuple[int, ...]]] = {}
    for group in groups:
        by_first.setdefault(group[0], []).append(group)

    def cover(done: frozenset[int]) -> Iterator[list[tuple[int, ...]]]:
        first = next((i for i in range(count) if i not in done), None)
        if first is None:
            yield []
            return
        for group in by_first.get(first, ()):
            if done.isdisjoint(group):
                for rest in cover(done | set(group)):
                    yield [group, *rest]

    yield from cover(frozenset())


def runnable(graph: Graph, groups: list[tuple[int, ...]]) -> bool:
    """Whether the kernels of a partition can be put in an order."""
    home = {op: k for k, group in enumerate(groups) for op in group}
    quotient = nx.DiGraph()
    quotient.add_nodes_from(range(len(groups)))
    for i, before in enumerate(graph.predecessors):
        quotient.add_edges_from((home[j], home[i]) for j in before if home[j] != home[i])
    return nx.is_directed_acyclic_graph(quotient)
