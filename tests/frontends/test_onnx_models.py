"""Whole ONNX models against ONNX's reference evaluator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_reference import evaluated, worst_difference

from fuseledger.errors import SourceError
from fuseledger.frontends.onnx import from_model, load
from fuseledger.graph.validate import validate

pytestmark = pytest.mark.torch

MLP = (
    """mlp (float[4,16] x) => (float[4,8] y) {
      h = Gemm <transB=1> (x, w1, b1)
      a = Relu (h)
      y = Gemm <transB=1, alpha=0.5, beta=2.0> (a, w2, b2)
    }""",
    {"w1": (32, 16), "b1": (32,), "w2": (8, 32), "b2": (8,)},
    5,
)
LENET = (
    """lenet (float[2,1,28,28] x) => (float[2,10] y) {
      c1 = Conv <pads=[2,2,2,2]> (x, k1, b1)
      r1 = Relu (c1)
      p1 = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r1)
      c2 = Conv (p1, k2, b2)
      r2 = Relu (c2)
      p2 = AveragePool <kernel_shape=[2,2], strides=[2,2]> (r2)
      f = Flatten (p2)
      d1 = MatMul (f, w1)
      t = Tanh (d1)
      d2 = MatMul (t, w2)
      y = Softmax (d2)
    }""",
    {
        "k1": (6, 1, 5, 5),
        "b1": (6,),
        "k2": (16, 6, 5, 5),
        "b2": (16,),
        "w1": (400, 32),
        "w2": (32, 10),
    },
    13,
)
RESNET_BLOCK = (
    """resnet (float[2,8,9,9] x) => (float[2,16,5,5] y) {
      c1 = Conv <pads=[1,1,1,1], strides=[2,2]> (x, k1)
      n1 = BatchNormalization (c1, s1, h1, m1, v1)
      r1 = Relu (n1)
      c2 = Conv <auto_pad="SAME_UPPER"> (r1, k2)
      n2 = BatchNormalization (c2, s2, h2, m2, v2)
      skip = Conv <strides=[2,2]> (x, k3)
      sum = Add (n2, skip)
      y = Relu (sum)
    }""",
    {
        "k1": (16, 8, 3, 3), "k2": (16, 16, 3, 3), "k3": (16, 8, 1, 1),
        **{f"{n}{i}": (16,) for n in "shmv" for i in (1, 2)},
    },
    8,
)  # fmt: skip
BERT_LAYER = (
    """bert (float[b,s,32] x, float[b,1,1,s] mask) => (float[b,s,32] y) {
      shape = Shape (x)
      zero = Constant <value_ints=[0]> ()
      one = Constant <value_ints=[1]> ()
      batch = Gather <axis=0> (shape, zero)
      length = Gather <axis=0> (shape, one)
      heads = Constant <value_ints=[4]> ()
      width = Constant <value_ints=[8]> ()
      hidden = Constant <value_ints=[-1]> ()
      split = Concat <axis=0> (batch, length, heads, width)
      joined = Concat <axis=0> (batch, length, hidden)
      q0 = MatMul (x, wq)
      q1 = Add (q0, bq)
      q2 = Reshape (q1, split)
      q = Transpose <perm=[0,2,1,3]> (q2)
      k0 = MatMul (x, wk)
      k2 = Reshape (k0, split)
      k = Transpose <perm=[0,2,3,1]> (k2)
      v0 = MatMul (x, wv)
      v2 = Reshape (v0, split)
      v = Transpose <perm=[0,2,1,3]> (v2)
      scores = MatMul (q, k)
      root = Constant <value_float=2.8284271> ()
      scaled = Div (scores, root)
      masked = Add (scaled, mask)
      p = Softmax <axis=-1> (masked)
      o = MatMul (p, v)
      o1 = Transpose <perm=[0,2,1,3]> (o)
      o2 = Reshape (o1, joined)
      o3 = MatMul (o2, wo)
      r1 = Add (x, o3)
      n1 = LayerNormalization <axis=-1> (r1, g1, h1)
      f1 = MatMul (n1, w1)
      f2 = Gelu (f1)
      f3 = MatMul (f2, w2)
      r2 = Add (n1, f3)
      y = LayerNormalization <axis=-1, epsilon=0.0001> (r2, g2, h2)
    }""",
    {
        **{f"w{n}": (32, 32) for n in "qkvo"}, "bq": (32,), "w1": (32, 64), "w2": (64, 32),
        **{f"{n}{i}": (32,) for n in "gh" for i in (1, 2)},
    },
    20,
)  # fmt: skip
QDQ_CONV = (
    """qdq (float[1,4,8,8] x) => (float[1,8,4,4] y) {
      sx = Constant <value_float=0.02> ()
      zx = Constant <value = uint8 {128}> ()
      qx = QuantizeLinear (x, sx, zx)
      dx = DequantizeLinear (qx, sx, zx)
      dw = DequantizeLinear <axis=0> (kq, sw)
      c = Conv <pads=[1,1,1,1], strides=[2,2]> (dx, dw, b)
      r = Relu (c)
      sy = Constant <value_float=0.05> ()
      zy = Constant <value = uint8 {0}> ()
      qy = QuantizeLinear (r, sy, zy)
      y = DequantizeLinear (qy, sy, zy)
    }""",
    {"kq": (8, 4, 3, 3), "sw": (8,), "b": (8,)},
    8,
)
DECODER_BLOCK = (
    """decoder (float[1,6,32] x) => (float[1,6,32] y) {
      n1 = RMSNormalization (x, g1)
      q = MatMul (n1, wq)
      k = MatMul (n1, wk)
      v = MatMul (n1, wv)
      qr = RotaryEmbedding <num_heads=4> (q, cos, sin)
      kr = RotaryEmbedding <num_heads=2> (k, cos, sin)
      a = Attention <is_causal=1, q_num_heads=4, kv_num_heads=2> (qr, kr, v)
      o = MatMul (a, wo)
      r1 = Add (x, o)
      n2 = RMSNormalization (r1, g2)
      gate = MatMul (n2, wg)
      up = MatMul (n2, wu)
      silu = Swish (gate)
      act = Mul (silu, up)
      down = MatMul (act, wd)
      y = Add (r1, down)
    }""",
    {
        "wq": (32, 32), "wk": (32, 16), "wv": (32, 16), "wo": (32, 32), "wg": (32, 48),
        "wu": (32, 48), "wd": (48, 32), "g1": (32,), "g2": (32,), "cos": (1, 6, 4),
        "sin": (1, 6, 4),
    },
    22,
)  # fmt: skip
UNET_BIT = (
    """unet (float[1,4,8,8] x) => (float[1,4,8,8] y) {
      c1 = Conv <pads=[1,1,1,1]> (x, k1)
      g1 = GroupNormalization <num_groups=2> (c1, s1, h1)
      a1 = Swish (g1)
      down = MaxPool <kernel_shape=[2,2], strides=[2,2]> (a1)
      c2 = Conv <pads=[1,1,1,1]> (down, k2)
      a2 = LeakyRelu <alpha=0.2> (c2)
      up = ConvTranspose <strides=[2,2]> (a2, k3)
      scales = Constant <value_floats=[1.0,1.0,2.0,2.0]> ()
      near = Resize <coordinate_transformation_mode="asymmetric", nearest_mode="floor"> (
        a2, , scales
      )
      cat = Concat <axis=1> (a1, up, near)
      y = Conv (cat, k4, b4)
    }""",
    {
        "k1": (8, 4, 3, 3), "s1": (8,), "h1": (8,), "k2": (8, 8, 3, 3), "k3": (8, 8, 2, 2),
        "k4": (4, 24, 1, 1), "b4": (4,),
    },
    11,
)  # fmt: skip
MOBILENET_BLOCK = (
    """mobile (float[1,8,10,10] x) => (float[1,8,10,10] y) {
      e = Conv (x, k1, b1)
      low = Constant <value_float=0.0> ()
      high = Constant <value_float=6.0> ()
      e6 = Clip (e, low, high)
      d = Conv <group=24, pads=[1,1,1,1]> (e6, k2, b2)
      d6 = HardSwish (d)
      p = Conv (d6, k3, b3)
      y = Add (x, p)
    }""",
    {
        "k1": (24, 8, 1, 1),
        "b1": (24,),
        "k2": (24, 1, 3, 3),
        "b2": (24,),
        "k3": (8, 24, 1, 1),
        "b3": (8,),
    },
    9,
)
SQUEEZE_EXCITE = (
    """se (float[2,16,6,6] x) => (float[2,16,6,6] y) {
      s = GlobalAveragePool (x)
      f = Flatten (s)
      d = Gemm (f, w1, b1)
      r = Relu (d)
      u = Gemm (r, w2, b2)
      h = HardSigmoid (u)
      axes = Constant <value_ints=[2,3]> ()
      w = Unsqueeze (h, axes)
      y = Mul (x, w)
    }""",
    {"w1": (16, 4), "b1": (4,), "w2": (4, 16), "b2": (16,)},
    8,
)

MODELS: dict[str, tuple[str, dict[str, tuple[int, ...]], int]] = {
    "mlp": MLP, "lenet": LENET, "resnet": RESNET_BLOCK, "bert": BERT_LAYER, "qdq": QDQ_CONV,
    "decoder": DECODER_BLOCK, "unet": UNET_BIT, "mobile": MOBILENET_BLOCK, "se": SQUEEZE_EXCITE,
}  # fmt: skip
"""Name → (text of the graph, shapes of its weights, ops that it is lowered to)."""
DIMS = {"bert": {"b": 2, "s": 5}}


def built(name: str) -> tuple[Any, dict[str, Any]]:
    """A model with random weights, and random inputs for it."""
    import onnx

    text, shapes, _ = MODELS[name]
    model = onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["" : 24]> {text}')
    random = np.random.default_rng(0)
    for weight, shape in shapes.items():
        array = random.standard_normal(shape).astype(np.float32) * 0.3
        if weight.startswith(("v1", "v2", "sw")):
            array = np.abs(array) + 0.05  # variances and scales
        if weight == "kq":
            array = random.integers(-128, 128, shape).astype(np.int8)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, weight))
    inputs: dict[str, Any] = {}
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        shape = [d.dim_value or DIMS[name][d.dim_param] for d in dims]
        inputs[info.name] = random.standard_normal(shape).astype(np.float32)
    return model, inputs


@pytest.mark.parametrize("name", MODELS)
def test_model_agrees_with_the_reference(name: str) -> None:
    """The lowered model has the ops counted by hand, no barrier, and the reference's result."""
    from onnx.reference import ReferenceEvaluator

    model, inputs = built(name)
    graph, found = evaluated(model, inputs, dims=DIMS.get(name))
    assert not graph.barriers
    assert worst_difference(found, ReferenceEvaluator(model).run(None, inputs)) == 0
    assert len(graph.ops) == MODELS[name][2], [op.title for op in graph.ops]


def _light(name: str) -> Path:
    import onnx

    return Path(onnx.__file__).parent / "backend/test/data/light" / f"light_{name}"


LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
    "squeezenet", "vgg19", "zfnet512",
)  # fmt: skip


@pytest.mark.parametrize("name", LIGHT)
def test_light_model_loads_without_barriers(name: str) -> None:
    """Weights made by ConstantOfShape are weights, not ops, and are not allocated."""
    graph = validate(load(_light(f"{name}.onnx")))
    assert not graph.barriers
    assert all(op.function != "onnx.ConstantOfShape" for op in graph.ops)
    assert any(tensor.role == "weight" for tensor in graph.tensors.values())


def test_light_vgg19_reads_143_667_240_parameters() -> None:
    """VGG-19 has 143,667,240 parameters (Simonyan and Zisserman, table 2: 144 million)."""
    graph = load(_light("vgg19.onnx"))
    weights = [t for n, t in graph.tensors.items() if t.role == "weight" and n in graph.consumers]
    assert sum(t.elements for t in weights) == 143_667_240


def test_light_squeezenet_gives_the_recorded_output() -> None:
    """SqueezeNet evaluated in NumPy gives the output that the onnx package records for it."""
    import onnx

    model = onnx.load(_light("squeezenet.onnx"))
    (info,) = [
        i for i in model.graph.input if i.name not in {t.name for t in model.graph.initializer}
    ]
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    count = int(np.prod(shape))
    given = (np.arange(count).reshape(shape) / count).astype(np.float32)
    _, found = evaluated(model, {info.name: given})
    recorded = onnx.load_tensor(_light("squeezenet_output_0.pb"))
    assert worst_difference(found, [onnx.numpy_helper.to_array(recorded)]) == 0


NEWEST = 28
"""The newest opset of onnx 1.23; of a later onnx, whatever it has."""


SINCE = {"bvlc_alexnet": range(10, 100), "squeezenet": range(10, 100), "resnet50": (13, 14, 15)}
"""Model → opsets that it is converted to: of the larger one, those that changed its operators."""


@pytest.mark.parametrize("name", SINCE)
def test_a_light_model_is_the_same_in_every_opset(name: str) -> None:
    """Converted from opset 9 to later ones up to the newest, a model keeps its ops and floor."""
    import onnx

    model = onnx.load(_light(f"{name}.onnx"))
    assert model.opset_import[0].version == 9
    newest = onnx.defs.onnx_opset_version()
    assert newest >= NEWEST
    first = from_model(model)
    for version in (*(v for v in SINCE[name] if v < newest), newest):
        graph = from_model(onnx.version_converter.convert_version(model, version))
        assert [op.title for op in graph.ops] == [op.title for op in first.ops], version
        assert graph.floor_bytes == first.floor_bytes, version


OLDEST = {"mlp": 14, "resnet": 15, "bert": 20, "qdq": 14, "mobile": 14, "se": 14}
"""Model → the oldest opset that onnx can convert it to from 24: before, an operator is missing."""


@pytest.mark.parametrize("name", OLDEST)
def test_an_older_opset_gives_the_same_values(name: str) -> None:
    """In each opset the model has the ops and the results that it has in 24."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model, inputs = built(name)
    expected = ReferenceEvaluator(model).run(None, inputs)
    for version in range(OLDEST[name], 24):
        older = onnx.version_converter.convert_version(model, version)
        graph, found = evaluated(older, inputs, dims=DIMS.get(name))
        assert len(graph.ops) == MODELS[name][2], version
        assert worst_difference(found, expected) == 0, version


BACKEND = {
    "pytorch-converted": (82, {}),
    "pytorch-operator": (35, {}),
    "simple": (7, {"barrier": 7, "refused": 9}),
}
"""Folder of the onnx package → models that agree, and those that are not lowered: sequences,
strings and gradients."""


@pytest.mark.parametrize("folder", BACKEND)
def test_exported_models_give_the_outputs_that_onnx_records(folder: str) -> None:
    """Every model of the backend's data is lowered and agrees, or has a reason not to."""
    import onnx

    found: Counter[str] = Counter()
    data = Path(onnx.__file__).parent / "backend/test/data" / folder
    for path in sorted(data.glob("*/model.onnx")):
        found[_recorded(onnx.load(path), path.parent / "test_data_set_0")] += 1
    agree, others = BACKEND[folder]
    assert found == {"agrees": agree, **others}


def _recorded(model: Any, folder: Path) -> str:
    """How the graph's outputs compare with the recorded ones."""
    import onnx

    def arrays(kind: str) -> list[Any]:
        paths = [folder / f"{kind}_{i}.pb" for i in range(len(list(folder.glob(f"{kind}_*.pb"))))]
        return [onnx.numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]

    stored = {tensor.name for tensor in model.graph.initializer}
    names = [info.name for info in model.graph.input if info.name not in stored]
    try:
        graph, found = evaluated(model, dict(zip(names, arrays("input"), strict=False)))
    except SourceError:
        return "refused"
    if graph.barriers:
        return "barrier"
    worst = worst_difference(found, arrays("output"))
    return "agrees" if worst == 0 else f"{folder.parent.name} differs by {worst}"


def test_the_sweep_has_ten_whole_models() -> None:
    """Nine architectures and SqueezeNet are compared whole; those of torch are counted there."""
    assert len(MODELS) + 1 == 10


def test_a_model_is_left_as_it_is() -> None:
    """`from_model` neither sets dimensions nor strips weights in the caller's model."""
    model, _ = built("bert")
    before = model.SerializeToString()
    from_model(model, dims=DIMS["bert"])
    assert model.SerializeToString() == before
