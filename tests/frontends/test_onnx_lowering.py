"""How ONNX graphs are lowered: dimensions, folding, weights, views, barriers, names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_reference import evaluated, worst_difference

from fuseledger.frontends.onnx import from_model
from fuseledger.graph.graph import Graph
from fuseledger.graph.validate import validate

pytestmark = pytest.mark.torch


def lowered(
    text: str, opset: int = 21, weights: dict[str, Any] | None = None, **options: Any
) -> Graph:
    """The validated graph of a model in ONNX's textual form."""
    return validate(from_model(parsed(text, opset, weights), **options))


def parsed(text: str, opset: int, weights: dict[str, Any] | None = None) -> Any:
    """A model in textual form, with weights of given arrays."""
    import onnx

    imports = f'["" : {opset}, "com.microsoft" : 1, "own" : 1]'
    model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: {imports}> {text}")
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()
    )
    return model


def test_dimensions_are_set_by_name_and_by_place() -> None:
    """`batch` and `x.1` set every place that they name."""
    graph = lowered(
        "g (float[batch,?] x) => (float[batch,?] y) { y = Relu (x) }", dims={"batch": 3, "x.1": 5}
    )
    assert graph.tensors["x"].shape == (3, 5)
    assert graph.tensors["y"].shape == (3, 5)


def test_an_input_without_a_shape_takes_one_from_the_dimensions() -> None:
    """`x.0`, `x.1` give the rank too."""
    import onnx

    model = parsed("g (float[2,3] x) => (float[2,3] y) { y = Relu (x) }", 21)
    for info in (*model.graph.input, *model.graph.output):
        info.type.CopyFrom(onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=1)))
    assert from_model(model, dims={"x.0": 2, "x.1": 3}).tensors["y"].shape == (2, 3)


def test_shape_arithmetic_makes_no_ops() -> None:
    """Shape, Gather, Mul, Concat and Reshape over static shapes leave one op."""
    graph = lowered(
        """g (float[n,4,6] x) => (float[m,24] y) {
          s = Shape (x)
          zero = Constant <value_ints=[0]> ()
          two = Constant <value_ints=[2]> ()
          four = Constant <value_ints=[4]> ()
          n = Gather (s, zero)
          c = Gather (s, two)
          w = Mul (c, four)
          t = Concat <axis=0> (n, w)
          r = Reshape (x, t)
          y = Relu (r)
        }""",
        dims={"n": 3},
    )
    assert [op.function for op in graph.ops] == ["relu"]
    assert graph.tensors["y"].shape == (3, 24)


def test_what_depends_on_no_input_is_a_weight() -> None:
    """A gigabyte made by ConstantOfShape, then scaled, is a weight of its shape and no op."""
    graph = lowered(
        """g (float[2,16384] x) => (float[2,16384] y) {
          s = Constant <value_ints=[16384,16384]> ()
          w0 = ConstantOfShape (s)
          w = Exp (w0)
          y = MatMul (x, w)
        }"""
    )
    assert [op.function for op in graph.ops] == ["gemm"]
    assert graph.tensors["w"].role == "weight"
    assert graph.tensors["w"].bytes == 2**30


def test_a_transposed_weight_is_the_weight_itself() -> None:
    """A tied embedding is stored once, however it is read."""
    graph = lowered(
        """g (int64[5] i) => (float[5,100] y) {
          e = Gather (w, i)
          t = Transpose (w)
          y = MatMul (e, t)
        }""",
        weights={"w": np.ones((100, 64), np.float32)},
    )
    assert [n for n, t in graph.tensors.items() if t.role == "weight"] == ["w"]


def test_a_quantised_weight_is_read_quantised() -> None:
    """DequantizeLinear of a weight stays an op: one byte an element is read, not four."""
    graph = lowered(
        """g (float[2,64] x) => (float[2,64] y) {
          s = Constant <value_float=0.1> ()
          w = DequantizeLinear (q, s)
          y = MatMul (x, w)
        }""",
        weights={"q": np.ones((64, 64), np.int8)},
    )
    assert [op.function for op in graph.ops] == ["dequantize", "gemm"]
    assert graph.tensors["q"].bytes == 64 * 64
    assert all(t.role != "weight" or t.dtype == "int8" for t in graph.tensors.values())


def test_a_quantised_weight_that_is_widened_by_hand_is_read_quantised() -> None:
    """Cast and Mul of a weight of 8 bits, transposed, are ops, as DequantizeLinear is: 8,192 bytes
    are read, not 32,768 of a wide copy."""
    graph = lowered(
        """g (float[2,64] x) => (float[2,128] y) {
          s = Constant <value_float=0.1> ()
          t = Transpose (q)
          c = Cast <to=1> (t)
          w = Mul (c, s)
          y = MatMul (x, w)
        }""",
        weights={"q": np.ones((128, 64), np.int8)},
    )
    assert [op.function for op in graph.ops] == ["cast", "mul", "gemm"]
    assert [t.bytes for t in graph.tensors.values() if t.role == "weight"] == [128 * 64]


def test_views_make_no_ops() -> None:
    """Transpose, Slice, Split, Unsqueeze and Expand before one Add."""
    graph = lowered(
        """g (float[4,6] x) => (float[2,6,4] y) {
          t = Transpose (x)
          axis = Constant <value_ints=[0]> ()
          u = Unsqueeze (t, axis)
          shape = Constant <value_ints=[2,6,4]> ()
          e = Expand (u, shape)
          y = Add (e, t)
        }"""
    )
    assert [op.function for op in graph.ops] == ["add"]


def test_a_known_scalar_is_a_literal() -> None:
    """Dividing by a constant reads no tensor for it."""
    graph = lowered(
        "g (float[4] x) => (float[4] y) { c = Constant <value_float=8.0> () y = Div (x, c) }"
    )
    assert len(graph.ops[0].reads) == 1


def test_an_unknown_operator_is_a_named_barrier() -> None:
    """A custom operator shows its name, and its declared shape carries the plan on."""
    graph = lowered(
        """g (float[4,4] x) => (float[4,4] y) <float[4,4] c> {
          a = Relu (x)
          c = own.Magic <k=3> (a)
          y = Exp (c)
        }"""
    )
    assert graph.barriers == {"own.Magic": 1}
    assert [op.function for op in graph.ops] == ["relu", "own.Magic", "exp"]
    assert graph.ops[1].attributes["k"] == 3


def test_a_shape_that_depends_on_data_joins_its_readers() -> None:
    """NonZero and what reads it, until shapes are known again, are one barrier; a note says so."""
    graph = lowered(
        """g (float[8] x, float[4] z) => (float[4] y) {
          n = NonZero (x)
          f = Cast <to=1> (n)
          s = ReduceSum <keepdims=0> (f)
          y = Add (z, s)
        }"""
    )
    assert [op.function for op in graph.ops] == ["onnx.ReduceSum", "add"]
    assert graph.ops[0].attributes["after"] == ["NonZero", "Cast"]
    assert any("node n (NonZero)" in note for note in graph.notes)


def test_a_shape_that_depends_on_data_can_be_given() -> None:
    """`--dim n.1=5` says how many elements are not zero."""
    graph = lowered(
        "g (float[8] x) => (int64[1,k] n) { n = NonZero (x) }", dims={"n.0": 1, "n.1": 5}
    )
    assert graph.tensors["n"].shape == (1, 5)


def test_a_loop_reads_what_its_body_captures() -> None:
    """Loop is a barrier whose reads include the outer values that its body uses."""
    graph = lowered(
        """g (float[4] x, float[4] w) => (float[4] y) {
          trips = Constant <value_int=3> ()
          go = Constant <value = bool {1}> ()
          y = Loop (trips, go, x) <body = b (int64 i, bool c, float[4] a) => (bool d, float[4] r) {
            d = Identity (c)
            r = Add (a, w)
          }>
        }"""
    )
    assert graph.barriers == {"onnx.Loop": 1}
    assert {"x", "w"} <= {read.tensor for read in graph.ops[0].reads}


def test_a_scan_is_a_barrier() -> None:
    """Scan reads its state, what it scans and what its body captures, and makes both results."""
    graph = lowered(
        """g (float[4] s, float[6,4] x, float[4] w) => (float[4] last, float[6,4] all) {
          last, all = Scan <num_scan_inputs = 1, body = b (float[4] a, float[4] r)
            => (float[4] n, float[4] o) { t = Mul (a, w) n = Add (t, r) o = Relu (n) }> (s, x)
        }"""
    )
    assert graph.barriers == {"onnx.Scan": 1}
    assert [read.tensor for read in graph.ops[0].reads] == ["s", "x", "w"]
    assert [graph.tensors[write.tensor].shape for write in graph.ops[0].writes] == [(4,), (6, 4)]


def test_ops_and_tensors_are_named_after_the_values_of_the_file() -> None:
    """The op that makes a value has its name; what leads to it is named below it."""
    graph = lowered("g (float[4,8] x) => (float[4,8] p) { a = Exp (x) p = Softmax (a) }")
    assert [op.name for op in graph.ops] == ["a", "p.statistic", "p"]
    assert {"x", "a", "p"} <= set(graph.tensors)


def test_local_functions_are_inlined() -> None:
    """A model-local function is its body."""
    import onnx

    text = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        g (float[4] x) => (float[4] y) { y = own.twice (x) }
        <domain: "own", opset_import: ["" : 21]>
        twice (a) => (c) { b = Relu (a) c = Exp (b) }"""
    graph = validate(from_model(onnx.parser.parse_model(text)))
    assert [op.function for op in graph.ops] == ["relu", "exp"]


def test_softmax_before_opset_13_flattens() -> None:
    """Until opset 12 the dimensions from the axis on are one: 12 terms in each sum."""
    text = "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis=1> (x) }"
    model = parsed(text, 11)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    _, (found,) = evaluated(model, {"x": x})
    e = np.exp(x.reshape(2, 12))
    assert np.allclose(found.reshape(2, 12), e / e.sum(1, keepdims=True))


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        ("g (float[2,3,4] x) => (float[3,4] y) { y = ReduceSum <axes=[0], keepdims=0> (x) }", 11),
        ("g (float[1,3,1] x) => (float[3] y) { y = Squeeze <axes=[0,2]> (x) }", 9),
        ("g (float[6,2] x) => (float[2,2] y) { y = Slice <starts=[1], ends=[3]> (x) }", 9),
        ("g (float[2,3] x) => (float[4,3] y) { y = Pad <pads=[1,0,1,0], value=2.0> (x) }", 9),
        ("g (float[2,3] x) => (float[2,3] y) { y = Clip <min=-0.5, max=0.5> (x) }", 9),
        ("g (float[2,3] x) => (float[2,3] y) { y = Dropout <ratio=0.4> (x) }", 9),
        ("g (float[2,4] x) => (float[2,2] a, float[2,2] b) { a, b = Split <axis=1> (x) }", 9),
    ],
)  # fmt: skip
def test_old_opsets_take_attributes_for_inputs(text: str, opset: int) -> None:
    """Opsets 9 to 11 name axes, bounds and sizes in attributes."""
    from onnx.reference import ReferenceEvaluator

    model = parsed(text, opset)
    sizes = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    _, found = evaluated(model, {"x": x})
    assert worst_difference(found, ReferenceEvaluator(model).run(None, {"x": x})) == 0


def test_scalars_and_empty_tensors_load() -> None:
    """A scalar input and a dimension of 0 are valid graphs."""
    assert lowered("g (float x) => (float y) { y = Exp (x) }").tensors["y"].shape == ()
    assert lowered("g (float[0,3] x) => (float[0,3] y) { y = Exp (x) }").floor_bytes == 0


def test_nodes_out_of_order_are_sorted() -> None:
    """The order of nodes in the file does not matter."""
    graph = lowered("g (float[4] x) => (float[4] y) { y = Exp (a) a = Relu (x) }")
    assert [op.name for op in graph.ops] == ["a", "y"]


def test_a_branch_whose_condition_is_known_is_taken() -> None:
    """An If over a static shape is the branch that it takes, and no barrier."""
    graph = lowered(
        """g (float[1,4] x) => (float[m] y) {
          s = Shape (x)
          zero = Constant <value_int=0> ()
          one = Constant <value_int=1> ()
          n = Gather (s, zero)
          single = Equal (n, one)
          r = If (single) <
            then_branch = t () => (float[a] t1) { t1 = Squeeze (x) },
            else_branch = e () => (float[b,c] e1) { e1 = Identity (x) }
          >
          y = Relu (r)
        }"""
    )
    assert [op.function for op in graph.ops] == ["relu"]
    assert graph.tensors["y"].shape == (4,)


def test_a_branch_that_depends_on_data_is_a_barrier() -> None:
    """An If over a value is a barrier that reads what its branches capture."""
    graph = lowered(
        """g (bool c, float[4] x, float[4] w) => (float[4] y) {
          y = If (c) <
            then_branch = t () => (float[4] t1) { t1 = Add (x, w) },
            else_branch = e () => (float[4] e1) { e1 = Relu (x) }
          >
        }"""
    )
    assert graph.barriers == {"onnx.If": 1}
    assert [read.tensor for read in graph.ops[0].reads] == ["c", "x", "w"]


def test_element_types_beyond_the_table_are_barriers_or_refused() -> None:
    """A cast through 2-bit integers stays a barrier; nothing is guessed."""
    import onnx

    model = parsed(
        "g (float[4] x) => (float[4] y) { a = Cast <to=25> (x) y = Cast <to=1> (a) }", 25
    )
    assert onnx.TensorProto.DataType.Name(25) == "UINT2"
    graph = validate(from_model(model))
    assert graph.barriers == {"onnx.Cast": 1}
