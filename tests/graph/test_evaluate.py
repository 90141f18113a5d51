"""The meaning of graphs, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import built

from fuseledger.errors import InvalidGraph
from fuseledger.graph.axis import Index
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.op import COMBINES
from fuseledger.graph.operand import Operand
from fuseledger.graph.scalar import Coord, Read, call

X = np.array([[3.0, -1.0, 2.0], [0.0, 5.0, -4.0]])

EXPECTED = {
    "sum": ([4, 1],),
    "prod": ([-6, 0],),
    "max": ([3, 5],),
    "min": ([-1, -4],),
    "any": ([1, 1],),
    "all": ([1, 0],),
    "argmax": ([0, 1],),
    "argmin": ([1, 2],),
    "max_index": ([3, 5], [0, 1]),
    "min_index": ([-1, -4], [1, 2]),
    "max_sumexp": (
        [3, 5],
        [1 + np.exp(-4) + np.exp(-1), np.exp(-5) + 1 + np.exp(-9)],
    ),
    "moments": ([4 / 3, 1 / 3], [14 - 16 / 3, 41 - 1 / 3]),  # Σx² − (Σx)²/3
}


@pytest.mark.parametrize("combine", COMBINES)
def test_combines(combine: str):
    """Every combine of the table gives the results that it names, along one axis."""
    b = GraphBuilder("combine")
    results = b.reduce("r", [b.input("x", (2, 3), "fp32")], [1], combine)
    for number, view in enumerate(results):
        b.output(view, f"y{number}")
    found = evaluate(b.finish(), {"x": X})
    for number, expected in enumerate(EXPECTED[combine]):
        np.testing.assert_allclose(found[f"y{number}"], expected, atol=1e-12)
    assert len(results) == len(COMBINES[combine].results)


def test_a_sum_multiplies_what_no_factor_has():
    """Σ over i, j of x_i counts every x_i once for each j."""
    b = GraphBuilder("repeat")
    x = b.input("x", (3,), "fp32")
    (total,) = b.loop(
        "sum", {"i": 3, "j": 4}, [Operand(x, ("i",))], [], Read(0), dtypes=["fp32"], combine="sum"
    )
    b.output(total, "y")
    assert evaluate(b.finish(), {"x": np.array([1.0, 2.0, 3.0])})["y"] == 24.0


def test_a_scan_keeps_its_axis():
    """A cumulative sum walks an axis in order and keeps it."""
    b = GraphBuilder("scan")
    x = b.input("x", (2, 3), "fp32")
    (running,) = b.loop(
        "cumsum",
        {"i": 2, "j": 3},
        [Operand(x, ("i", "j"))],
        ["i", "j"],
        Read(0),
        dtypes=["fp32"],
        combine="sum",
        scans=["j"],
    )
    b.output(running, "y")
    np.testing.assert_array_equal(evaluate(b.finish(), {"x": X})["y"], X.cumsum(1))


def test_loop_indices_have_values():
    """A body may use the index of its point: a triangle of ones."""
    b = GraphBuilder("iota")
    body = call("le", Coord("j"), Coord("i"))
    (triangle,) = b.loop("tri", {"i": 3, "j": 3}, [], ["i", "j"], body, dtypes=["fp32"])
    b.output(triangle, "y")
    np.testing.assert_array_equal(evaluate(b.finish(), {})["y"], np.tri(3))


def test_coordinates_outside_read_the_fill():
    """A shifted read finds the fill where the tensor ends."""
    b = GraphBuilder("shift")
    x = b.input("x", (3,), "fp32")
    place = Index((("i", 1),), 1)
    (shifted,) = b.loop(
        "shift", {"i": 3}, [Operand(x, (place,), 9.0)], ["i"], Read(0), dtypes=["fp32"]
    )
    b.output(shifted, "y")
    found = evaluate(b.finish(), {"x": np.array([1.0, 2.0, 3.0])})["y"]
    np.testing.assert_array_equal(found, [2, 3, 9])


def test_a_window_over_one_element():
    """A window over a dimension of size 1 meets its element once and the fill elsewhere."""
    b = GraphBuilder("one")
    x = b.input("x", (1,), "fp32")
    place = Index((("i", 1),), -1)
    (shifted,) = b.loop(
        "shift", {"i": 3}, [Operand(x, (place,), 0.0)], ["i"], Read(0), dtypes=["fp32"]
    )
    b.output(shifted, "y")
    np.testing.assert_array_equal(evaluate(b.finish(), {"x": np.array([7.0])})["y"], [0, 7, 0])


def test_barriers_need_a_meaning():
    """A graph with a barrier evaluates where its meaning is given, and is refused where not."""
    b = GraphBuilder("barrier")
    (result,) = b.opaque("sort", [b.input("x", (2, 3), "fp32")], [((2, 3), "fp32")])
    b.output(b.map("neg", [result]), "y")
    graph = b.finish()
    with pytest.raises(InvalidGraph, match="sort: no meaning is given for the barrier sort"):
        evaluate(graph, {"x": X})
    found = evaluate(graph, {"x": X}, opaque={"sort": lambda _, arrays: [np.sort(arrays[0])]})
    np.testing.assert_array_equal(found["y"], -np.sort(X))


def test_keep_returns_every_tensor():
    """With `keep` intermediates are returned under their names, in logical shapes."""
    graph = built(lambda b, x: b.map("neg", [b.map("exp", [b.reshape(x, [3, 2])])]), (2, 3))
    found = evaluate(graph, {"x0": X}, keep=True)
    assert found["exp"].shape == (3, 2)
    np.testing.assert_array_equal(found["out"], -found["exp"])


def test_empty_tensors():
    """A sum over nothing is 0, and a pointwise op on nothing gives nothing."""
    graph = built(lambda b, x: b.reduce("sum", [x], [1], "sum")[0], (2, 0))
    np.testing.assert_array_equal(evaluate(graph, {"x0": np.zeros((2, 0))})["out"], [0, 0])
    graph = built(lambda b, x: b.map("relu", [x]), (2, 0))
    assert evaluate(graph, {"x0": np.zeros((2, 0))})["out"].shape == (2, 0)
