"""What eager PyTorch launches, op by op."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fuseledger.frontends.aten_graph import AtenGraph, AtenNode, Ref, Value
from fuseledger.frontends.aten_json import read
from fuseledger.peers.eager import eager_kernels, eager_plan, table
from fuseledger.peers.standin import standin_kernels

X = Value("x", (8, 16, 32, 32), "fp32")
X_BYTES = 8 * 16 * 32 * 32 * 4


def _graph(*nodes: AtenNode, inputs: tuple[Value, ...] = (X,)) -> AtenGraph:
    return AtenGraph(
        name="g", source="g.json", inputs=tuple((v.name, v) for v in inputs), weights=(),
        nodes=nodes, outputs=(nodes[-1].outputs[0].name,),
    )  # fmt: skip


def _node(name: str, op: str, shape: tuple[int, ...], dtype: str = "fp32", **args: Any) -> AtenNode:
    return AtenNode(name=name, op=f"aten.{op}", args=args, outputs=(Value(name, shape, dtype),))


def _conv(bias: bool, groups: int = 1) -> AtenGraph:
    weight = Value("w", (32 if groups == 1 else 16, 16 // groups, 3, 3), "fp32")
    out = (8, weight.shape[0], 30, 30)
    node = _node(
        "c", "convolution.default", out, input=Ref("x"), weight=Ref("w"),
        bias=Ref("b") if bias else None, stride=[1, 1], padding=[0, 0], dilation=[1, 1],
        transposed=False, groups=groups,
    )  # fmt: skip
    return _graph(node, inputs=(X, weight, Value("b", weight.shape[:1], "fp32")))


def test_the_bias_of_a_convolution_is_a_pass_of_its_own() -> None:
    """It reads and writes the whole result again: 8·32·30·30 elements of 4 bytes, twice."""
    conv, bias = eager_kernels(_conv(bias=True))
    assert conv.kind == "conv"
    assert conv.flops == 2 * 8 * 32 * 30 * 30 * 16 * 9
    assert bias.write_bytes == 8 * 32 * 30 * 30 * 4
    assert bias.read_bytes == bias.write_bytes + 32 * 4


def test_a_depthwise_convolution_adds_its_bias_itself() -> None:
    """PyTorch's own kernel takes the bias: one launch, on the lanes."""
    (kernel,) = eager_kernels(_conv(bias=True, groups=16))
    assert (kernel.pipe, kernel.shape["depthwise"]) == ("lanes", 1)


def test_addmm_is_one_kernel() -> None:
    """A one-dimensional bias is cuBLASLt's epilogue."""
    inputs = (Value("b", (64,), "fp32"), Value("m", (32, 16), "fp32"), Value("n", (16, 64), "fp32"))
    node = _node("y", "addmm.default", (32, 64), self=Ref("b"), mat1=Ref("m"), mat2=Ref("n"))
    (kernel,) = eager_kernels(_graph(node, inputs=inputs))
    assert kernel.flops == 2 * 32 * 64 * 16
    assert kernel.read_bytes == 4 * (64 + 32 * 16 + 16 * 64)


def test_a_recurrent_layer_launches_each_of_its_steps() -> None:
    """Two layers of ten steps: the inputs' product, then a product and the gates a step, each."""
    weights = tuple(Value(f"w{i}", (64, 16), "fp32") for i in range(4))
    inputs = (Value("s", (3, 10, 16), "fp32"), *weights)
    node = AtenNode(
        name="y", op="kb.lstm",
        args={
            "x": Ref("s"), "weights": [Ref(w.name) for w in weights], "num_layers": 2,
            "batch_first": True,
        },
        outputs=(Value("y", (3, 10, 16), "fp32"),),
    )  # fmt: skip
    (kernel,) = eager_kernels(_graph(node, inputs=inputs))
    assert kernel.launches == 2 * (1 + 2 * 10)
    assert kernel.flops == 2 * 3 * 10 * 4 * 64 * 16


def test_max_pooling_writes_int64_indices() -> None:
    """8·16·16·16 values of 4 bytes and as many indices of 8."""
    pooled = (8, 16, 16, 16)
    node = AtenNode(
        name="p", op="aten.max_pool2d_with_indices.default",
        args={"self": Ref("x"), "kernel_size": [2, 2], "stride": [2, 2]},
        outputs=(Value("p", pooled, "fp32"), Value("i", pooled, "int64")),
    )  # fmt: skip
    (kernel,) = eager_kernels(_graph(node))
    assert kernel.write_bytes == 8 * 16 * 16 * 16 * (4 + 8)


def test_logsumexp_walks_its_input_in_several_passes() -> None:
    """amax, three on the maxes, sub, exp_, sum, log_ and add_: nine launches, six over x."""
    kernels = eager_kernels(
        _graph(_node("l", "logsumexp.default", (8, 32, 32), self=Ref("x"), dim=[1], keepdim=False))
    )
    assert sum(kernel.launches for kernel in kernels) == 9
    touched = sum(s.bytes == X_BYTES for k in kernels for s in (*k.reads, *k.writes))
    assert touched == 6


def test_a_group_norm_is_moments_folding_and_a_pass() -> None:
    """Three kernels; x is read twice and written once."""
    node = AtenNode(
        name="y", op="aten.native_group_norm.default",
        args={"input": Ref("x"), "N": 8, "C": 16, "HxW": 1024, "group": 4, "eps": 1e-5},
        outputs=(
            Value("y", X.shape, "fp32"), Value("m", (8, 4), "fp32"), Value("r", (8, 4), "fp32"),
        ),
    )  # fmt: skip
    kernels = eager_kernels(_graph(node))
    assert [k.kind for k in kernels] == ["moments", "pointwise", "pointwise"]
    assert sum(s.bytes == X_BYTES for k in kernels for s in (*k.reads, *k.writes)) == 3


def test_a_view_launches_nothing_and_a_permuted_input_of_softmax_is_copied() -> None:
    """transpose is free; softmax asks for a contiguous input first."""
    turned = _node("t", "transpose.int", (8, 32, 16, 32), self=Ref("x"), dim0=1, dim1=2)
    soft = _node("s", "_softmax.default", (8, 32, 16, 32), self=Ref("t"), dim=3)
    plan = eager_plan(_graph(turned, soft))
    assert plan.by_node["t"] == ()
    assert [k.kind for k in plan.by_node["s"]] == ["copy", "softmax"]


def test_an_expanded_operand_counts_its_stored_bytes() -> None:
    """A row broadcast over 100 rows is read as the one row it is."""
    row = Value("r", (1, 64), "fp32")
    wide = _node("e", "expand.default", (100, 64), self=Ref("r"), size=[100, 64])
    total = _node("y", "mul.Tensor", (100, 64), self=Ref("e"), other=2.0)
    (kernel,) = eager_kernels(_graph(wide, total, inputs=(row,)))
    assert kernel.read_bytes == 64 * 4


def test_an_unknown_op_is_named_and_priced_as_one_pass() -> None:
    """The plan goes on."""
    plan = eager_plan(_graph(_node("y", "fft_thing.default", X.shape, self=Ref("x"))))
    assert plan.unknown == ("aten.fft_thing.default",)
    assert plan.bytes == 2 * X_BYTES


def test_every_row_of_the_table_has_a_source() -> None:
    """A file of PyTorch's, or another row that has one."""
    for name, entry in table().items():
        same = entry.source.removeprefix("as ") if entry.source.startswith("as ") else name
        assert re.search(r"\w\.(cpp|cu|cuh)\b", table()[same].source), name


def test_the_stand_in_fuses_a_bias_and_what_follows() -> None:
    """Operands turned channels last, the convolution, and one loop for bias, relu and add."""
    graph = _conv(bias=True)
    out = graph.nodes[0].outputs[0].shape
    relu = _node("r", "relu.default", out, self=Ref("c"))
    more = _node("a", "add.Tensor", out, self=Ref("r"), other=1.0)
    chain = AtenGraph(
        name="g", source="g.json", inputs=graph.inputs, weights=(), outputs=("a",),
        nodes=(*graph.nodes, relu, more),
    )  # fmt: skip
    assert len(eager_kernels(chain)) == 4
    x, weight, conv, fused = standin_kernels(chain)
    assert (x.op, weight.op) == ("layout", "layout")
    assert (conv.kind, fused.kind) == ("conv", "fused")
    assert conv.shape["channels_last"] == fused.shape["transposes"] == 1.0
    assert fused.write_bytes == 8 * 32 * 30 * 30 * 4


def test_every_graph_of_the_corpus_has_a_plan(corpus: Path) -> None:
    """No op of it is missing from the table, and fusing never writes more, copies aside."""
    for path in sorted((corpus / "kernelbench").glob("v0*/level[12]/*.json")):
        graph = read(path)
        plan = eager_plan(graph)
        assert plan.unknown == (), path.name
        fused = [kernel for kernel in standin_kernels(graph, plan) if kernel.op != "layout"]
        written = sum(kernel.write_bytes for kernel in fused)
        assert written <= 1.02 * sum(kernel.write_bytes for kernel in plan.kernels), path.name
