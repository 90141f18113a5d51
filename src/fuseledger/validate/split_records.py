"""Records of split-K and split-KV, priced by the schedules and the clock of `plan`.

Nothing is fitted: each option is the kernel that its source describes, unsplit or in parts.
"""

from __future__ import annotations

import re

from msgspec import Struct

from fuseledger.clock.library_kernel import LibraryKernel, Stream
from fuseledger.devices import Device
from fuseledger.planner.splits import Parted
from fuseledger.validate.records import Record
from fuseledger.verdict.attention import Attention
from fuseledger.verdict.gemm import Gemm
from fuseledger.verdict.split import Pricing

FAMILIES = frozenset(("gemm_split_k", "decode_attention"))
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "fp8": "fp8_e4m3"}
CLUSTER_MAX = 8
"""Blocks of the largest portable cluster."""
_FACTOR = re.compile(r"split=([1-9]\d*)")


class PricedOption(Struct, frozen=True):
    """One option's time in µs, and the kernel as a naive roofline sees it."""

    time_us: float
    kernel: LibraryKernel


def priced_options(record: Record, device: Device) -> list[PricedOption]:
    """The first two options of a record. Raises ValueError naming a parameter that is wrong."""
    make = _gemm if record.family == "gemm_split_k" else _attention
    return make(record, device)


def _gemm(record: Record, device: Device) -> list[PricedOption]:
    """Split-K; DeepGEMM chooses its tile by waves and sums parts inside a cluster."""
    m, n, k, dtype = *map(record.size, "mnk"), _dtype(record, "dtype")
    in_cluster = "DSMEM" in (record.options[1].impl or "")
    sms = device.sm_count or 1
    tile = _deepgemm_tile(m, n, sms) if in_cluster else None
    gemm = Gemm(M=m, N=n, K=k, dtype=dtype, tile=tile)
    pricing = Pricing(gemm.split(), device, "graph", "library")
    whole = pricing.parts.at(1)
    most = min(CLUSTER_MAX, sms // whole.price.blocks) if in_cluster else pricing.parts.most()
    times: list[float] = []
    for option in record.options[:2]:
        factor = _factor(option.name, record)
        if factor is None:
            found = [pricing.parts.at(s) for s in range(1, max(1, most) + 1)] if in_cluster else [
                whole, pricing.parts.at(max(2, pricing.parts.best()))
            ]  # fmt: skip
            times.append(min(_time_us(each, in_cluster=in_cluster) for each in found))
        else:
            times.append(_time_us(pricing.parts.at(factor), in_cluster=in_cluster))
    kernel = LibraryKernel(
        name="GEMM", op="gemm_split_k", kind="gemm", flops=2.0 * m * n * k, pipe="half",
        reads=(Stream("operands", whole.price.read_bytes),),
        writes=(Stream("result", whole.price.write_bytes),),
    )  # fmt: skip
    return [PricedOption(us, kernel) for us in times]


def _deepgemm_tile(m: int, n: int, sms: int) -> tuple[int, int]:
    """The least tile of a warp group, 64 rows by steps of 16, whose grid is one wave.

    DeepGEMM, jit_kernels `get_best_configs`: fewest waves, then the best use of the last one.
    """
    rows = 64
    for columns in range(16, 257, 16):
        if -(-m // rows) * -(-n // columns) <= sms:
            return rows, columns
    return 128, 128


def _attention(record: Record, device: Device) -> list[PricedOption]:
    """Split-KV of the libraries' attention; outside a graph the host's dispatch may take longer."""
    batch = record.size("batch")
    question = Attention(
        heads=batch * record.size("q_heads"), kv=record.size("kv_len"), d=record.size("head_dim"),
        queries=record.size("q_len"), kv_heads=batch * record.size("kv_heads"),
        dtype=_dtype(record, "kv_dtype" if "kv_dtype" in record.params else "dtype"),
    )  # fmt: skip
    in_graph = record.timing == "cuda-graph"
    pricing = Pricing(question.split(), device, "graph" if in_graph else "queued", "library")
    floor_us = 0.0 if in_graph else device.launch_us("eager")
    whole = pricing.parts.at(1)
    times: list[float] = []
    for option in record.options[:2]:
        factor = _factor(option.name, record)
        parted = pricing.parts.at(max(2, pricing.parts.best()) if factor is None else factor)
        times.append(max(parted.time.total_us, parted.price.launches * floor_us))
    kernel = LibraryKernel(
        name="attention", op="decode_attention", kind="attention", pipe="half",
        flops=sum(whole.price.flops.values()), writes=(Stream("out", whole.price.write_bytes),),
        reads=(Stream("q, k, v", whole.price.read_bytes),),
    )  # fmt: skip
    return [PricedOption(us, kernel) for us in times]


def _dtype(record: Record, name: str) -> str:
    given = str(record.params.get(name))
    if given not in DTYPES:
        raise ValueError(f"params.{name} {given} is none of {', '.join(DTYPES)}")
    return DTYPES[given]


def _factor(name: str, record: Record) -> int | None:
    """The option's factor by its name or the record's parameters; None where the source chooses.

    It does where FlashAttention is asked for 0 splits, too.
    """
    found = _FACTOR.fullmatch(name)
    if found is not None:
        return int(found[1])
    return record.size("splits") if name == "split=S" and "splits" in record.params else None


def _time_us(parted: Parted, *, in_cluster: bool) -> float:
    """Time of a kernel; parts that a cluster sums need no second launch and no trip to memory."""
    time = parted.time
    if not in_cluster or parted.price.launches == 1:
        return time.total_us
    return time.total_us - time.launch_us / 2 - time.combine_us
