"""A figure and its source, and the table of figures that a device file may hold.

The structs are the schema of the TOML files: a field left out is unknown, which is not zero.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

TEXT_PATTERN = r"\S"

Text = Annotated[str, msgspec.Meta(pattern=TEXT_PATTERN)]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e18)]  # the bound keeps infinity out
PositiveInt = Annotated[int, msgspec.Meta(ge=1, lt=10**18)]
NaturalInt = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finite figure above zero, and the document or measurement it comes from."""

    value: Positive
    source: Text
    note: str = ""


class Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole figure above zero, with its source."""

    value: PositiveInt
    source: Text
    note: str = ""


class Reserve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole figure that may be a known zero, with its source."""

    value: NaturalInt
    source: Text
    note: str = ""


class Fraction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure above zero and at most one, with its source."""

    value: Share
    source: Text
    note: str = ""


AnyFigure = Figure | Count | Reserve | Fraction


class Peaks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Dense peak rate of each execution pipe at the boost clock, in TFLOP/s (TOPS for int8)."""

    tensor_fp4: Figure | None = None
    tensor_fp8: Figure | None = None
    tensor_int8: Figure | None = None
    tensor_fp16: Figure | None = None
    tensor_bf16: Figure | None = None
    tensor_tf32: Figure | None = None
    tensor_fp32: Figure | None = None
    """Matrix units at full fp32, which AMD has and NVIDIA has not."""
    tensor_fp64: Figure | None = None
    fma_fp16: Figure | None = None
    fma_fp32: Figure | None = None
    fma_fp64: Figure | None = None


class Launches(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Cost of one kernel launch in µs, by how it is launched."""

    eager: Figure | None = None
    """Host-bound: one operator called from Python, the host setting the pace."""
    queued: Figure | None = None
    """GPU-bound: the stream always holds the next launch."""
    graph: Figure | None = None
    """GPU-bound: replayed in a CUDA or HIP graph."""


class Shares(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rates of kernels with a product of tensors, by class, as a share of another rate."""

    gemm: Figure | None = None
    conv: Figure | None = None
    attention: Figure | None = None
    lanes: Figure | None = None
    """Products that no matrix unit computes: fp32 without TF32."""


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Every figure that a device may have; `Device` has a property of the same name for each."""

    sm_count: Count | None = None
    clock_mhz: Figure | None = None
    board_power_w: Figure | None = None
    warp_size: Count | None = None
    peak_tflops: Peaks = Peaks()
    synchronous_mma_share: Fraction | None = None
    warp_schedulers_per_sm: Count | None = None
    load_store_units_per_sm: Count | None = None
    sfu_ops_per_clock_per_sm: Figure | None = None
    dram_bytes: Count | None = None
    dram_bandwidth_gbs: Figure | None = None
    dram_measured_gbs: Figure | None = None
    stream_efficiency: Fraction | None = None
    dram_bytes_per_clock_per_sm: Figure | None = None
    block_latency_us: Figure | None = None
    l2_bytes: Count | None = None
    l2_bandwidth_gbs: Figure | None = None
    sector_bytes: Count | None = None
    shared_memory_per_sm_bytes: Count | None = None
    shared_memory_per_block_bytes: Count | None = None
    shared_memory_reserved_per_block_bytes: Reserve | None = None
    registers_per_sm: Count | None = None
    registers_per_thread_max: Count | None = None
    accumulator_bytes_per_block: Count | None = None
    threads_per_sm: Count | None = None
    threads_per_block: Count | None = None
    blocks_per_sm: Count | None = None
    clusters: Count | None = None
    multicast_blocks: Count | None = None
    launch_us: Launches = Launches()
    library_share: Shares = Shares()
    """What a library's kernel sustains on large shapes, of the pipe's dense peak."""
    template_share: Shares = Shares()
    """Speed of a generated kernel (Triton) of the class, of the library's."""

    def at(self, field: str) -> AnyFigure | None:
        """Figure by dotted name, such as `launch_us.graph`; `field` is one of `FIELDS`."""
        group, _, part = field.partition(".")
        holder = getattr(self, group)
        return getattr(holder, part) if part else holder

    def flat(self) -> dict[str, AnyFigure]:
        """Every known figure by its dotted name, in schema order."""
        figures = {field: self.at(field) for field in FIELDS}
        return {field: figure for field, figure in figures.items() if figure is not None}


def nested(flat: Mapping[str, object]) -> dict[str, Any]:
    """Table as TOML nests it, from values by dotted name; undoes `Figures.flat`."""
    table: dict[str, Any] = {}
    for field, value in flat.items():
        group, _, part = field.partition(".")
        holder = table.setdefault(group, {}) if part else table
        holder[part or group] = value
    return table


_GROUPS = {
    "peak_tflops": Peaks,
    "launch_us": Launches,
    "library_share": Shares,
    "template_share": Shares,
}

FIELDS: tuple[str, ...] = tuple(
    f"{name}.{part}" if part else name
    for name in Figures.__struct_fields__
    for part in (_GROUPS[name].__struct_fields__ if name in _GROUPS else ("",))
)
"""Dotted name of every figure, in schema order."""
