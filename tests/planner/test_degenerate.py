"""Graphs with tensors of no element or one, and graphs of views alone: planned like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuseledger.devices import load
from fuseledger.graph import compose, window
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.graph import Graph
from fuseledger.graph.validate import validate
from fuseledger.planner.plan import Planned, make_plan
from fuseledger.report.build import plan_document
from fuseledger.report.document import PlanDocument, to_json
from fuseledger.report.layout import Page
from fuseledger.report.summary import summarise
from fuseledger.report.text import plan_text
from fuseledger.verdict.edges import edge_verdicts

Build = Callable[..., Any]

EMPTY: dict[str, tuple[Build, list[tuple[int, ...]], tuple[int, ...]]] = {
    "pointwise": (lambda b, x: b.map("relu", [x]), [(0, 4)], (0, 4)),
    "no rows": (lambda b, x, w: b.map("relu", [compose.matmul(b, x, w)]), [(0, 4), (4, 8)], (0, 8)),
    "nothing summed": (
        lambda b, x, w: b.map("relu", [compose.matmul(b, x, w)]), [(3, 0), (0, 8)], (3, 8)
    ),
    "softmax of nothing": (
        lambda b, x: b.map("add", [compose.softmax(b, x, -1), x]), [(3, 0)], (3, 0)
    ),
    "softmax of no rows": (
        lambda b, x: b.map("add", [compose.softmax(b, x, -1), x]), [(0, 5)], (0, 5)
    ),
    "no queries": (compose.attention, [(1, 2, 0, 8), (1, 2, 4, 8), (1, 2, 4, 8)], (1, 2, 0, 8)),
    "no batch": (
        lambda b, x, w: window.convolution(b, x, w, [window.Window(kernel=3)] * 2),
        [(0, 3, 8, 8), (4, 3, 3, 3)],
        (0, 4, 6, 6),
    ),
}  # fmt: skip
"""What is empty → (graph, shapes of its inputs, shape of its result)."""


def _graph(build: Build, shapes: list[tuple[int, ...]]) -> Graph:
    b = GraphBuilder("test")
    b.output(build(b, *(b.input(f"x{i}", shape, "fp32") for i, shape in enumerate(shapes))), "out")
    return validate(b.finish())


def _reported(planned: Planned) -> tuple[PlanDocument, str]:
    """The plan's document, checked by its schema, and its text."""
    verdicts = edge_verdicts(planned)
    document = plan_document(planned, source="test", load_seconds=0.0, verdicts=verdicts)
    assert '"schema": "fuseledger/plan@1"' in to_json(document)
    return document, plan_text(summarise(document), Page(width=100, colour=False))


@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors_are_evaluated_and_planned(name: str) -> None:
    """An axis of no element gives a result of its shape, and a kernel that moves what is left."""
    build, shapes, result = EMPTY[name]
    graph = _graph(build, shapes)
    arrays = {f"x{i}": np.ones(shape) for i, shape in enumerate(shapes)}
    assert evaluate(graph, arrays)["out"].shape == result
    planned = make_plan(graph, load("h100-sxm"))
    assert len(planned.kernels) == 1
    left = sum(t.bytes for t in graph.tensors.values() if t.is_external or t.role == "output")
    assert planned.totals.bytes == left == graph.floor_bytes
    assert "1 kernel" in _reported(planned)[1]


def test_a_sum_over_nothing_is_zero() -> None:
    """A product over an axis of no element is 0 everywhere, as NumPy has it."""
    build, shapes, _ = EMPTY["nothing summed"]
    found = evaluate(_graph(build, shapes), {"x0": np.ones((3, 0)), "x1": np.ones((0, 8))})
    np.testing.assert_array_equal(found["out"], np.zeros((3, 8)))


def test_scalar_tensors_are_planned() -> None:
    """Two ops on two numbers are one kernel of one block, which moves 3 · 4 B."""
    graph = _graph(lambda b, x, y: b.map("relu", [b.map("mul", [x, y])]), [(), ()])
    planned = make_plan(graph, load("h100-sxm"))
    assert (len(planned.kernels), planned.totals.bytes) == (1, 12)
    assert planned.kernels[0].price.blocks == 1
    assert evaluate(graph, {"x0": np.array(2.0), "x1": np.array(3.0)})["out"] == 6.0


def test_a_graph_of_views_has_no_kernel() -> None:
    """A transpose is a view: no op, no kernel, nothing saved, and a report that says so."""
    graph = _graph(lambda b, x: x.transpose([1, 0]), [(3, 4)])
    assert not graph.ops
    document, text = _reported(make_plan(graph, load("h100-sxm")))
    assert (document.plan.kernels, document.saved.saved_by_account) == ([], {})
    assert text.splitlines()[0].startswith("no kernel: nothing is computed")
