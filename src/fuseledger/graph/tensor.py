"""Tensors and their dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Literal

from msgspec import Struct

from fuseledger.graph.axis import Axis

Role = Literal["input", "weight", "constant", "intermediate", "output"]

DTYPE_BITS: dict[str, int] = {
    "fp64": 64,
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "fp4": 4,
    "complex64": 64,
    "complex128": 128,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "int4": 4,
    "uint64": 64,
    "uint32": 32,
    "uint16": 16,
    "uint8": 8,
    "uint4": 4,
    "bool": 8,
}
"""Stored width of an element in bits; a bool takes a byte, as in PyTorch and ONNX."""

MAX_ELEMENTS = 2**48
"""Largest tensor that a graph may hold, far beyond any memory: a mistyped size."""


def too_large(shape: Sequence[int]) -> bool:
    """Whether a tensor of the shape has more elements than a graph may hold."""
    return prod(shape) > MAX_ELEMENTS


def dtype_bytes(dtype: str, elements: int = 1) -> int:
    """Bytes that `elements` packed elements take, rounded up to whole bytes."""
    return -(-elements * DTYPE_BITS[dtype] // 8)


def is_float(dtype: str) -> bool:
    """Whether the dtype is a real floating-point type."""
    return dtype.startswith(("fp", "bf"))


class Tensor(Struct, frozen=True, kw_only=True, dict=True):
    """A tensor: each dimension is a product of axes, outermost first."""

    name: str
    dims: tuple[tuple[Axis, ...], ...]
    """An empty product is a dimension of size 1."""
    dtype: str
    role: Role

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Logical sizes, as the source wrote them."""
        return tuple(prod(axis.size for axis in dim) for dim in self.dims)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, outermost first: the coordinates that an access indexes."""
        return tuple(axis for dim in self.dims for axis in dim)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def elements(self) -> int:
        """Number of elements."""
        return prod(axis.size for axis in self.axes)

    @cached_property
    def bytes(self) -> int:
        """Bytes of the whole tensor."""
        return dtype_bytes(self.dtype, self.elements)

    @property
    def is_external(self) -> bool:
        """Whether it exists before any kernel runs."""
        return self.role in ("input", "weight", "constant")
