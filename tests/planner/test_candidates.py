"""Candidate kernels: units, windows that repeat, and epilogues of any length."""

from __future__ import annotations

import pytest
from graphs import random_graph

from fuseledger.devices import load
from fuseledger.frontends.source import load as load_source
from fuseledger.graph import compose
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.graph.structure import signature
from fuseledger.ledger.kernel import check_legal
from fuseledger.planner import candidates
from fuseledger.planner.bits import bits
from fuseledger.planner.bound import in_order
from fuseledger.planner.candidates import Limits, enumerate_candidates, neighbours, units
from fuseledger.planner.merging import merge_pairs
from fuseledger.planner.plan import PlanOptions, candidate_cost, make_plan, new_search


def epilogue(length: int) -> Graph:
    """A matrix product and a chain of pointwise ops behind it."""
    b = GraphBuilder(f"epilogue{length}")
    x = b.input("x", (1024, 1024), "fp16")
    y = compose.matmul(b, x, b.weight("w", (1024, 1024), "fp16"))
    for i in range(length):
        y = b.map("relu" if i % 2 else "tanh", [y])
    b.output(y, "y")
    return b.finish()


def test_an_epilogue_of_any_length_is_one_kernel() -> None:
    """A product and 25 pointwise ops: one launch, and A, B and C once each."""
    for objective in ("time", "bytes"):
        planned = make_plan(epilogue(25), load("h100-sxm"), PlanOptions(objective=objective))
        assert planned.totals.launches == 1
        assert planned.totals.bytes == 3 * 1024 * 1024 * 2
        assert planned.partition.optimal


@pytest.mark.parametrize("device", ["h100-sxm", "mi300x"])
@pytest.mark.parametrize("kind", ["chain", "swish", "gelu"])
def test_a_run_of_200_pointwise_ops_is_one_kernel(kind: str, device: str) -> None:
    """However an activation is spelled out, and however often: x is read and y written, once."""
    b = GraphBuilder(kind)
    x = y = b.input("x", (4096, 4096), "fp16")
    while len(b.ops) < 200:
        if kind == "chain":
            y = b.map(("tanh", "relu", "exp", "abs", "neg")[len(b.ops) % 5], [y])
        elif kind == "swish":
            y = b.map("mul", [b.map("sigmoid", [y]), y])
        else:  # y·½ · (1 + erf(y·x)), with x in place of the constant
            inner = b.map("erf", [b.map("mul", [y, x])])
            y = b.map("mul", [b.map("neg", [y]), b.map("add", [inner, x])])
    b.output(y, "y")
    planned = make_plan(b.finish(), load(device), PlanOptions(objective="bytes"))
    assert planned.totals.launches == 1
    assert planned.totals.bytes == 2 * 4096 * 4096 * 2
    assert make_plan(planned.graph, load(device)).totals.launches == 1


def test_repeated_runs_longer_than_a_window_are_one_kernel_each() -> None:
    """Three products, each with an epilogue of 60 ops: the later ones are the first one, moved."""
    b = GraphBuilder("runs")
    y = b.input("x", (4096, 4096), "fp16")
    for _ in range(3):
        y = compose.matmul(b, y, b.weight("w", (4096, 4096), "fp16"))
        for i in range(60):
            y = b.map(("tanh", "relu", "abs")[i % 3], [y])
    b.output(y, "y")
    planned = make_plan(b.finish(), load("h100-sxm"), PlanOptions(objective="bytes"))
    assert [len(kernel.kernel.ops) for kernel in planned.kernels] == [61, 61, 61]


def test_no_unit_and_no_kernel_has_more_than_256_ops() -> None:
    """600 ops in a row are 256, 256 and 88, and no kernel has more than 256."""
    graph = epilogue(599)
    assert [mask.bit_count() for mask in units(graph)] == [256, 256, 88]
    found = enumerate_candidates(graph, lambda group, _: len(group) ** 0.5)
    assert max(mask.bit_count() for mask in found.cost) == 256


def test_a_unit_ends_where_something_joins_leaves_or_grows() -> None:
    """relu and tanh continue the product, and so does the sum of what follows from them alone;
    what a second output, a result from elsewhere and a wider type do not."""
    b = GraphBuilder("units")
    x = b.input("x", (64, 64), "fp16")
    product = compose.matmul(b, x, b.weight("w", (64, 64), "fp16"))
    a = b.map("tanh", [b.map("relu", [product])])
    c = b.map("add", [b.map("exp", [a]), b.map("relu", [a])])
    b.output(c, "c")
    d = b.map("abs", [c])
    e = b.map("add", [d, compose.matmul(b, d, b.weight("w", (64, 64), "fp16"))])
    b.output(b.map("exp", [b.map("neg", [e])], dtype="fp32"), "y")
    graph = b.finish()
    names = [[graph.ops[i].function for i in bits(mask)] for mask in units(graph)]
    assert names == [
        ["gemm", "relu", "tanh", "exp", "relu", "add"], ["abs"], ["gemm"], ["add", "neg"], ["exp"],
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_within_a_unit_moves_no_fewer_bytes_than_one_behind_it(seed: int) -> None:
    """Any first part of a unit hands on at least as much as all of it, on random graphs."""
    graph = random_graph(seed, 30)
    for unit in map(list, map(bits, units(graph))):
        result = graph.tensors[graph.ops[unit[-1]].writes[0].tensor].bytes
        for chosen in range(1 << min(len(unit) - 2, 12) if len(unit) > 1 else 0):
            first = {unit[0]} | {i for n, i in enumerate(unit[1:-1]) if chosen >> n & 1}
            if any(j in unit and j not in first for i in first for j in graph.predecessors[i]):
                continue
            handed = {
                read.tensor
                for i in unit if i not in first
                for read in graph.ops[i].reads
                if graph.producer.get(read.tensor) in first
            }  # fmt: skip
            assert sum(graph.tensors[name].bytes for name in handed) >= result


def test_growth_by_units_finds_what_growth_by_ops_finds() -> None:
    """Where no epilogue is longer than a kernel may be, every interval of a chain is there once."""
    graph = epilogue(6)
    by_size = enumerate_candidates(graph, lambda group, _: len(group) ** 0.5)
    everything = {sum(1 << i for i in range(a, b)) for a in range(7) for b in range(a + 1, 8)}
    assert set(by_size.cost) == everything


def test_sets_no_cheaper_than_their_parts_are_no_candidates() -> None:
    """Where any three ops cost what they do apart, pairs and single ops are all a plan needs."""
    graph = epilogue(6)

    def cost(group: tuple[int, ...], apart: float) -> float:
        return len(group) ** 0.5 if len(group) < 3 else apart

    found = enumerate_candidates(graph, cost).cost
    pairs = [1 << i | 1 << i + 1 for i in range(6)]
    assert set(found) == {*(1 << i for i in range(7)), *pairs}


def test_what_is_not_searched_to_the_end_would_not_have_paid() -> None:
    """Of ZFNet, whose one-row layers a search finds late: every set that is not searched to the end
    costs, searched in full, at least what its parts do."""
    pytest.importorskip("onnx", reason="needs the extra onnx")
    graph, device, options = load_source("onnx:zfnet512"), load("h100-sxm"), PlanOptions()
    search, full = (new_search(graph, device, options) for _ in range(2))
    left: dict[tuple[int, ...], float] = {}

    def cost(group: tuple[int, ...], limit: float) -> float | None:
        found = candidate_cost(search, group, limit)
        if found is not None and found >= limit:
            left[group] = limit / candidates.HOPELESS
        return found

    enumerate_candidates(graph, cost, distinct=lambda: search.searched)
    assert len(left) > 50
    for group, apart in left.items():
        choice = full.choose(group)
        assert not choice.usable or choice.cost >= apart


def test_equal_slices_cost_the_same_wherever_they_start() -> None:
    """Ops on steps 3 and 5 of a sequence are alike; pairs are, where they are as far apart."""
    b = GraphBuilder("slices")
    x = b.input("x", (8, 256), "fp16")
    steps = [b.slice(x, 0, i, 1) for i in range(8)]
    for i in (3, 5, 3, 5, 7):
        b.output(b.map("relu", [steps[i]]), f"y{len(b.ops)}")
    graph = b.finish()
    assert signature(graph, (0,)) == signature(graph, (1,))
    assert signature(graph, (0, 1)) == signature(graph, (3, 4))
    assert signature(graph, (0, 2)) != signature(graph, (0, 1))
    assert signature(graph, (0, 4)) != signature(graph, (0, 1))


def test_where_growth_is_cut_short_the_plan_is_no_dearer_than_merging() -> None:
    """With one structure allowed, what greedy pair merging finds is still among the candidates."""
    graph = random_graph(5, 24)
    search = new_search(graph, load("h100-sxm"), PlanOptions())
    limits = Limits(structures=1, per_step=0)
    planned = make_plan(graph, load("h100-sxm"), PlanOptions(limits=limits))
    assert not planned.partition.optimal
    masks, ever = merge_pairs(
        graph, neighbours(graph), lambda group, _: candidate_cost(search, group), max_ops=10
    )
    check_legal(graph, [tuple(bits(m)) for m in in_order(graph, masks)[0] or []])
    assert planned.partition.cost <= sum(ever[mask] for mask in masks) * (1 + 1e-9)


def test_sets_that_cost_far_more_than_their_parts_are_grown_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Past the limit, what holds two ops that do not go together was grown by one of them last."""
    graph = random_graph(5, 24)
    pair = 1 << 3 | 1 << next(iter(bits(neighbours(graph)[3])))
    asked: set[int] = set()

    def cost(group: tuple[int, ...], _: float) -> float:
        mask = sum(1 << i for i in group)
        asked.add(mask)
        return 2.0 * len(group) if pair & ~mask == 0 else 1.0

    monkeypatch.setattr(candidates, "merge_pairs", lambda *_, **__: ([], {}))
    limits = Limits(structures=1, per_step=10_000)
    assert enumerate_candidates(graph, cost, limits).cut_short
    whole = set(units(graph)) | {1 << i for i in range(len(graph.ops))}
    holding = [mask for mask in asked if pair & ~mask == 0 and mask not in whole]
    assert any(mask.bit_count() > 3 for mask in holding)
    for mask in holding:
        assert any(unit & pair and mask & ~unit in asked for unit in whole if not unit & ~mask)


def test_layers_with_causal_masks_are_alike() -> None:
    """A mask's body names the axes it compares: other names are no other structure."""
    b = GraphBuilder("masks")
    for layer in range(2):
        q, k = (b.input(f"{name}{layer}", (4, 64, 32), "fp16") for name in "qk")
        b.output(compose.attention(b, q, k, k, causal=True), f"y{layer}")
    graph = b.finish()
    half = len(graph.ops) // 2
    assert signature(graph, range(half)) == signature(graph, range(half, 2 * half))
