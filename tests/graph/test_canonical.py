"""Axes across the graph: which loops are one axis, and which must not be."""

from __future__ import annotations

from agreement import built

from fuseledger.graph import compose
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Op
from fuseledger.graph.operand import Operand
from fuseledger.graph.scalar import Read
from fuseledger.graph.validate import validate
from fuseledger.graph.view import View


def op(graph: Graph, function: str) -> Op:
    """The only op of that function."""
    (found,) = (each for each in graph.ops if each.function == function)
    return found


def row(graph: Graph, tensor: str, dim: int) -> tuple[str, ...]:
    """Names of the axes of one dimension of a tensor."""
    return tuple(axis.name for axis in graph.tensors[tensor].dims[dim])


def test_attention_rows_are_one_axis_and_keys_another():
    """Rows of q, S, P and the output are one axis; keys are another, though both are 64 long."""
    shape = (2, 4, 64, 32)
    graph = built(compose.attention, shape, shape, shape)
    scores, result = op(graph, "gemm.qk").writes[0].tensor, op(graph, "gemm.pv").writes[0].tensor
    rows, keys = row(graph, scores, -2), row(graph, scores, -1)
    assert rows == row(graph, result, -2) == row(graph, "x0", -2)
    assert rows != keys
    assert keys == row(graph, "x1", -2) == row(graph, "x2", -2)
    assert op(graph, "softmax.statistic").reduces == set(keys)
    assert op(graph, "gemm.pv").reduces == set(keys)


def test_grouped_queries_have_an_axis_of_their_own():
    """With 8 heads on 2 key heads, a key head is an axis of 2 and its queries one of 4."""
    graph = built(compose.attention, (1, 8, 16, 32), (1, 2, 16, 32), (1, 2, 16, 32))
    head, repeat = graph.tensors["x0"].dims[1]
    assert (head.size, repeat.size) == (2, 4)
    assert graph.tensors["x1"].dims[1] == (head,)
    assert graph.tensors["out"].dims[1:3] == ((head,), (repeat,))
    assert graph.results[0].view.shape == (1, 8, 16, 32)


def test_a_square_layer_with_a_residual():
    """Of x·W + x the columns of the result are x's at the residual; the reduction stays apart."""
    graph = built(
        lambda b, x, w: b.map("add", [compose.linear(b, x, w, None), x]), (64, 64), (64, 64)
    )
    gemm, add = op(graph, "gemm"), op(graph, "add")
    (reduced,) = gemm.reduces
    columns = row(graph, gemm.writes[0].tensor, 1)
    assert reduced not in columns
    assert set(columns) <= set(add.sizes)
    assert reduced not in add.sizes


def test_self_attention_reads_one_sequence_twice():
    """Of x·xᵀ the two walks over x are two axes, of which x has one."""
    graph = built(lambda b, x: b.contract("gemm", "mk,nk->mn", [x, x]), (64, 32))
    rows, columns = (row(graph, "out", dim)[0] for dim in (0, 1))
    assert rows != columns
    assert row(graph, "x0", 0)[0] in (rows, columns)


def test_a_reshape_refines_across_the_graph():
    """A later split of columns into heads splits the GEMM's columns and the weight too."""

    def build(b: GraphBuilder, x: View, w: View) -> View:
        projected = b.contract("gemm", "mk,kn->mn", [x, w])
        heads = b.reshape(b.map("relu", [projected]), [16, 8, 4])
        return b.map("exp", [heads.transpose([1, 0, 2])])

    graph = built(build, (16, 64), (64, 32))
    assert [axis.size for axis in graph.tensors["x1"].dims[1]] == [8, 4]
    assert [axis.size for axis in op(graph, "gemm").axes] == [16, 8, 4, 64]
    heads = row(graph, "out", 0)
    assert set(heads) <= set(op(graph, "gemm").sizes)
    assert not any(each.kind == "move" for each in graph.ops)


def test_a_reshape_without_refinement_moves():
    """4×6 read as 6×4 has no common refinement: 4 does not divide 6, so a move op copies."""
    graph = built(lambda b, x: b.map("relu", [b.reshape(b.map("exp", [x]), [6, 4])]), (4, 6))
    assert [each.kind for each in graph.ops] == ["loop", "move", "loop"]


def test_a_transpose_costs_no_op():
    """A transposed operand is read through its index map."""
    graph = built(lambda b, x, y: b.map("add", [x, y.transpose([1, 0])]), (4, 6), (6, 4))
    (add,) = graph.ops
    assert row(graph, "x0", 0) == row(graph, "x1", 1)
    assert row(graph, "x0", 1) == row(graph, "x1", 0)
    assert len(add.axes) == 2


def test_dead_ops_are_dropped():
    """What no output depends on is not in the graph."""
    b = GraphBuilder("dead")
    x = b.input("x", (4,), "fp32")
    b.map("exp", [x])
    b.output(b.map("relu", [x]), "out")
    assert [each.function for each in validate(b.finish()).ops] == ["relu"]


def test_outputs_keep_the_source_name():
    """An output's tensor is called as the source calls it, and its role says that it leaves."""
    graph = built(lambda b, x: b.map("relu", [x]), (4,))
    assert graph.tensors["out"].role == "output"
    assert graph.results[0].name == "out"


def test_an_output_that_is_a_view_is_no_copy():
    """An output may be a transpose of the tensor that is stored."""
    graph = built(lambda b, x: b.map("relu", [x]).transpose([1, 0]), (4, 6))
    assert graph.results[0].view.shape == (6, 4)
    assert graph.tensors["out"].shape == (4, 6)
    assert len(graph.ops) == 1


def test_names_are_letters_where_there_are_some():
    """A contraction's letters name the axes, also in the pointwise ops that follow."""
    graph = built(
        lambda b, x, w: b.map("relu", [b.contract("gemm", "mk,kn->mn", [x, w])]), (4, 6), (6, 8)
    )
    assert list(op(graph, "relu").sizes) == ["m", "n"]
    assert op(graph, "gemm").reduces == {"k"}


def test_equal_layers_have_equal_structures():
    """Two equal layers are the same kinds of ops, on other axes and tensors."""

    def build(b: GraphBuilder, x: View, w: View, v: View) -> View:
        for weight in (w, v):
            x = b.map("relu", [b.contract("gemm", "mk,nk->mn", [x, weight])])
        return b.map("exp", [x])

    graph = built(build, (16, 32), (32, 32), (32, 32))
    kinds = [structure.kind for structure in graph.structures]
    assert kinds == [0, 1, 0, 1, 2]
    first, second = graph.structures[0], graph.structures[2]
    assert first.tensors != second.tensors


def test_another_size_is_another_structure():
    """A layer of another width is another kind."""
    graph = built(
        lambda b, x, y: b.map("add", [b.map("exp", [x]), compose.mean(b, b.map("exp", [y]), [1])]),
        (16,),
        (16, 4),
    )
    first, second = (i for i, each in enumerate(graph.ops) if each.function == "exp")
    assert graph.structures[first].kind != graph.structures[second].kind


def test_a_letter_that_ends_in_a_digit_keeps_its_name_to_itself():
    """The letters x and x1, and a second x, are three axes of three names."""
    b = GraphBuilder("test")
    first, second = b.input("p", [4, 6], "fp32"), b.input("q", [5], "fp32")
    reads = [Operand(first, ("x", "x1"))]
    b.output(b.loop("copy", {"x": 4, "x1": 6}, reads, ["x", "x1"], Read(0), dtypes=["fp32"])[0])
    b.output(
        b.loop("copy", {"x": 5}, [Operand(second, ("x",))], ["x"], Read(0), dtypes=["fp32"])[0]
    )
    graph = validate(b.finish())
    assert [axis.name for op in graph.ops for axis in op.axes] == ["x", "x1", "x2"]
