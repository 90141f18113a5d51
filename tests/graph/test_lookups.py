"""Lookups of what the same kernel makes: computed where it is looked up, or selected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from fuseledger.frontends.source import load
from fuseledger.graph.axis import Index
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.graph import Graph
from fuseledger.graph.lookups import BODY_LONGEST, followed
from fuseledger.graph.operand import Operand
from fuseledger.graph.scalar import Read, call
from fuseledger.graph.validate import validate
from fuseledger.graph.view import View
from fuseledger.graph.window import take, take_along

SOURCES = (
    "gather(log_softmax(x[6,9] fp32), ids[6,2])",
    "gather(softmax(x[6,5] fp32 @ w[5,9] fp32), ids[6,2])",
    "gather(x[6,5] fp32 @ w[5,9] fp32, ids[6,1])",
    "take(relu(x[9,4] fp32) * y[4] fp32, ids[5])",
    "take(exp(x[9,4] fp32) + y[9,1] fp32, ids[5])",
    "take(take(exp(x[9,4] fp32), ids[9]) * 2, jds[5])",
    "take(sum(x[9,4] fp32, -1), ids[5])",
    "take(take(sum(x[9,4] fp32, -1), ids[6]), jds[5])",
    "take(relu(take(sum(x[9,4] fp32, -1), ids[6])), jds[5])",
    "take(cumsum(x[9,4] fp32, 0), ids[5])",
    "take(concat(exp(x[9,4] fp32), y[3,4] fp32, axis=0), ids[5])",
)


def _running(graph: Graph) -> Graph:
    """The graph of the ops as they run in one kernel."""
    graph, ops, _ = followed(graph, dict(enumerate(graph.ops)))
    return replace(graph, ops=tuple(ops.values()))


def _agrees(graph: Graph, inputs: dict[str, np.ndarray]) -> None:
    found, expected = evaluate(_running(graph), inputs), evaluate(graph, inputs)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-12)


def _inputs(graph: Graph, *, low: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        t.name: rng.integers(low, 4, t.shape) if t.dtype == "int64" else rng.normal(size=t.shape)
        for t in graph.tensors.values()
        if t.is_external
    }


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("low", [0, -4])
def test_what_runs_computes_the_same(source: str, low: int):
    """Ops that follow lookups give what the graph gives, places from the end included, and look
    nothing up that the kernel makes."""
    graph = load(source)
    running = validate(_running(graph))
    assert running.ops != graph.ops
    made = {write.tensor for op in running.ops for write in op.writes}
    assert not any(a.is_lookup and a.tensor in made for op in running.ops for a in op.reads)
    _agrees(graph, _inputs(graph, low=low))


def test_a_loss_reads_one_element_of_a_row():
    """log_softmax(x)[m, t[m]] reads x there and the row's statistic; no op makes the rest."""
    graph = load("gather(log_softmax(x[6,9] fp32), ids[6,1])")
    _, ops, again = followed(graph, dict(enumerate(graph.ops)))
    statistic, gather = ops.values()
    assert statistic.combine == "max_sumexp"
    read = next(read for read in gather.reads if read.tensor == "x")
    assert [index.lookup for index in read.index] == [None, 0]
    assert gather.reads[0].tensor == "ids"
    assert again == 0.0  # 6 points instead of 54


def test_what_others_read_runs_too():
    """Where the whole tensor leaves the kernel it is made, and looked-up points are computed again:
    5 rows of 4 points of one exponential (1 FLOP and 1 special operation)."""
    b = GraphBuilder("shared")
    x, ids = b.input("x", (9, 4), "fp32"), b.input("ids", (5,), "int64")
    e = b.map("exp", [x])
    b.output(e, "e")
    b.output(take(b, e, ids, 0), "rows")
    graph = validate(b.finish())
    _, ops, again = followed(graph, dict(enumerate(graph.ops)))
    assert list(ops) == [0, 1]
    assert again == 5 * 4 * 2
    _agrees(graph, _inputs(graph))


def test_a_selection_reduces_the_axis_that_is_looked_up():
    """(x·w)[m, t[m]] = Σn [n = t[m]] (x·w)[m, n]."""
    graph = load("gather(x[6,5] fp32 @ w[5,9] fp32, ids[6,1])")
    gemm, selection, gather = followed(graph, dict(enumerate(graph.ops)))[1].values()
    assert selection.combine == "sum"
    assert selection.reduces == set(gemm.kept) - set(selection.kept)
    assert {read.tensor for read in selection.reads} == {"ids", gemm.writes[0].tensor}
    assert gather.reads[1].tensor == selection.writes[0].tensor


def test_a_loss_of_a_product_selects_beside_the_statistic():
    """Of a linear layer's logits the label's is picked as it comes by: no op reads a logit after
    the statistic."""
    graph = load("gather(log_softmax(x[6,5] fp32 @ w[5,9] fp32), ids[6,1])")
    gemm, statistic, selection, gather = followed(graph, dict(enumerate(graph.ops)))[1].values()
    logits = gemm.writes[0].tensor
    assert all(logits in {read.tensor for read in op.reads} for op in (statistic, selection))
    assert logits not in {read.tensor for read in gather.reads}


def _outside(table: Callable[[GraphBuilder, View], View]) -> Graph:
    """A read of `table` at positions of which some lie outside, where it is 7."""
    b = GraphBuilder("outside")
    x, ids = b.input("x", (4, 3), "fp32"), b.input("ids", (4,), "int64")
    reads = [Operand(ids, ("m",)), Operand(table(b, x), ("m", Index(lookup=0)), 7.0)]
    (found,) = b.loop("picked", {"m": 4}, reads, ("m",), call("neg", Read(1)), dtypes=["fp32"])
    b.output(found, "out")
    return validate(b.finish())


@pytest.mark.parametrize(
    "table",
    [
        lambda b, x: b.map("exp", [x]),
        lambda b, x: b.contract("gemm", "mk,nk->mn", [x, b.input("w", (5, 3), "fp32")]),
    ],
)
def test_what_lies_outside_is_the_fill(table: Callable[[GraphBuilder, View], View]):
    """Both ways keep a read's fill: −7 where the position is −100 or 5, also under a function that
    is not 0 at 0."""
    graph = _outside(table)
    inputs = _inputs(graph) | {"ids": np.array([-100, 5, 1, -1])}
    _agrees(graph, inputs)
    assert list(evaluate(_running(graph), inputs)["out"][:2]) == [-7.0, -7.0]


def test_a_long_body_is_not_followed():
    """Ops that read their operand twice double the body: one beyond the limit stays an op, and its
    result is selected."""
    b = GraphBuilder("long")
    x, ids = b.input("x", (9, 4), "fp32"), b.input("ids", (5,), "int64")
    for _ in range(BODY_LONGEST.bit_length()):
        x = b.map("square", [x], body=call("mul", Read(0), Read(0)))
    b.output(take(b, x, ids, 0), "out")
    graph = validate(b.finish())
    assert _running(graph).ops[-2].function == "gather.select"
    _agrees(graph, _inputs(graph))


def test_a_reduction_over_looked_up_sums():
    """The maximum over j of s[t[m, j]], s made by a reduction, reads what is selected of s."""
    b = GraphBuilder("max")
    x, ids = b.input("x", (9, 4), "fp32"), b.input("ids", (6, 2), "int64")
    (sums,) = b.reduce("sum", [x], [1], "sum")
    reads = [Operand(ids, ("m", "j")), Operand(sums, (Index(lookup=0),))]
    letters = {"m": 6, "j": 2}
    (top,) = b.loop("max", letters, reads, ("m",), Read(1), dtypes=["fp32"], combine="max")
    b.output(top, "out")
    graph = validate(b.finish())
    assert [op.combine for op in _running(graph).ops] == ["sum", "sum", "max"]
    _agrees(graph, _inputs(graph))


def test_places_along_the_axis_itself_stay():
    """s[t[n]] of row sums s[n], read where n goes on: a selection would reduce n and keep it."""
    b = GraphBuilder("permuted")
    x, ids = b.input("x", (9, 4), "fp32"), b.input("ids", (9,), "int64")
    (sums,) = b.reduce("sum", [x], [1], "sum")
    b.output(b.map("add", [take(b, sums, ids, 0), sums]), "out")
    graph = validate(b.finish())
    ops = dict(enumerate(graph.ops))
    assert followed(graph, ops) == (graph, ops, 0.0)


def test_the_floor_follows_lookups():
    """Of relu(x), 5 of 9 rows are looked up: 5 rows of x are read, not x."""
    graph = load("take(relu(x[9,4] fp32), ids[5])")
    assert graph.floor_bytes == 5 * 4 * 4 + 5 * 8 + 5 * 4 * 4


def test_two_lookups_of_one_op():
    """An op that looks up two tensors of the kernel follows one and selects of the other."""
    b = GraphBuilder("two")
    x, w = b.input("x", (6, 5), "fp32"), b.input("w", (5, 9), "fp32")
    ids = b.input("ids", (6, 2), "int64")
    scores = b.contract("gemm", "mk,kn->mn", [x, w])
    b.output(
        b.map("add", [take_along(b, scores, ids, 1), take_along(b, b.map("exp", [x]), ids, 1)]),
        "out",
    )
    graph = validate(b.finish())
    _agrees(graph, _inputs(graph))
