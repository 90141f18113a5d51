"""Bytes that the blocks of a kernel load before any cache, each derived by hand."""

from __future__ import annotations

from nests import pricer_of

from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.view import View
from fuseledger.graph.window import Window, concat, convolution
from fuseledger.ledger.points import coordinates


def gemm(b: GraphBuilder, x: View, y: View) -> View:
    """x·y."""
    return b.contract("gemm", "mk,kn->mn", [x, y])


def test_ragged_tiles_load_what_is_there():
    """⌈60/16⌉ = 4 blocks load each of 100 rows, ⌈100/16⌉ = 7 each of 60 columns: no lane beyond."""
    price = pricer_of(gemm, (100, 40), (40, 60)).price({"m": 16, "n": 16})
    assert price.l2_bytes == 2 * (4 * 100 * 40 + 7 * 40 * 60 + 100 * 60)


def test_padding_is_not_loaded():
    """Under a padded 3-tap window two tiles of 4 of 8 points load 5 points each, not 6."""

    def build(b: GraphBuilder, x: View, w: View) -> View:
        return convolution(b, x, w, [Window(kernel=3, before=1, after=1)])

    pricer = pricer_of(build, (1, 4, 8), (16, 4, 3))
    axis = pricer.nest.graph.tensors["out"].axis_names[-1]
    price = pricer.price({axis: 4})
    assert price.l2_bytes == 2 * (4 * (5 + 5) + 2 * (16 * 4 * 3) + 16 * 8)


def test_parts_are_stored_and_loaded():
    """Four parts of 64×64 in fp32 are written and read; the operands are split, not read again."""
    price = pricer_of(gemm, (64, 256), (256, 64)).price({"m": 64, "n": 64, "k": 64})
    assert price.l2_bytes == 2 * (2 * 64 * 256 + 64 * 64) + 2 * 4 * 64 * 64 * 4


def test_parts_of_a_concatenation_are_loaded_to_their_ends():
    """Of 5 tiles of 16 over 72 columns, those over the first 64 load them, and the last 8 more."""

    def build(b: GraphBuilder, x: View, y: View) -> View:
        return concat(b, [x, y], 1)

    pricer = pricer_of(build, (32, 64), (32, 8))
    axis = pricer.nest.graph.tensors["out"].axis_names[-1]
    assert pricer.price({axis: 16}).l2_bytes == 2 * (32 * 64 + 32 * 8 + 32 * 72)


def test_a_second_walk_loads_again():
    """A row that is walked twice is loaded twice."""

    def build(b: GraphBuilder, x: View) -> View:
        from fuseledger.graph.compose import softmax

        return softmax(b, x, -1)

    pricer = pricer_of(build, (32, 1000))
    assert pricer.price({}, walks=2).l2_bytes == 2 * (2 * 32 * 1000 + 32 * 1000)


def test_a_slice_and_its_neighbour_are_loaded_once():
    """x[:, :60] + x[:, 4:] reads 64 columns, of which 56 twice: a block loads their union."""

    def build(b: GraphBuilder, x: View) -> View:
        left, right = b.slice(x, 1, 0, 60), b.slice(x, 1, 4, 60)
        return b.map("add", [left, right])

    price = pricer_of(build, (8, 64)).price({})
    assert price.l2_bytes == 2 * (8 * 64 + 8 * 60)


def test_a_halo_and_its_tile_are_loaded_apart():
    """conv(relu(x)) + x: two tiles of 4 of 8 points load 5 points each for the window's loop, and
    after it their own 4 again, of 32 channels."""

    def build(b: GraphBuilder, x: View, w: View) -> View:
        y = convolution(b, b.map("relu", [x]), w, [Window(kernel=3, before=1, after=1)])
        return b.map("add", [y, x])

    pricer = pricer_of(build, (1, 32, 8), (32, 32, 3))
    axis = pricer.nest.graph.tensors["out"].axis_names[-1]
    price = pricer.price({axis: 4})
    assert price.l2_bytes == 2 * (32 * (5 + 5) + 32 * 8 + 2 * (32 * 32 * 3) + 32 * 8)


def test_coordinates_of_gaps_and_phases():
    """Strides beyond a window leave gaps; a divisor takes the whole quotients alone."""
    assert set(coordinates(((range(3), 4), (range(2), 1)), 0, 1, 100)) == {0, 1, 4, 5, 8, 9}
    assert set(coordinates(((range(6), 1),), 1, 2, 100)) == {1, 2, 3}
    assert set(coordinates(((range(4), 1), (range(3), -1)), 0, 1, 3)) == {0, 1, 2}
