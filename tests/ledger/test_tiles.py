"""The least tiles: a fragment of a matrix unit, and a sector along the contiguous axis."""

from __future__ import annotations

from nests import pricer_of

from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.view import View
from fuseledger.ledger.tiles import TileLimits


def gemm(b: GraphBuilder, x: View, y: View) -> View:
    """x·y."""
    return b.contract("gemm", "mk,kn->mn", [x, y])


def test_the_least_tile_of_a_gemm():
    """16×16 in fp16: 16×8 of the matrix unit, and 16 elements fill a 32-byte sector along n.
    The reduced axis starts whole."""
    least = TileLimits(pricer_of(gemm, (256, 512), (512, 256))).least()
    assert least == {"m": 16, "n": 16, "k": 512}


def test_the_sides_of_a_fragment_may_swap():
    """8×16 is a fragment as 16×8 is, 8×8 is none."""
    limits = TileLimits(pricer_of(gemm, (256, 512), (512, 256)))
    assert limits.allows({"m": 8, "n": 16, "k": 512})
    assert limits.allows({"m": 16, "n": 16, "k": 512})
    assert not limits.allows({"m": 4, "n": 16, "k": 512})


def test_a_sector_along_the_contiguous_axis():
    """fp32 needs 8 elements a sector and fp16 16, where the axis has as many."""

    def build(b: GraphBuilder, x: View) -> View:
        return b.map("relu", [x])

    for dtype, elements in (("fp32", 8), ("fp16", 16)):
        pricer = pricer_of(build, (64, 256), dtype=dtype)
        rows, columns = (dim[0].name for dim in pricer.nest.graph.tensors["x0"].dims)
        assert TileLimits(pricer).least() == {rows: 1, columns: elements}
        assert not TileLimits(pricer).allows({rows: 1, columns: elements // 2})
    assert set(TileLimits(pricer_of(build, (64, 4))).least().values()) == {1, 4}


def test_an_axis_smaller_than_a_fragment_is_enough():
    """A GEMM of 4 rows has no more rows to give."""
    limits = TileLimits(pricer_of(gemm, (4, 512), (512, 256)))
    assert limits.allows({"m": 4, "n": 16, "k": 512})
