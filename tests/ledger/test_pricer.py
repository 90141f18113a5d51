"""Bytes, work and grids of kernels, each figure derived by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nests import DEVICE, nest_of, pricer_of

from fuseledger.clock.roofline import Roofline
from fuseledger.graph import compose
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.view import View
from fuseledger.graph.window import Window, convolution, pool, take
from fuseledger.ledger.online import online_variant
from fuseledger.ledger.price import Price
from fuseledger.ledger.pricer import Pricer


def gemm(b: GraphBuilder, x: View, y: View) -> View:
    """x·y."""
    return b.contract("gemm", "mk,kn->mn", [x, y])


def epilogue(b: GraphBuilder, x: View, y: View) -> View:
    """relu(x·y)."""
    return b.map("relu", [gemm(b, x, y)])


def two_convolutions(b: GraphBuilder, x: View, w: View, v: View) -> View:
    """conv3×3 of conv3×3, padded to keep the size."""
    window = Window(kernel=3, before=1, after=1)
    return convolution(b, convolution(b, x, w, [window] * 2), v, [window] * 2)


def test_compulsory_bytes_of_a_gemm():
    """4096³ in fp16 reads two and writes one matrix of 33,554,432 bytes."""
    price = pricer_of(gemm, (4096, 4096), (4096, 4096)).price({"m": 128, "n": 128})
    assert price.dram_bytes == 100_663_296 == 3 * 4096 * 4096 * 2
    assert price.blocks == 32 * 32
    assert price.flops == {"matrix:fp16": 2.0 * 4096**3}
    assert price.extra_flops == 0


def test_tiles_of_a_gemm_read_again():
    """Each of 1,024 blocks loads 128 rows of A and 128 columns of B, 1 MiB each."""
    price = pricer_of(gemm, (4096, 4096), (4096, 4096)).price({"m": 128, "n": 128})
    assert price.l2_bytes == 1024 * 2 * (128 * 4096 * 2) + 4096 * 4096 * 2


@pytest.mark.parametrize(
    ("tile", "generated", "library"),
    [
        ((128, 128), 1.0, 1.0),
        ((128, 144), 256 / 144, 1.0),  # 144 columns are held as 256, and are 18 · 8
        ((128, 101), 128 / 101, 104 / 101),
        ((8, 16), 2.0, 1.0),  # 8 rows are held as 16; turned, they are columns
        ((256, 129), 256 / 129, math.inf),  # more than 256·128
    ],
)
def test_tiles_of_products_are_padded(tile: tuple[int, int], generated: float, library: float):
    """Sides of generated tiles are powers of two, 16 at least; a library's are of 16·8."""
    rows, columns = tile
    price = pricer_of(gemm, (4096, 64), (64, 4096)).price({"m": rows, "n": columns})
    assert price.padding.generated == pytest.approx(generated)
    assert price.padding.library == pytest.approx(library)


def test_padding_of_two_products_is_weighed_by_their_work():
    """48 columns are held as 64, 16 as they are: 64 + 16 of 48 + 16."""

    def build(b: GraphBuilder, x: View, y: View, z: View) -> View:
        sums: list[View] = []
        for weights in (y, z):
            product = b.contract("gemm", "mk,kn->mn", [x, weights])
            (total,) = b.reduce("sum", [product], [1], "sum")
            sums.append(total)
        return b.map("add", sums)

    price = pricer_of(build, (64, 64), (64, 48), (64, 16)).price({"m": 64})
    assert price.padding.generated == pytest.approx((64 + 16) / (48 + 16))


def test_a_ragged_grid_is_rounded_up():
    """⌈1000/128⌉ · ⌈500/64⌉ = 8·8 blocks (R6)."""
    price = pricer_of(gemm, (1000, 64), (64, 500)).price({"m": 128, "n": 64})
    assert price.blocks == 64


def test_tiles_are_no_larger_than_axes():
    """A tile beyond its axis is the axis."""
    price = pricer_of(gemm, (64, 64), (64, 64)).price({"m": 1024, "n": 1024})
    assert price.tiles["m"] == price.tiles["n"] == 64
    assert price.blocks == 1


def test_split_k_writes_and_reads_its_parts():
    """8 parts of 1024×1024 fp32 are 33,554,432 bytes, written and read by a combine kernel (R3)."""
    pricer = pricer_of(gemm, (1024, 16384), (16384, 1024))
    price = pricer.price({"m": 128, "n": 128, "k": 2048})
    assert price.parts == 8
    assert price.partial_bytes == 2 * 8 * 1024 * 1024 * 4
    assert price.blocks == 8 * 8 * 8
    assert price.launches == 2
    assert price.flops["lanes:fp32"] == 7 * 1024 * 1024


def test_the_last_block_of_a_tile_may_merge_its_parts():
    """8 parts of 64 tiles: the same bytes and work, no second launch, 64 blocks that merge."""
    pricer = pricer_of(gemm, (1024, 16384), (16384, 1024))
    tiles = {"m": 128, "n": 128, "k": 2048}
    assert pricer.merges(tiles) == ("launch", "last block")
    assert pricer.merges({**tiles, "k": 16384}) == ("launch",)
    launched, price = pricer.price(tiles), pricer.price(tiles, merge="last block")
    assert (launched.merge, price.merge) == ("launch", "last block")
    assert price.launches == 1
    assert price.merging_blocks == 64
    assert price.dram_bytes == launched.dram_bytes
    assert price.flops == launched.flops


def test_small_partials_are_folded_by_their_reader():
    """4 parts of 64 sums beside 64 × 65,536 fp16 need no combine kernel; the result's own bytes
    are counted once already."""

    def build(b: GraphBuilder, x: View) -> View:
        (total,) = b.reduce("sum", [x], [1], "sum", dtypes=["fp32"])
        return b.map("sqrt", [total])

    pricer = pricer_of(build, (64, 65536), ops=(0,))
    (columns,) = pricer.nest.split_axes
    price = pricer.price({columns: 16384})
    assert price.launches == 1
    assert price.merge == "readers"
    assert price.partial_bytes == 2 * (4 * 64 * 4 - 64 * 4)


def test_one_part_is_no_partial():
    """A reduced axis whole in one block is written as it is."""
    price = pricer_of(gemm, (1024, 512), (512, 1024)).price({"m": 128, "n": 128, "k": 512})
    assert price.partial_bytes == 0
    assert price.launches == 1


def test_columns_compute_a_gemm_before_a_gemm_again():
    """With the second GEMM's 512 columns in 4 tiles the first is computed 4 times (R4)."""

    def build(b: GraphBuilder, x: View, y: View, z: View) -> View:
        return b.contract("gemm", "mn,no->mo", [gemm(b, x, y), z])

    pricer = pricer_of(build, (256, 64), (64, 128), (128, 512))
    (columns,) = (axis.name for axis in pricer.nest.graph.tensors["out"].dims[1])
    first, second = 2 * 256 * 64 * 128, 2 * 256 * 128 * 512
    whole = pricer.price({"m": 64, columns: 512})
    assert whole.flops == {"matrix:fp16": first + second}
    tiled = pricer.price({"m": 64, columns: 128})
    assert tiled.flops == {"matrix:fp16": 4 * first + second}
    assert tiled.extra_flops == 3 * first


def test_a_halo_is_computed_again():
    """An 8×8 tile needs 10×10 points of the convolution before it: 100/64 times its work. What
    tiles at the border spare is left out."""
    pricer = pricer_of(two_convolutions, (1, 8, 64, 64), (8, 8, 3, 3), (8, 8, 3, 3))
    last = pricer.nest.graph.tensors["out"]
    y, x = (dim[0].name for dim in last.dims[-2:])
    each = 2 * 8 * 64 * 64 * 8 * 9
    price = pricer.price({y: 8, x: 8})
    assert price.flops["matrix:fp16"] == pytest.approx(each + each * (10 * 10) / (8 * 8))
    assert price.extra_flops == pytest.approx(each * (100 / 64 - 1))


def test_no_halo_at_the_whole_size():
    """One block that holds the whole plane computes nothing twice."""
    pricer = pricer_of(two_convolutions, (1, 8, 16, 16), (8, 8, 3, 3), (8, 8, 3, 3))
    assert pricer.price({}).extra_flops == 0


def test_a_pool_of_stride_kernel_has_no_halo():
    """Windows that do not overlap compute the op before them once, in any tile."""

    def build(b: GraphBuilder, x: View) -> View:
        return pool(b, b.map("exp", [x]), [Window(kernel=2, stride=2)] * 2, "max")

    pricer = pricer_of(build, (2, 8, 64, 64))
    y, x = (dim[0].name for dim in pricer.nest.graph.tensors["out"].dims[-2:])
    assert pricer.price({y: 4, x: 8}).extra_flops == 0


def test_a_tensor_read_twice_by_one_map_is_charged_once():
    """x·x + x reads x once: 2 × 1024 fp16 with the result."""
    price = pricer_of(lambda b, x: b.map("add", [b.map("square", [x]), x]), (1024,)).price({})
    assert price.read_bytes == 1024 * 2
    assert price.write_bytes == 1024 * 2


def test_an_embedding_reads_rows_only():
    """16 rows of 64 fp16 of a table of 50,000, and 16 indices."""
    pricer = pricer_of(lambda b, t, i: take(b, t, i, 0), (50_000, 64), (16,))
    price = pricer.price({})
    assert price.read_bytes == 16 * 64 * 2 + 16 * 2
    assert price.write_bytes == 16 * 64 * 2


def test_two_walks_read_twice():
    """A softmax that does not own its rows reads them for the statistic and again to apply it."""
    pricer = pricer_of(lambda b, x: compose.softmax(b, x, -1), (64, 512))
    once, twice = pricer.price({}), pricer.price({}, walks=2)
    assert once.read_bytes == 64 * 512 * 2
    assert twice.read_bytes == 2 * 64 * 512 * 2
    assert twice.write_bytes == once.write_bytes


def test_two_walks_compute_the_carried_product_again():
    """A norm that does not own a GEMM's rows computes the GEMM twice, and reads for it twice."""
    pricer = pricer_of(
        lambda b, x, y: compose.layer_norm(b, gemm(b, x, y), 1, None, None, 1e-5),
        (256, 64),
        (64, 512),
    )
    once, twice = pricer.price({"m": 32}), pricer.price({"m": 32}, walks=2)
    assert twice.flops["matrix:fp16"] == 2 * once.flops["matrix:fp16"] == 4 * 256 * 64 * 512
    assert twice.read_bytes == 2 * once.read_bytes == 2 * 2 * (256 * 64 + 64 * 512)


def test_asked_again_it_is_the_same_price():
    """A price is computed once per choice of tiles."""
    pricer = pricer_of(gemm, (64, 64), (64, 64))
    assert pricer.price({"m": 16}) is pricer.price({"m": 16})
    assert pricer.price({"m": 16}) is not pricer.price({"m": 16}, walks=2)


@given(st.sampled_from([8, 16, 64, 100]), st.sampled_from([8, 32, 128, 100]))
def test_compulsory_bytes_do_not_depend_on_tiles(m: int, n: int):
    """Without parts or walks the compulsory traffic of a kernel is that of its tensors."""
    pricer = pricer_of(epilogue, (256, 64), (64, 512))
    price = pricer.price({"m": m, "n": n})
    assert price.dram_bytes == 2 * (256 * 64 + 64 * 512 + 256 * 512)
    assert price.l2_bytes >= price.read_bytes + price.write_bytes
    assert price.blocks == -(-256 // m) * -(-512 // n)
    assert price.extra_flops == 0


@given(st.sampled_from([16, 32, 64, 128]), st.sampled_from([8, 32, 96]), st.integers(1, 2))
def test_no_schedule_is_better_than_its_draft(m: int, n: int, walks: int):
    """A draft holds nothing and fills every SM: with its footprint the tiles are no quicker."""
    pricer = pricer_of(two_convolutions, (1, 32, 64, 64), (32, 32, 3, 3), (32, 32, 3, 3))
    tiles = dict(zip(pricer.nest.open_axes, (m, n), strict=False))
    clock = Roofline(pricer.device)
    drafted: list[float] = []

    def reject(draft: Price) -> bool:
        drafted.append(clock.time(draft).total_us)
        return True

    assert pricer.price_unless(reject, tiles, walks=walks) is None
    price = pricer.price(tiles, walks=walks)
    assert clock.time(price).total_us >= drafted[0]
    assert pricer.price_unless(reject, tiles, walks=walks) is price
    assert len(drafted) == 1


def test_an_output_that_is_read_in_part_is_made_whole_by_each_block():
    """Eight blocks along a third of a product's columns: no block but these makes the others."""

    def build(b: GraphBuilder, x: View, w: View) -> View:
        product = gemm(b, x, w)
        b.output(product, "whole")
        return b.map("relu", [b.slice(product, 1, 0, 256)])

    pricer = pricer_of(build, (1024, 512), (512, 768))
    columns = next(n for n in pricer.nest.open_axes if pricer.nest.sizes[n] == 256)
    once = 2.0 * 1024 * 512 * 768
    assert pricer.price({columns: 256}).flops["matrix:fp16"] == once
    assert pricer.price({columns: 32}).flops["matrix:fp16"] == 8 * once


def test_an_output_whose_readers_cover_it_is_made_where_they_need_it():
    """A product that is stored, and pooled by windows that leave none of it out."""

    def build(b: GraphBuilder, x: View, w: View) -> View:
        product = gemm(b, x, w)
        b.output(product, "whole")
        return pool(b, b.reshape(product, [1, 1024, 768]), [Window(kernel=2, stride=2)] * 2, "max")

    pricer = pricer_of(build, (1024, 512), (512, 768))
    tiles = dict.fromkeys(pricer.nest.open_axes, 16)
    assert pricer.price(tiles).flops["matrix:fp16"] == 2.0 * 1024 * 512 * 768


def test_one_walk_takes_each_exponential_once():
    """A softmax of 64·1,024 points that owns its rows takes an exponential and a division a point;
    one that walks them twice takes the exponential again."""
    pricer = pricer_of(lambda b, x: compose.softmax(b, x, -1), (64, 1024))
    assert pricer.price({}).special_ops == 2 * 64 * 1024
    assert pricer.price({}, walks=2).special_ops == 3 * 64 * 1024


def test_attention_takes_an_exponential_a_score():
    """512 queries and 1,024 keys: one exponential each, one a query and step of 64 keys for the
    sums so far, and a division for each of 512·64 results."""

    def build(b: GraphBuilder, q: View, k: View, v: View) -> View:
        scores = b.contract("qk", "md,nd->mn", [q, k])
        return b.contract("pv", "mn,ne->me", [compose.softmax(b, scores, -1), v])

    nest = online_variant(nest_of(build, (512, 64), (1024, 64), (1024, 64)))
    assert nest is not None
    price = Pricer(nest, DEVICE).price({})
    assert price.special_ops == 512 * 1024 + 512 * 1024 // 64 + 512 * 64


def test_a_second_walk_loads_what_its_block_needs():
    """Maxima of 2×2 of x / Σx over 63×63: the first walk of each of 4 × 4 blocks sums all of an
    image, the second reads 2·8 rows and columns, 2·7 at the end: 62² of all blocks together."""

    def build(b: GraphBuilder, x: View) -> View:
        (total,) = b.reduce("total", [x], [1, 2], "sum", keepdim=True)
        share = b.map("div", [x, total])
        return pool(b, share, [Window(kernel=2, stride=2)] * 2, "max")

    pricer = pricer_of(build, (8, 63, 63))
    batch, *rest = pricer.nest.open_axes
    price = pricer.price({batch: 1, **dict.fromkeys(rest, 8)}, walks=2)
    assert price.blocks == 8 * 4 * 4
    assert price.l2_bytes == 2 * (8 * (16 * 63 * 63 + 62 * 62) + 8 * 31 * 31)
