"""Our graphs as JAX functions: the same numbers, by the calls that a JAX user would write."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest

from fuseledger.errors import SourceError
from fuseledger.frontends.source import load
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.graph import Graph
from fuseledger.peers.xla_lower import inputs, jax_function

pytestmark = pytest.mark.torch
jax: Any = pytest.importorskip("jax")

CASES = {
    "gemm(8,12,16) + bias + gelu + residual": "dot_general",
    "x[4,6,8] @ w[4,8,10] | softmax": "dot_general reduce",
    "x[4,6] @ v[6]": "dot_general",
    "sum(x[4,6]*y[4,6], axis=1)": "reduce",
    "conv(x[2,4,9,11], w[6,4,3,3], stride=2, padding=1) | relu": "convolution",
    "conv(x[2,4,9,11], w[4,2,3,5], stride=[2,1], padding=[1,2], dilation=[1,2], groups=2)":
        "convolution",
    "conv(x[2,6,9,9], w[6,1,3,3], padding=1, groups=6)": "convolution",
    "conv1d(x[2,4,16], w[8,4,3])": "convolution",
    "conv3d(x[2,4,6,6,6], w[8,4,3,3,3], padding=1) | avg_pool(2)": "convolution reduce_window",
    "conv_transpose(x[2,4,5,6], w[4,3,3,3], stride=2, padding=1, output_padding=1)": "convolution",
    "conv_transpose(x[2,4,5,6], w[4,3,3,3], stride=2, dilation=2, groups=2)": "convolution",
    "conv_transpose(x[2,4,5], w[4,3,1], stride=3)": "convolution",
    "conv_transpose(x[2,4,5,6], w[4,3,3,3], stride=2, padding=1, output_padding=1) | max_pool(2)":
        "convolution reduce_window",
    "max_pool(x[2,3,9,9], 3, stride=2, padding=1, dilation=2)": "reduce_window",
    "max_pool(x[2,3,9,9], 2)": "reduce_window",
    "avg_pool(x[2,3,9,9], 3, stride=2, padding=1, count_padding=false)": "reduce_window",
    "conv_transpose(x[2,4,5,6], w[4,6,3,3], stride=2) | group_norm(3)": "convolution reduce",
    "attention(q[1,4,8,16], k[1,2,8,16], v[1,2,8,16], causal=true)": "dot_general reduce",
    "x[4,8] | layer_norm | rms_norm": "reduce",
    "batch_norm(x[3,4,5,5], training=true)": "reduce",
    "x[8,16] | cumsum(axis=1)": "",
    "x[8,16] | cumprod(axis=0)": "",
    "embedding(ids[2,3], table[10,4])": "gather reduce",  # jnp.take checks its bounds
    "argmax(x[3,4,5])": "reduce",
    "argmax(x[3,4,5], axis=1)": "reduce",
    "logsumexp(x[3,4,5], axis=1)": "reduce",
    "var(x[3,4,5], axis=[0,2])": "reduce",
    "reshape(transpose(x[6,4]), [3,8]) | relu": "",
    "concat(x[2,3], y[2,5], axis=1) | exp": "",
}  # fmt: skip
"""Expression → the StableHLO operations of those below that it must become, and no others."""
TOLD_APART = ("dot_general", "convolution", "reduce_window", "reduce", "gather")


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)


def _given(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        name: (rng.integers(0, 3, shape) if "int" in dtype else rng.standard_normal(shape)).astype(
            dtype
        )
        for name, (shape, dtype) in inputs(graph).items()
    }


@pytest.mark.parametrize("source", CASES)
def test_the_function_means_what_the_graph_means(source: str) -> None:
    """The outputs are those of the graph's own evaluation; statistics are stored in fp32."""
    graph = load(source, dtype="fp64")
    given = _given(graph)
    results = jax.jit(jax_function(graph))(given)
    expected = evaluate(graph, given, keep=True)
    made = [name for name in graph.outputs if name in graph.producer]
    for name, result in zip(made, results, strict=True):
        stored = expected[name].reshape(result.shape)
        np.testing.assert_allclose(np.asarray(result, dtype=float), stored, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("source", [source for source in CASES if "cum" not in source])
def test_the_calls_are_those_of_a_jax_user(source: str) -> None:
    """What an op becomes follows from its axes: a product, a convolution, a window, a reduction.

    How a scan is lowered is JAX's own choice.
    """
    graph = load(source, dtype="fp32")
    lowered = jax.jit(jax_function(graph)).lower(_given(graph)).as_text()
    found = {name for name in TOLD_APART if re.search(rf"stablehlo\.{name}\b", lowered)}
    assert found == set(CASES[source].split())


def test_dtypes_are_kept() -> None:
    """A product of halves is a half; a statistic of halves is taken in fp32."""
    graph = load("gemm(8,12,16) | softmax", dtype="fp16")
    lowered = jax.jit(jax_function(graph)).lower(_given(graph)).as_text()
    assert re.search(r"dot_general.*-> tensor<8x12xf16>", lowered)
    assert re.search(r"stablehlo.reduce.*tensor<8x12xf32>", lowered)


def test_an_op_without_a_jax_form_is_named() -> None:
    """An opaque op is a barrier here too: the error names it."""
    builder = importlib.import_module("fuseledger.graph.builder").GraphBuilder("g")
    x = builder.input("x", (4, 4), "fp32")
    (y,) = builder.opaque("aten.sort", [x], [((4, 4), "fp32")])
    builder.output(y, "y")
    graph = builder.finish()
    with pytest.raises(SourceError, match=r"aten\.sort"):
        jax.eval_shape(jax_function(graph), _given(graph))
