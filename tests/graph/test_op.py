"""What an op computes at each point, and at how many."""

from __future__ import annotations

from fuseledger.graph import compose
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph


def special_ops(graph: Graph) -> dict[str, int]:
    """Function → operations of the special-function unit."""
    return {op.function: op.special_ops for op in graph.ops}


def test_what_varies_by_row_is_computed_once_a_row() -> None:
    """The norm of 64 rows takes 64 reciprocal roots, and not one an element."""
    b = GraphBuilder("test")
    x = b.input("x", (64, 1024), "fp32")
    b.output(compose.rms_norm(b, x, 1, None, 1e-5), "out")
    assert special_ops(b.finish()) == {"rms_norm.statistic": 0, "rms_norm.apply": 64}


def test_a_softmax_takes_an_exponential_a_point_and_a_division() -> None:
    """Its statistic takes one exponential a point; alone, its second half takes another, and
    divides."""
    b = GraphBuilder("test")
    b.output(compose.softmax(b, b.input("x", (64, 1024), "fp32"), -1), "out")
    assert special_ops(b.finish()) == {
        "softmax.statistic": 64 * 1024, "softmax.apply": 2 * 64 * 1024,
    }  # fmt: skip
