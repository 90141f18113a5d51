"""Shapes and dtypes of pointwise results, and the letters that stand for dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from fuseledger.errors import ShapeError


def dim_letters(shape: Sequence[int]) -> tuple[dict[str, int], list[str | None]]:
    """A letter for each dimension of size other than 1, and the dimensions' list of letters."""
    out = [f"d{i}" if size != 1 else None for i, size in enumerate(shape)]
    return {x: size for x, size in zip(out, shape, strict=True) if x is not None}, out


def broadcast_shapes(function: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """NumPy's broadcast of the shapes; raises ShapeError naming the op and the shapes."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[int] = []
    for i in range(rank):
        sizes = {shape[i - rank + len(shape)] for shape in shapes if i - rank + len(shape) >= 0}
        sizes.discard(1)
        if len(sizes) > 1:
            listed = " and ".join(str(list(shape)) for shape in shapes)
            raise ShapeError(f"{function}: shapes {listed} do not broadcast")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


_RANK = (
    "bool",
    "uint4",
    "int4",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "fp4",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp16",
    "bf16",
    "fp32",
    "fp64",
    "complex64",
    "complex128",
)


def promote(dtypes: Sequence[str]) -> str:
    """The dtype of a pointwise result: the widest kind; fp16 with bf16 gives fp32."""
    if {"fp16", "bf16"} <= set(dtypes):
        dtypes = [*dtypes, "fp32"]
    return max(dtypes, key=_RANK.index)
