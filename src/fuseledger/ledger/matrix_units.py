"""Matrix units: which one multiplies a tile, and how its sides are dealt to warps."""

from __future__ import annotations

SIDE = 16
"""Least side of a matrix product's tile."""
WHOLE_DEPTH = 128
"""Up to so many reduced points, a product inside another's loop takes them at once."""


def warps_of_rows(rows: int, columns: int, warps: int) -> int:
    """Warps side by side along the rows of a product: as Triton deals a tile of `mma` to them, in
    turns to the side with more left (`warpsPerTileV2` of its TritonGPU dialect)."""
    along = across = 1
    while along * across < warps:
        if rows * across >= columns * along and along * 16 < rows:
            along *= 2
        else:
            across *= 2
    return along


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
