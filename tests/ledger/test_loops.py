"""What loops of one kernel load apart, each figure derived by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nests import nest_of, pricer_of

from fuseledger.frontends.source import load
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.compose import rms_norm
from fuseledger.graph.view import View
from fuseledger.graph.window import Window, convolution, pool
from fuseledger.ledger.loops import Loops
from fuseledger.ledger.nest import analyse
from fuseledger.ledger.pricer import bounds_of
from fuseledger.ledger.tiled import TiledLoads


def product(b: GraphBuilder, x: View, y: View) -> View:
    """x·y."""
    return b.contract("gemm", "mk,kn->mn", [x, y])


def conv(b: GraphBuilder, x: View, w: View, kernel: int) -> View:
    """A convolution of one dimension that keeps its size."""
    half = kernel // 2
    return convolution(b, x, w, [Window(kernel=kernel, before=half, after=half)])


def loaded(build: Callable[..., View], shapes: Sequence[tuple[int, ...]], tile: int) -> int:
    """Elements of the first input that all blocks load, in tiles of the output's last axis."""
    nest = nest_of(build, *shapes)
    tiles = {name: nest.sizes[name] for name in nest.open_axes}
    tiles[nest.graph.tensors["out"].axis_names[-1]] = tile
    return TiledLoads(nest, bounds_of(nest)).bytes_of("x0", tiles) // 2


def test_products_over_one_axis_share_its_loop():
    """SwiGLU's gate and up walk the same 256 points for the same tile: x is loaded once by each of
    two blocks of columns, with gelu before them or without."""

    def build(b: GraphBuilder, x: View, gate: View, up: View) -> View:
        y = b.map("gelu", [x])
        return b.map("mul", [b.map("silu", [product(b, y, gate)]), product(b, y, up)])

    shapes = [(32, 256), (256, 64), (256, 64)]
    assert loaded(build, shapes, 32) == 2 * 32 * 256


def test_a_product_in_the_loop_of_another_loads_apart():
    """gelu(x·a)·b + x·c: the first product runs inside the loop over b's 128 rows, the third in a
    loop of its own, so that each of two blocks of columns loads x twice."""

    def build(b: GraphBuilder, x: View, a: View, second: View, c: View) -> View:
        y = b.map("relu", [x])
        first = b.map("gelu", [product(b, y, a)])
        return b.map("add", [product(b, first, second), product(b, y, c)])

    shapes = [(32, 256), (256, 128), (128, 64), (256, 64)]
    assert loaded(build, shapes, 32) == 2 * 2 * 32 * 256


def test_windows_of_two_sizes_load_apart():
    """3 and 5 taps over 32 channels of relu(x): two tiles of 16 of 32 points load 17 points each
    in the loop of the first, 18 in that of the second."""

    def build(b: GraphBuilder, x: View, w: View, v: View) -> View:
        y = b.map("relu", [x])
        return b.map("add", [conv(b, y, w, 3), conv(b, y, v, 5)])

    shapes = [(1, 32, 32), (8, 32, 3), (8, 32, 5)]
    assert loaded(build, shapes, 16) == 32 * 2 * (17 + 18)


def test_what_a_window_reads_is_made_again_beside_it():
    """A pool read by a product under a window and by one without: maxima of 2 of 64 points, of 32
    channels. Two tiles of 16 of 32 make 17 maxima in the one loop and 16 in the other."""

    def build(b: GraphBuilder, x: View, w: View, v: View, u: View) -> View:
        y = pool(b, x, [Window(kernel=2, stride=2)], "max")
        inner = conv(b, b.map("relu", [conv(b, y, w, 1)]), v, 3)
        return b.map("add", [inner, conv(b, y, u, 1)])

    shapes = [(1, 32, 64), (32, 32, 1), (8, 32, 3), (8, 32, 1)]
    assert loaded(build, shapes, 16) == 32 * 2 * (2 * 17 + 2 * 16)


def test_few_points_open_no_loop():
    """A window of 12 points is read at once: what it loads holds the tile that is added to it."""

    def build(b: GraphBuilder, x: View, w: View) -> View:
        return b.map("add", [conv(b, b.map("relu", [x]), w, 3), x])

    assert loaded(build, [(1, 4, 8), (4, 4, 3)], 4) == 4 * (5 + 5)


def test_what_is_added_after_a_product_is_loaded_again():
    """gelu(x·a) + x on 64×256 by 256×256: each of four blocks of columns walks 64 rows of 256
    for the product, and loads its own 64 columns after it."""

    def build(b: GraphBuilder, x: View, a: View) -> View:
        return b.map("add", [b.map("gelu", [product(b, x, a)]), x])

    assert loaded(build, [(64, 256), (256, 256)], 64) == 4 * 64 * 256 + 64 * 256


def test_a_second_walk_loads_in_each_of_its_loops():
    """A norm before two products that share no loop: with two walks a block loads x for the
    statistic and for either product, its scale for both; nothing twice while it is held."""

    def build(b: GraphBuilder, x: View, g: View, a: View, second: View, c: View) -> View:
        y = rms_norm(b, x, 1, g, 1e-5)
        first = b.map("gelu", [product(b, y, a)])
        return b.map("add", [product(b, first, second), product(b, y, c)])

    shapes = [(32, 256), (256,), (256, 128), (128, 64), (256, 64)]
    pricer = pricer_of(build, *shapes)
    weights = 256 * 128 + 128 * 64 + 256 * 64 + 32 * 64
    held, walked = (pricer.price({}, walks=walks).l2_bytes for walks in (1, 2))
    assert held == 2 * (32 * 256 + 256 + weights)
    assert walked == 2 * (3 * 32 * 256 + 2 * 256 + weights)


def test_a_first_walk_makes_the_statistics_that_are_read():
    """The upper and the lower half of a norm's product, added: in either walk each of four blocks
    loads its 8 rows of both halves, 64 rows of 256 in all."""

    def build(b: GraphBuilder, x: View, g: View, a: View) -> View:
        y = product(b, rms_norm(b, x, 1, g, 1e-5), a)
        return b.map("add", [b.slice(y, 0, 0, 32), b.slice(y, 0, 32, 32)])

    pricer = pricer_of(build, (64, 256), (256,), (256, 64))
    axis = pricer.nest.graph.tensors["out"].axis_names[0]
    price = pricer.price({axis: 8}, walks=2)
    assert price.l2_bytes == 2 * (2 * 64 * 256 + 4 * (256 + 256 * 64) + 32 * 64)


def test_a_product_and_what_is_added_are_walks_of_their_own():
    """y·a + y with y = gelu(x), walked twice: 64 rows of 256 for the product in each of four blocks
    of columns, and its own 64 columns of x for what is added, which needs no product again."""

    def build(b: GraphBuilder, x: View, a: View) -> View:
        y = b.map("gelu", [x])
        return b.map("add", [product(b, y, a), y])

    pricer = pricer_of(build, (64, 256), (256, 256))
    axis = pricer.nest.graph.tensors["out"].axis_names[-1]
    price = pricer.price({axis: 64}, walks=2)
    assert price.l2_bytes == 2 * (4 * 64 * 256 + 64 * 256 + 256 * 256 + 64 * 256)


def test_a_statistic_that_needs_another_opens_a_loop_after_it():
    """Σ(x·max x): the sum needs the maximum, so that both walk one axis, one after the other."""

    def build(b: GraphBuilder, x: View, z: View) -> View:
        (top,) = b.reduce("top", [x], [1], "max", keepdim=True)
        (total,) = b.reduce("total", [b.map("mul", [z, top])], [1], "sum")
        return total

    nest = nest_of(build, (8, 256), (8, 256))
    nest.carried = {}
    reads = nest.external["x0"] + nest.external["x1"]
    assert len(Loops(nest).apart(reads)) == 2


def test_a_selection_shares_the_loop_of_a_statistic():
    """Two of the 256 columns of softmax(x·w): what is selected is held, for all of its positions,
    through the loop over the columns that makes the statistic, so x·w is made once, and w loaded
    once by each of 32/8 blocks of rows."""
    graph = load("gather(softmax(x[32,64] @ w[64,256]), i[32,2])", dtype="fp16", dims={})
    nest = analyse(graph, tuple(range(len(graph.ops))))
    tiles = {name: nest.sizes[name] for name in nest.open_axes} | {"m": 8}
    assert TiledLoads(nest, bounds_of(nest)).bytes_of("w", tiles) == 2 * (32 // 8) * 64 * 256
