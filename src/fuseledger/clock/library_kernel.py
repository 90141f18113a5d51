"""One kernel of a library or of an eager framework, as the library clock sees it.

Such kernels are not scheduled by us: what is known of them is what they read and write, what they
compute, and the shape that decides how well they do it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

Kind = Literal[
    "pointwise", "copy", "reduce", "scan", "moments", "batch_norm", "layer_norm", "softmax", "pool",
    "gemm", "conv", "layout", "attention", "rnn", "fused", "gather", "unknown",
]  # fmt: skip
Pipe = Literal["fp32", "tf32", "half", "fp8", "lanes"]

BYTES = {
    "fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
    "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
"""dtype → bytes of one element."""


class Stream(Struct, frozen=True):
    """A tensor's storage by name, and the bytes of it that one kernel reads or writes."""

    storage: str
    bytes: int


class LibraryKernel(Struct, frozen=True, kw_only=True):
    """One kernel, or `launches` equal small ones that a library runs for one step."""

    name: str
    """What the framework's source calls it."""
    op: str
    """The call that launched it, such as `aten.addmm`, and its node."""
    kind: Kind
    reads: tuple[Stream, ...]
    writes: tuple[Stream, ...]
    flops: float = 0.0
    pipe: Pipe = "lanes"
    shape: Mapping[str, float] = field(default_factory=dict[str, float])
    """Sizes that its efficiency depends on, by name: m, n, k, channels_in, window …"""
    launches: int = 1

    @property
    def read_bytes(self) -> int:
        """Bytes read, before any cache."""
        return sum(stream.bytes for stream in self.reads)

    @property
    def write_bytes(self) -> int:
        """Bytes written."""
        return sum(stream.bytes for stream in self.writes)

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes


def tensor_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of a dense tensor; dtypes that the table does not know count four bytes."""
    return math.prod(shape) * BYTES.get(dtype, 4)
