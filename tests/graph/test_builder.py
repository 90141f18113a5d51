"""Building graphs: broadcasting, contraction, barriers, and the errors they name."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import built
from hypothesis import given
from hypothesis import strategies as st

from fuseledger.errors import ShapeError
from fuseledger.graph.broadcast import broadcast_shapes, dim_letters, promote
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.operand import Operand
from fuseledger.graph.scalar import Read
from fuseledger.graph.validate import validate

SHAPES = st.lists(st.sampled_from([1, 2, 3]), max_size=3).map(tuple)


@given(st.lists(SHAPES, min_size=1, max_size=3))
def test_broadcast_is_that_of_numpy(shapes: list[tuple[int, ...]]):
    """Shapes broadcast as NumPy broadcasts them, or not at all as in NumPy."""
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError, match=r"add: shapes .* do not broadcast"):
            broadcast_shapes("add", shapes)
    else:
        assert broadcast_shapes("add", shapes) == expected


@given(SHAPES, SHAPES)
def test_map_broadcasts(left: tuple[int, ...], right: tuple[int, ...]):
    """A pointwise op of two tensors is NumPy's, broadcasting included."""
    x = np.arange(np.prod(left, dtype=int), dtype=float).reshape(left) + 1
    y = np.arange(np.prod(right, dtype=int), dtype=float).reshape(right) + 10
    try:
        expected = x * y
    except ValueError:
        return
    graph = built(lambda b, p, q: b.map("mul", [p, q]), left, right)
    np.testing.assert_array_equal(evaluate(graph, {"x0": x, "x1": y})["out"], expected)


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("mk,kn->mn", [(3, 4), (4, 5)]),
        ("bmk,bnk->bmn", [(2, 3, 4), (2, 5, 4)]),
        ("bmk,kn->bmn", [(1, 3, 4), (4, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij->ji", [(3, 4)]),
        ("ij->", [(3, 4)]),
        ("bi,ij,bj->b", [(2, 3), (3, 4), (2, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 1, 3, 4), (2, 1, 5, 4)]),
    ],
)
def test_contract_is_einsum(spec: str, shapes: list[tuple[int, ...]]):
    """A contraction is NumPy's einsum of the same specification."""
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal(shape) for shape in shapes]
    graph = built(lambda b, *xs: b.contract("gemm", spec, xs), *shapes)
    found = evaluate(graph, {f"x{i}": array for i, array in enumerate(arrays)})["out"]
    np.testing.assert_allclose(found, np.einsum(spec, *arrays), atol=1e-12)


def test_contract_of_the_wrong_rank():
    """A specification that does not fit a shape is named with it."""
    b = GraphBuilder("bad")
    with pytest.raises(ShapeError, match=r"gemm: 'mk,kn->mn' does not fit shape \(4,\)"):
        b.contract("gemm", "mk,kn->mn", [b.input("x", (4,), "fp32"), b.input("y", (4, 5), "fp32")])


def test_contract_of_unlike_sizes():
    """Sizes that disagree under one letter are named."""
    b = GraphBuilder("bad")
    x, y = b.input("x", (3, 4), "fp32"), b.input("y", (5, 6), "fp32")
    with pytest.raises(ShapeError, match=r"gemm: dimension 1 of .*is 4, where 5 is expected"):
        b.contract("gemm", "mk,kn->mn", [x, y])


@given(st.sets(st.integers(0, 2)), st.booleans())
def test_reduce_is_sum(dims: set[int], keepdim: bool):
    """A reduction over any dimensions, kept or not, is NumPy's."""
    x = np.arange(24.0).reshape(2, 3, 4)
    graph = built(
        lambda b, v: b.reduce("sum", [v], sorted(dims), "sum", keepdim=keepdim)[0], (2, 3, 4)
    )
    expected = x.sum(tuple(sorted(dims)), keepdims=keepdim)
    np.testing.assert_array_equal(evaluate(graph, {"x0": x})["out"], expected)


def test_reshape_to_another_size():
    """A reshape keeps the number of elements."""
    b = GraphBuilder("bad")
    with pytest.raises(ShapeError, match=r"reshape: \[4, 6\] does not hold \[5, 5\]"):
        b.reshape(b.input("x", (4, 6), "fp32"), [5, 5])


def test_reshape_infers_one_size():
    """A size of −1 is what is left."""
    b = GraphBuilder("infer")
    assert b.reshape(b.input("x", (4, 6), "fp32"), [2, -1, 3]).shape == (2, 4, 3)


def test_names_are_unique():
    """Ops and tensors of one name are told apart by a number."""
    graph = built(lambda b, x: b.map("relu", [b.map("relu", [x])]), (4,))
    assert [op.name for op in graph.ops] == ["relu", "relu_1"]
    assert set(graph.tensors) == {"x0", "relu", "out"}


def test_labels_belong_to_the_outer_composite():
    """Ops made inside two labels carry the outer one."""
    b = GraphBuilder("labels")
    x = b.input("x", (4,), "fp32")
    with b.labelled("attention"), b.labelled("softmax"):
        inner = b.map("exp", [x])
    b.output(b.map("relu", [inner]), "out")
    assert [op.label for op in b.finish().ops] == ["attention", None]


def test_a_barrier_reads_stored_tensors():
    """A part of a tensor that an opaque op reads is copied first; a whole tensor is not."""
    b = GraphBuilder("barrier")
    x = b.input("x", (4, 6), "fp32")
    (plain,) = b.opaque("sort", [x], [((4, 6), "fp32")])
    (moved,) = b.opaque("sort", [b.slice(x, 0, 1, 3)], [((2, 6), "fp32")])
    b.output(plain, "plain")
    b.output(moved, "moved")
    graph = validate(b.finish())
    assert [op.kind for op in graph.ops] == ["opaque", "move", "opaque"]
    assert graph.barriers == {"sort": 2}


def test_a_barrier_reads_a_permuted_tensor_by_its_strides():
    """A permutation is not copied: the op's meaning is of the tensor in the permuted order."""
    b = GraphBuilder("barrier")
    x = b.input("x", (2, 3, 4), "fp32")
    (cut,) = b.opaque("first", [x.transpose([2, 0, 1])], [((2, 3), "fp32")])
    b.output(cut, "cut")
    graph = validate(b.finish())
    assert [op.kind for op in graph.ops] == ["opaque"]
    value = np.arange(24.0).reshape(2, 3, 4)
    found = evaluate(graph, {"x": value}, opaque={"first": lambda op, given: [given[0][1]]})
    assert (found["cut"] == value.transpose(2, 0, 1)[1]).all()


def test_a_letter_of_the_wrong_size():
    """A dimension that is not its letter's size is named, with both sizes."""
    b = GraphBuilder("bad")
    x = b.input("x", (4,), "fp32")
    with pytest.raises(ShapeError, match=r"f: dimension 0 of \[4\] is 4, where 5 is expected"):
        b.loop("f", {"i": 5}, [Operand(x, ("i",))], ["i"], Read(0), dtypes=["fp32"])
    with pytest.raises(ShapeError, match=r"f: 2 indices for shape \[4\]"):
        b.loop("f", {"i": 4}, [Operand(x, ("i", "i"))], ["i"], Read(0), dtypes=["fp32"])


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["fp16", "fp32"], "fp32"),
        (["fp16", "bf16"], "fp32"),
        (["int64", "fp16"], "fp16"),
        (["bool", "int8"], "int8"),
        (["fp16"], "fp16"),
    ],
)
def test_promotion(dtypes: list[str], expected: str):
    """The widest kind wins, and neither half is wide enough for the other."""
    assert promote(dtypes) == expected


def test_letters_skip_size_one():
    """Dimensions of size 1 have no letter."""
    assert dim_letters((2, 1, 3)) == ({"d0": 2, "d2": 3}, ["d0", None, "d2"])


def test_a_number_that_a_barrier_needs_whole_is_filled_in():
    """A scalar repeated over a tensor is no move of one: the op is a fill."""
    b = GraphBuilder("filled")
    zero = b.weight("zero", (), "fp16").expand((4, 8))
    b.output(b.opaque("recurrence", [zero], [((4,), "fp16")])[0], "y")
    assert [op.function for op in b.finish().ops] == ["fill", "recurrence"]
