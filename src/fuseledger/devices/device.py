"""A GPU as data: clocks, units, memories, limits and launch costs, each figure with its source."""

from typing import Annotated, Literal, get_args, overload

import msgspec

from fuseledger.devices.figure import (
    FIELDS,
    AnyFigure,
    Count,
    Figure,
    Figures,
    Reserve,
    Text,
)
from fuseledger.errors import DeviceError

__all__ = ["Device", "Figure", "LaunchMode", "Pipe", "Vendor"]

Vendor = Literal["nvidia", "amd", "textbook"]
LaunchMode = Literal["eager", "queued", "graph"]
Pipe = Literal[
    "tensor_fp4",
    "tensor_fp8",
    "tensor_int8",
    "tensor_fp16",
    "tensor_bf16",
    "tensor_tf32",
    "tensor_fp32",
    "tensor_fp64",
    "fma_fp16",
    "fma_fp32",
    "fma_fp64",
]
CountField = Literal[
    "sm_count",
    "warp_size",
    "dram_bytes",
    "l2_bytes",
    "sector_bytes",
    "warp_schedulers_per_sm",
    "load_store_units_per_sm",
    "shared_memory_per_sm_bytes",
    "shared_memory_per_block_bytes",
    "shared_memory_reserved_per_block_bytes",
    "registers_per_sm",
    "registers_per_thread_max",
    "accumulator_bytes_per_block",
    "threads_per_sm",
    "threads_per_block",
    "blocks_per_sm",
    "clusters",
    "multicast_blocks",
]
_PIPES: tuple[str, ...] = get_args(Pipe)
_LAUNCH_MODES: tuple[str, ...] = get_args(LaunchMode)
_DERIVED = ("stream_gbs", "special_ops_per_s")

ARCH_PATTERN = r"^(sm_[0-9]+[a-z]?|gfx[0-9a-f]+|textbook)$"

Arch = Annotated[str, msgspec.Meta(pattern=ARCH_PATTERN)]

_LANES: tuple[Pipe, ...] = ("fma_fp32",)
_FP32: tuple[Pipe, ...] = ("tensor_fp32", "fma_fp32")
_HALF: tuple[Pipe, ...] = ("tensor_fp16", "fma_fp16", *_FP32)
_FP8: tuple[Pipe, ...] = ("tensor_fp8", *_HALF)

# Pipes that can compute a matrix product of a dtype, fastest first. A dtype never borrows a pipe
# of less range: bf16 without its own units is computed in fp32, fp64 only in fp64.
_MATRIX_PIPES: dict[str, tuple[Pipe, ...]] = {
    "fp64": ("tensor_fp64", "fma_fp64"),
    "fp32": _FP32,
    "fp16": _HALF,
    "bf16": ("tensor_bf16", *_FP32),
    "fp8": _FP8,
    "fp8_e4m3": _FP8,
    "fp8_e5m2": _FP8,
    "fp4": ("tensor_fp4", *_FP8),
    "int8": ("tensor_int8", *_HALF),
    "uint8": ("tensor_int8", *_HALF),
    "int16": _LANES,
    "int32": _LANES,
    "int64": _LANES,
    "bool": _LANES,
}


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU as a kernel sees it; every property is `None` where the figure is unknown.

    "SM" stands for AMD's compute unit too, "block" for its workgroup, "warp" for its wavefront,
    "shared memory" for its LDS.
    """

    name: Text
    """What the catalog calls it, such as `h100-sxm`."""
    title: Text
    """What its vendor calls it."""
    vendor: Vendor
    arch: Arch
    """Compiler target: `sm_90`, `gfx942`, or `textbook`."""
    figures: Figures = Figures()

    @property
    def sm_count(self) -> int | None:
        """SMs, or compute units, that one kernel can use."""
        return _int(self.figures.sm_count)

    @property
    def clock_mhz(self) -> float | None:
        """Boost clock in MHz, the one that the peak rates are given at."""
        return _float(self.figures.clock_mhz)

    @property
    def board_power_w(self) -> float | None:
        """Power limit of the board in W, which the boost clock has to stay within."""
        return _float(self.figures.board_power_w)

    @property
    def warp_size(self) -> int | None:
        """Threads that execute one instruction together."""
        return _int(self.figures.warp_size)

    @property
    def synchronous_mma_share(self) -> float | None:
        """Share of the matrix units' dense peak that `mma.sync` reaches, where that is not all."""
        figure = self.figures.synchronous_mma_share
        return None if figure is None else figure.value

    @property
    def warp_schedulers_per_sm(self) -> int | None:
        """Schedulers of one SM, each of which issues one instruction of one warp a clock."""
        return _int(self.figures.warp_schedulers_per_sm)

    @property
    def load_store_units_per_sm(self) -> int | None:
        """Lanes of loads and stores that one SM starts per clock."""
        return _int(self.figures.load_store_units_per_sm)

    @property
    def sfu_ops_per_clock_per_sm(self) -> float | None:
        """Special functions (exp2, log2, rsqrt, sin …) started per clock in one SM."""
        return _float(self.figures.sfu_ops_per_clock_per_sm)

    @property
    def special_ops_per_s(self) -> float | None:
        """Special functions per second: units × SMs × clock."""
        per_clock, sms, clock_mhz = self.sfu_ops_per_clock_per_sm, self.sm_count, self.clock_mhz
        if per_clock is None or sms is None or clock_mhz is None:
            return None
        return per_clock * sms * clock_mhz * 1e6

    @property
    def dram_bytes(self) -> int | None:
        """Capacity of device memory in bytes, a datasheet's GB taken as 10⁹."""
        return _int(self.figures.dram_bytes)

    @property
    def dram_bandwidth_gbs(self) -> float | None:
        """Datasheet bandwidth of device memory in GB/s (10⁹ bytes)."""
        return _float(self.figures.dram_bandwidth_gbs)

    @property
    def dram_measured_gbs(self) -> float | None:
        """Bandwidth that a copy of large arrays (one read, one write) reached, in GB/s."""
        return _float(self.figures.dram_measured_gbs)

    @property
    def stream_efficiency(self) -> float | None:
        """Share of the datasheet bandwidth that a stream reaches where none was measured."""
        figure = self.figures.stream_efficiency
        return None if figure is None else figure.value

    @property
    def stream_gbs(self) -> float | None:
        """Bandwidth to price DRAM bytes at, in GB/s: measured, else datasheet × efficiency."""
        if self.dram_measured_gbs is not None:
            return self.dram_measured_gbs
        if self.dram_bandwidth_gbs is None or self.stream_efficiency is None:
            return None
        return self.dram_bandwidth_gbs * self.stream_efficiency

    @property
    def dram_bytes_per_clock_per_sm(self) -> float | None:
        """Bytes that one SM can draw from DRAM per clock: it takes blocks to saturate DRAM."""
        return _float(self.figures.dram_bytes_per_clock_per_sm)

    @property
    def block_latency_us(self) -> float | None:
        """Time in µs of a block that does next to nothing: its start, a read and a write-back."""
        return _float(self.figures.block_latency_us)

    @property
    def l2_bytes(self) -> int | None:
        """Capacity in bytes of the last cache before DRAM that all SMs share: L2 on NVIDIA."""
        return _int(self.figures.l2_bytes)

    @property
    def l2_bandwidth_gbs(self) -> float | None:
        """Bandwidth that reads of an array resident in that cache reached, in GB/s."""
        return _float(self.figures.l2_bandwidth_gbs)

    @property
    def sector_bytes(self) -> int | None:
        """Smallest piece of DRAM that a read fetches, in bytes."""
        return _int(self.figures.sector_bytes)

    @property
    def shared_memory_per_sm_bytes(self) -> int | None:
        """Shared memory of one SM in bytes, at the largest carve-out."""
        return _int(self.figures.shared_memory_per_sm_bytes)

    @property
    def shared_memory_per_block_bytes(self) -> int | None:
        """Most shared memory that one block may opt in to, in bytes."""
        return _int(self.figures.shared_memory_per_block_bytes)

    @property
    def shared_memory_reserved_per_block_bytes(self) -> int | None:
        """Shared memory that the system takes for each resident block, in bytes; may be 0."""
        return _int(self.figures.shared_memory_reserved_per_block_bytes)

    @property
    def registers_per_sm(self) -> int | None:
        """32-bit registers of one SM (on AMD: vector registers × lanes)."""
        return _int(self.figures.registers_per_sm)

    @property
    def registers_per_thread_max(self) -> int | None:
        """32-bit registers that one thread can name before it spills."""
        return _int(self.figures.registers_per_thread_max)

    @property
    def accumulator_bytes_per_block(self) -> int | None:
        """Register bytes that one block may hold as accumulators."""
        return _int(self.figures.accumulator_bytes_per_block)

    @property
    def threads_per_sm(self) -> int | None:
        """Threads resident in one SM at most."""
        return _int(self.figures.threads_per_sm)

    @property
    def threads_per_block(self) -> int | None:
        """Threads of one block at most."""
        return _int(self.figures.threads_per_block)

    @property
    def blocks_per_sm(self) -> int | None:
        """Blocks resident in one SM at most."""
        return _int(self.figures.blocks_per_sm)

    @property
    def clusters(self) -> int | None:
        """Blocks of the largest portable cluster; 1 where blocks cannot share memory."""
        return _int(self.figures.clusters)

    @property
    def multicast_blocks(self) -> int | None:
        """Blocks of a portable cluster that one load from L2 serves; 1 where each loads its own."""
        return _int(self.figures.multicast_blocks)

    def peak_tflops(self, pipe: Pipe | str) -> float | None:
        """Dense peak of one pipe in TFLOP/s (TOPS for int8) at the boost clock."""
        if pipe not in _PIPES:
            raise DeviceError(f"unknown pipe {pipe!r}: one of {', '.join(_PIPES)}")
        return _float(getattr(self.figures.peak_tflops, pipe))

    def peak_for(self, dtype: str, *, matrix: bool, tf32: bool = False) -> float:
        """Peak in FLOP/s for arithmetic on a dtype, on the fastest pipe that this device has.

        A matrix product falls back to the next slower pipe able to compute it (fp8 without fp8
        units runs on those of fp16). A product of fp32 keeps full precision, as in PyTorch,
        unless `tf32`. Outside matrix products every dtype but fp64 is priced on the fp32 lanes:
        compilers compute half precision there, and integer lanes are no faster.

        Raises `DeviceError` when the dtype is unknown or the device states no such pipe.
        """
        return self.require(f"peak_tflops.{self.pipe_for(dtype, matrix=matrix, tf32=tf32)}") * 1e12

    def pipe_for(self, dtype: str, *, matrix: bool, tf32: bool = False) -> str:
        """That pipe: `tensor_fp16`, `fma_fp32`, … Raises as `peak_for` does."""
        if dtype not in _MATRIX_PIPES:
            raise DeviceError(f"unknown dtype {dtype!r}: one of {', '.join(_MATRIX_PIPES)}")
        pipes = _pipes(dtype, matrix=matrix, tf32=tf32)
        for pipe in pipes:
            if self.peak_tflops(pipe) is not None:
                return pipe
        raise DeviceError(
            f"device {self.name} states no peak for {dtype}: "
            f"its file needs one of {', '.join(f'peak_tflops.{pipe}' for pipe in pipes)}"
        )

    def launch_us(self, mode: LaunchMode | str) -> float:
        """Cost of one launch in µs: `eager`, `queued` or `graph`.

        Raises `DeviceError` when the mode is unknown or the device states no such cost.
        """
        if mode not in _LAUNCH_MODES:
            raise DeviceError(f"unknown launch mode {mode!r}: one of {', '.join(_LAUNCH_MODES)}")
        return self.require(f"launch_us.{mode}")

    def library_share(self, core: str) -> float:
        """Share of the dense peak that a library's kernel of a class sustains; 1 where unknown.

        Classes are `gemm`, `conv`, `attention` and `lanes`, any of these in fp32 where no matrix
        unit takes part; one that is unknown is taken to be as `gemm`.
        """
        return self._share("library_share", core)

    def template_share(self, core: str) -> float:
        """Speed of a generated kernel of a class over the library's; 1 where unknown."""
        return self._share("template_share", core)

    def _share(self, group: str, core: str) -> float:
        found = self.figure(f"{group}.{core}") or self.figure(f"{group}.gemm")
        return 1.0 if found is None else found.value

    @overload
    def require(self, field: CountField) -> int: ...
    @overload
    def require(self, field: str) -> float: ...
    def require(self, field: str) -> float:
        """Value of a figure or derived figure by name, such as `l2_bytes` or `launch_us.graph`.

        Raises `DeviceError`, naming the device and the field, when it is unknown.
        """
        if field in _DERIVED:
            value: float | None = getattr(self, field)
        else:
            figure = self.figure(field)
            value = None if figure is None else figure.value
        if value is None:
            raise DeviceError(f"device {self.name} has no figure for {field}: add it to its file")
        return value

    def figure(self, field: str) -> AnyFigure | None:
        """Figure with its source by dotted name, or `None` where it is unknown.

        Raises `DeviceError` when no device has a figure of that name.
        """
        if field not in FIELDS:
            raise DeviceError(f"no device has a figure named {field!r}")
        return self.figures.at(field)


def _pipes(dtype: str, *, matrix: bool, tf32: bool) -> tuple[Pipe, ...]:
    if not matrix:
        return ("fma_fp64",) if dtype == "fp64" else _LANES
    if dtype == "fp32" and tf32:
        return ("tensor_tf32", *_FP32)
    return _MATRIX_PIPES[dtype]


def _int(figure: Count | Reserve | None) -> int | None:
    return None if figure is None else figure.value


def _float(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value
