"""ONNX Runtime's own operators, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_reference import evaluated, worst_difference

pytestmark = pytest.mark.torch

X = "float[2,4,8] x"
CASES: dict[str, tuple[str, str, str]] = {
    "FastGelu": (X, "float[2,4,8] y", "y = com.microsoft.FastGelu (x, v)"),
    "BiasGelu": (X, "float[2,4,8] y", "y = com.microsoft.BiasGelu (x, v)"),
    "Gelu": (X, "float[2,4,8] y", "y = com.microsoft.Gelu (x)"),
    "QuickGelu": (X, "float[2,4,8] y", "y = com.microsoft.QuickGelu <alpha=1.5> (x)"),
    "FusedMatMul": (
        X,
        "float[2,4,8] y",
        "y = com.microsoft.FusedMatMul <transB=1, alpha=0.5> (x, w)",
    ),
    "SkipLayerNormalization": (
        f"{X}, float[2,4,8] s",
        "float[2,4,8] y, float[2,4,8] t",
        "y, , , t = com.microsoft.SkipLayerNormalization (x, s, v, v2, v3)",
    ),
    "SkipSimplifiedLayerNormalization": (
        f"{X}, float[2,4,8] s",
        "float[2,4,8] y, float[2,4,8] t",
        "y, , , t = com.microsoft.SkipSimplifiedLayerNormalization (x, s, v)",
    ),
    "MultiHeadAttention": (
        f"{X}, float[2,6,8] k, float[2,6,8] u, float[2,2,4,6] m",
        "float[2,4,8] y",
        "y = com.microsoft.MultiHeadAttention <num_heads=2> (x, k, u, b, , m)",
    ),
    "GroupQueryAttention": (
        "float[2,4,32] x, float[2,4,16] k, float[2,4,16] u",
        "float[2,4,32] y",
        "y, p, q = com.microsoft.GroupQueryAttention <num_heads=4, kv_num_heads=2>"
        " (x, k, u, , , lengths, total)",
    ),
    "RotaryEmbedding": (
        "float[2,2,4,8] x",
        "float[2,2,4,8] y",
        "y = com.microsoft.RotaryEmbedding (x, places, cos, sin)",
    ),
    "RotaryEmbedding interleaved": (
        "float[2,2,4,8] x",
        "float[2,2,4,8] y",
        "y = com.microsoft.RotaryEmbedding <interleaved=1> (x, places, cos, sin)",
    ),
    "QLinearAdd": (
        X,
        "uint8[2,4,8] y",
        "q = QuantizeLinear (x, half, mid)"
        " y = com.microsoft.QLinearAdd (q, half, mid, q, half, mid, one, mid)",
    ),
}
"""Operator → (inputs, outputs, nodes)."""


def _weights() -> dict[str, Any]:
    random = np.random.default_rng(1)
    shapes = {
        "v": (8,),
        "v2": (8,),
        "v3": (8,),
        "b": (24,),
        "w": (8, 8),
        "cos": (9, 4),
        "sin": (9, 4),
    }
    return {
        **{n: random.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()},
        "places": np.array([[0, 1, 2, 3], [4, 5, 6, 7]]),
        "lengths": np.array([3, 3], np.int32),
        "total": np.array(4, np.int32),
        "half": np.float32(0.03),
        "one": np.float32(0.05),
        "mid": np.uint8(120),
    }


@pytest.mark.parametrize("name", CASES)
def test_contrib_operator_agrees_with_onnx_runtime(name: str) -> None:
    """The lowered operator gives ONNX Runtime's result."""
    import onnx

    runtime = pytest.importorskip("onnxruntime")
    inputs, outputs, nodes = CASES[name]
    imports = '["" : 21, "com.microsoft" : 1]'
    text = f"<ir_version: 10, opset_import: {imports}> g ({inputs}) => ({outputs})"
    model = onnx.parser.parse_model(f"{text} {{ {nodes} }}")
    used = {n for node in model.graph.node for n in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), n)
        for n, array in _weights().items()
        if n in used
    )
    random = np.random.default_rng(0)
    feeds = {
        i.name: random.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for i in model.graph.input
    }
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    graph, found = evaluated(model, feeds)
    assert not graph.barriers
    assert worst_difference(found, session.run(None, feeds)) == 0


def test_a_cached_attention_is_a_barrier_of_known_shape() -> None:
    """With a cache GroupQueryAttention is a barrier; its declared shape carries the plan on."""
    import onnx

    from fuseledger.frontends.onnx import from_model

    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
      g (float[1,1,8] x, float[1,1,4] k, float[1,1,4] u, float[1,2,9,2] pk, float[1,2,9,2] pv,
         int32[1] n, int32 t) => (float[1,1,8] y) <float[1,1,8] a> {
        a, p, q = com.microsoft.GroupQueryAttention <num_heads=4, kv_num_heads=2> (
          x, k, u, pk, pv, n, t
        )
        y = Relu (a)
      }"""
    graph = from_model(onnx.parser.parse_model(text))
    assert graph.barriers == {"com.microsoft.GroupQueryAttention": 1}
    assert graph.ops[-1].function == "relu"
