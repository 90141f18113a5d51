"""How much of a tensor an access touches, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseledger.graph.axis import Index
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.reach import reach, tile_reach
from fuseledger.graph.window import take


@pytest.mark.parametrize(
    ("stride", "offset", "tile", "taps", "expected"),
    [
        (1, 0, 4, 3, 6),  # a halo of kernel − 1
        (2, 0, 4, 3, 9),  # (4 − 1)·2 + 3
        (2, 0, 4, 2, 8),  # stride = kernel: no halo
        (4, 0, 4, 2, 8),  # gaps between windows: 4·2 points of a span of 14
        (1, -1, 4, 3, 5),  # one tap lies in the padding
        (1, 0, 100, 3, 32),  # never more than the tensor has
    ],
)
def test_windows(stride: int, offset: int, tile: int, taps: int, expected: int):
    """A tile of outputs reads (tile − 1)·stride + kernel inputs, clipped to a tensor of 32."""
    window = Index((("x", stride), ("r", 1)), offset)
    assert reach(window, {"x": tile, "r": taps}, 32) == expected


def test_transposed_window():
    """(x + 1 − r)/2 over 8 outputs and 3 taps: numerators −1…8, so coordinates 0…4."""
    window = Index((("x", 1), ("r", -1)), 1, 2)
    assert reach(window, {"x": 8, "r": 3}, 16) == 5


@pytest.mark.parametrize(("tile", "expected"), [(4, 6), (16, 18), (32, 32)])
def test_tiles_inside_have_a_halo_on_both_sides(tile: int, expected: int):
    """Of a padded 3-tap window over 32, only the whole axis reads no more than it has."""
    window = Index((("x", 1), ("r", 1)), -1)
    assert tile_reach(window, {"x": tile, "r": 3}, 32) == expected


def test_a_tile_of_a_later_part():
    """A tile of 4 of a concatenation reads up to 4 of a part that starts at 10."""
    assert tile_reach(Index((("x", 1),), -10), {"x": 4}, 6) == 4
    assert reach(Index((("x", 1),), -10), {"x": 4}, 6) == 0


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(1, 4))
def test_no_tile_reaches_further(stride: int, divisor: int, tile: int, taps: int):
    """Every tile of a walk over 20 outputs touches at most what `tile_reach` says."""
    index = Index((("x", stride), ("r", 1)), -1, divisor)
    most = tile_reach(index, {"x": tile, "r": taps}, 16)
    for start in range(0, 20, tile):
        numerators = {(start + x) * stride + r - 1 for x in range(tile) for r in range(taps)}
        touched = {n // divisor for n in numerators if n % divisor == 0 and 0 <= n // divisor < 16}
        assert len(touched) <= most


def test_plain_axis_is_its_extent():
    """A coordinate that is the axis reaches as far as the axis runs."""
    assert reach(Index.of("x"), {"x": 5}, 32) == 5
    assert reach(Index((), 3), {}, 32) == 1


@given(
    st.integers(1, 4), st.integers(-4, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 4)
)
def test_reach_bounds_the_count(stride: int, offset: int, dilation: int, tile: int, taps: int):
    """It is never below the true number of distinct coordinates, and exact without gaps."""
    size = 12
    points = {x * stride + r * dilation + offset for x in range(tile) for r in range(taps)}
    inside = {point for point in points if 0 <= point < size}
    index = Index((("x", stride), ("r", dilation)), offset)
    found = reach(index, {"x": tile, "r": taps}, size)
    assert found >= len(inside)
    if dilation == 1 and stride <= taps:
        assert found == min(len(inside), tile * taps)


def test_lookups_touch_rows_only():
    """16 tokens of an embedding table of 50,000 × 64 fp16 touch 16 rows: 2,048 bytes."""
    b = GraphBuilder("embedding")
    table = b.weight("table", (50_000, 64), "fp16")
    tokens = b.input("tokens", (16,), "int64")
    b.output(take(b, table, tokens, 0), "out")
    graph = b.finish()
    assert graph.touched_bytes("table") == 16 * 64 * 2
    assert graph.floor_bytes == 16 * 64 * 2 + 16 * 8 + 16 * 64 * 2


def test_more_lookups_than_rows():
    """1,000 lookups in a table of 10 rows touch no more than the table."""
    b = GraphBuilder("embedding")
    table, tokens = b.weight("table", (10, 64), "fp16"), b.input("tokens", (1000,), "int64")
    b.output(take(b, table, tokens, 0), "out")
    assert b.finish().touched_bytes("table") == 10 * 64 * 2


def test_a_slice_touches_its_part():
    """Every second row of 8×16 fp32 is half of its 512 bytes."""
    b = GraphBuilder("slice")
    x = b.input("x", (8, 16), "fp32")
    b.output(b.map("relu", [b.slice(x, 0, 0, 4, 2)]), "out")
    assert b.finish().touched_bytes("x") == 4 * 16 * 4
