"""Matrix units: which one multiplies a tile, and how its sides are dealt to warps."""

from __future__ import annotations

from functools import cache
from math import inf

from msgspec import Struct

SIDE = 16
"""Least side of a matrix product's tile."""
WHOLE_DEPTH = 128
"""Up to so many reduced points, a product inside another's loop takes them at once."""
MATRIX_TILE = (16, 8)
"""Least tile of a matrix unit: mma.m16n8 on NVIDIA; the sides may swap."""


LIBRARY_TILE = 256 * 128
"""Elements of the largest tile of a block that cuBLAS has kernels of (as its profiles name them:
`128x256`, `256x128`)."""


@cache
def library_tile(rows: int, columns: int) -> float:
    """Elements of a library's tile for so many rows and columns: multiples of an instruction's, of
    which either side may be either. Infinite where libraries have none so large."""
    if rows * columns > LIBRARY_TILE:
        return inf
    return min(
        -(-rows // m) * m * -(-columns // n) * n for m, n in (MATRIX_TILE, MATRIX_TILE[::-1])
    )


class Share(Struct, frozen=True):
    """What one warp has of a product's tile. Where a tile has fewer instructions than the block has
    warps, several compute the same."""

    rows: int
    columns: int
    lanes: int


class Chain(Struct, frozen=True):
    """Two products in one loop, of which the second takes the result of the first."""

    rows: int
    columns: int
    """Of the second product's tile."""
    is_last: bool
    """Whether this is the second."""


@cache
def share_of_warp(
    unit: str, rows: int, columns: int, warps: int, chain: Chain | None = None
) -> Share:
    """How Triton deals a product's tile to so many warps of 32 threads."""
    if unit == "mfma":
        side = 32 if min(rows, columns) >= 32 else 16
        waves = max(1, warps // 2)
        if chain is None:
            along, across = _waves(rows // side, columns // side, waves)
        else:
            along = min(waves, rows // side) if chain.is_last else waves
            across = waves // along
        return Share(max(side, rows // along), max(side, columns // across), 64)
    least_rows, least_columns = (1, 1) if unit == "fma" else MATRIX_TILE
    if unit == "wgmma":
        along = 4
        while along < warps and (along * 16 < rows or (chain is not None and not chain.is_last)):
            along *= 2
    elif unit == "mma" and chain is not None:
        along = warps if chain.rows >= chain.columns else 1
    else:
        along = _warps_of_rows(rows, columns, warps)
    across = warps // along
    return Share(max(least_rows, rows // along), max(least_columns, columns // across), 32)


def _warps_of_rows(rows: int, columns: int, warps: int) -> int:
    """Warps side by side along the rows of a product: as Triton deals a tile of `mma` to them, in
    turns to the side with more left (`warpsPerTileV2` of its TritonGPU dialect; of a chain, all to
    one side, which the second product's tile decides)."""
    along = across = 1
    while along * across < warps:
        if rows * across >= columns * along and along * 16 < rows:
            along *= 2
        else:
            across *= 2
    return along


def _waves(rows: int, columns: int, waves: int) -> tuple[int, int]:
    """Wavefronts along rows and columns, of so many instructions each (`warpsPerTile` of Triton's
    `AccelerateAMDMatmul`)."""
    along = across = 1
    while along * across < waves:
        if rows // 2 // along >= columns // across and along < rows:
            along *= 2
        else:
            across *= 2
    return (across, along) if across > columns else (along, across)


@cache
def product_unit(arch: str, dtype: str, rows: int, columns: int, warps: int) -> str:
    """What multiplies a tile: `wgmma` and `tcgen05` where Triton uses them, `mma` otherwise.

    fp32 operands are multiplied on the lanes on NVIDIA (`fma`), on matrix cores on AMD.
    """
    if arch.startswith("gfx"):
        return "mfma"
    if dtype in ("fp32", "fp64"):
        return "fma"
    if arch.startswith("sm_90") and rows >= 64 and warps >= 4:
        return "wgmma"
    if arch.startswith("sm_10") and rows >= 64 and columns >= SIDE and warps <= 8:
        return "tcgen05"
    return "mma"
