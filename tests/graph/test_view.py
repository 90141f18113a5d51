"""Views against NumPy: the same chain of reshapes, slices and the like gives the same array."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.evaluate import evaluate
from fuseledger.graph.validate import validate
from fuseledger.graph.view import View

SHAPES = st.sampled_from([(12,), (4, 6), (2, 3, 4), (6, 1, 4), (2, 2, 2, 3), (5, 7), (8, 9)])
KINDS = st.sampled_from(["reshape", "transpose", "slice", "flip", "expand", "squeeze", "fix"])


def draw_shape(data: st.DataObject, elements: int) -> tuple[int, ...]:
    """A shape of that many elements, with dimensions of size 1 here and there."""
    shape: list[int] = []
    left = elements
    while left > 1:
        factor = data.draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
        shape.append(factor)
        left //= factor
    return tuple(shape) or (1,)


def step(data: st.DataObject, kind: str, view: View, array: Any) -> tuple[View | None, Any]:
    """One view operation on both; None where no view expresses it."""
    rank = array.ndim
    dim = data.draw(st.integers(0, rank - 1)) if rank else 0
    size = array.shape[dim] if rank else 1
    if kind == "reshape":
        shape = draw_shape(data, array.size)
        return view.reshape(shape), array.reshape(shape)
    if kind == "transpose":
        order = data.draw(st.permutations(range(rank)))
        return view.transpose(order), array.transpose(order)
    if kind == "expand":
        shape = (2, *(3 if n == 1 else n for n in array.shape))
        return view.expand(shape), np.broadcast_to(array, shape)
    if not rank:
        return view, array
    if kind == "flip":
        return view.flip(dim), np.flip(array, dim)
    if kind == "squeeze":
        if size != 1:
            return view.unsqueeze(dim), np.expand_dims(array, dim)
        return view.squeeze(dim), array.squeeze(dim)
    start = data.draw(st.integers(0, size - 1))
    stride = data.draw(st.integers(1, 3))
    length = 1 if kind == "fix" else data.draw(st.integers(1, (size - 1 - start) // stride + 1))
    taken = np.take(array, range(start, start + length * stride, stride), dim)
    return view.slice(dim, start, length, stride), taken


def value(b: GraphBuilder, view: View, array: Any) -> Any:
    """What the graph that outputs the view alone evaluates to."""
    b.output(view, "out")
    return evaluate(validate(b.finish()), {"x": array})["out"]


@given(SHAPES, st.lists(KINDS, max_size=6), st.data())
def test_chains_agree_with_numpy(shape: tuple[int, ...], kinds: list[str], data: st.DataObject):
    """Whatever views express, they express as NumPy does, and no op is made."""
    stored = np.arange(prod(shape), dtype=float).reshape(shape)
    b = GraphBuilder("chain")
    view, array = b.input("x", shape, "fp32"), stored
    for kind in kinds:
        following, expected = step(data, kind, view, array)
        if following is None or expected.size > 2000:
            continue
        view, array = following, expected
        assert view.shape == array.shape
    assert not b.ops
    np.testing.assert_array_equal(value(b, view, stored), array)


@given(SHAPES, st.lists(KINDS, max_size=6), st.data())
def test_the_builder_moves_what_views_cannot(
    shape: tuple[int, ...], kinds: list[str], data: st.DataObject
):
    """With copies where no view exists, any chain read by an op agrees with NumPy."""
    stored = np.arange(prod(shape), dtype=float).reshape(shape)
    b = GraphBuilder("chain")
    view, array = b.input("x", shape, "fp32"), stored
    for kind in kinds:
        following, expected = step(data, kind, view, array)
        if expected.size > 2000:
            continue
        if following is None:
            following = b.move(view) if kind != "reshape" else b.reshape(view, expected.shape)
            expected = array if kind != "reshape" else expected
        view, array = following, expected
    b.output(b.map("neg", [view]), "out")
    result = evaluate(validate(b.finish()), {"x": stored})["out"]
    np.testing.assert_array_equal(result, -array)


def test_a_reshape_without_refinement_is_no_view():
    """A transposed 4×6 cannot be read as 4×6: the rows of the result run across both."""
    transposed = View.whole("x", (4, 6), "fp32").transpose([1, 0])
    assert transposed.reshape((4, 6)) is None
    assert transposed.reshape((3, 2, 4)) is not None


def test_merged_needs_one_mixed_radix():
    """Two atoms are one only where they address the tensor as their product does."""
    whole = View.whole("x", (24,), "fp32").reshape((4, 6))
    assert whole is not None
    joined = whole.reshape((24,))
    assert joined is not None
    assert joined.merged(0) is not None
    crossed = whole.transpose([1, 0]).reshape((24,))
    assert crossed is not None
    assert crossed.merged(0) is None


def test_a_strided_slice_of_crossed_atoms_is_no_view():
    """Every second element of a transposed and flattened matrix follows no index map."""
    crossed = View.whole("x", (4, 6), "fp32").transpose([1, 0]).reshape((24,))
    assert crossed is not None
    assert crossed.slice(0, 0, 12, 2) is None
    assert crossed.slice(0, 4, 8) is not None  # whole rows of the transposed matrix
