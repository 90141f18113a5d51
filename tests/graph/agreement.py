"""Building a graph from tensors' shapes, and comparing what it means with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.graph import Graph
from fuseledger.graph.validate import validate


def built(build: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "fp32") -> Graph:
    """The valid graph of `build(builder, *inputs)`; the inputs are called x0, x1, …"""
    b = GraphBuilder("test")
    b.output(build(b, *(b.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes))), "out")
    return validate(b.finish())


def agree(build: Callable[..., Any], reference: Callable[..., Any], *tensors: Any) -> Graph:
    """Assert that the graph gives what PyTorch gives in float64 to 1e-9; returns the graph."""
    graph = built(build, *(tuple(t.shape) for t in tensors))
    found = evaluate(graph, {f"x{i}": t.numpy() for i, t in enumerate(tensors)})["out"]
    expected = reference(*tensors).numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    return graph
