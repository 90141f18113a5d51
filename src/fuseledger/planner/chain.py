"""Chains of declared ops, cut exactly: the best of 2ⁿ⁻¹ cuts in n steps.

The figures are those of `ledger/declared.py` and `clock/textbook.py`, taken for all kernels that
end at one stage at once: prefix sums give their bytes, FLOPs and registers. Hence O(n²) numbers,
but only n vector operations.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fuseledger.clock.textbook import SPILL_PENALTY
from fuseledger.devices import Device
from fuseledger.errors import CutError
from fuseledger.graph.graph import Graph

Vector = NDArray[Any]
"""One number for each stage that a kernel may start at."""
Cost = Callable[[Vector, Vector], Vector]
"""(bytes, time in µs) of kernels → what the cut minimises."""


class Chain(Struct, frozen=True, kw_only=True):
    """A chain's figures; entry i of a prefix sums the stages before i."""

    inner: Vector
    """Bytes that stage i reads from stage i-1; 0 for the first."""
    external: Vector
    """Prefix sums of the bytes that stages read from outside."""
    out: Vector
    """Bytes that each stage writes."""
    flops: Vector
    """Prefix sums."""
    registers: Vector
    """Prefix sums."""
    spill_penalty: float

    @staticmethod
    def of(graph: Graph) -> Chain | None:
        """The figures of a graph of declared ops in a row, or None where it is anything else."""
        if not graph.ops or not _is_chain(graph):
            return None
        declared = [op.attributes for op in graph.ops]
        penalties = {d.get("spill_penalty", SPILL_PENALTY) for d in declared}
        if len(penalties) != 1 or any("grid" in d or "launches" in d for d in declared):
            return None
        external = [
            sum(
                graph.tensors[r.tensor].bytes
                for r in op.reads
                if graph.tensors[r.tensor].is_external
            )
            for op in graph.ops
        ]
        out = np.array([graph.tensors[op.writes[0].tensor].bytes for op in graph.ops], np.int64)
        return Chain(
            inner=np.concatenate(([0], out[:-1])),
            external=_prefix(np.array(external, np.int64)),
            out=out,
            flops=_prefix(np.array([float(d.get("flops", 0)) for d in declared])),
            registers=_prefix(np.array([int(d.get("registers", 0)) for d in declared], np.int64)),
            spill_penalty=penalties.pop(),
        )

    def __len__(self) -> int:
        return len(self.out)

    def kernels_ending_at(self, last: int, device: Device) -> tuple[Vector, Vector]:
        """(bytes, time in µs) of the kernels from each stage 0…last up to stage `last`."""
        start = slice(0, last + 1)
        moved = self.inner[start] + self.external[last + 1] - self.external[start] + self.out[last]
        flops = self.flops[last + 1] - self.flops[start]
        live = self.registers[last + 1] - self.registers[start]
        memory_us: Vector = moved / device.require("stream_gbs") / 1e3
        limit = device.registers_per_thread_max
        if limit is not None:
            memory_us = memory_us * np.where(live > limit, self.spill_penalty, 1.0)
        compute_us = flops / device.peak_for("fp16", matrix=True) * 1e6
        return moved, np.maximum(memory_us, compute_us) + device.launch_us("queued")


def best_cut(graph: Graph, device: Device, cost: Cost | None = None) -> list[int]:
    """Lengths of the best cut's kernels: least time, or least `cost` where given.

    Exact for chains of any length. Of equal cuts it takes the one with the longest last kernel.
    Raises CutError where the graph is no chain of declared ops.
    """
    chain = Chain.of(graph)
    if chain is None:
        raise CutError(
            f"{graph.name} is no chain of declared ops: each must read the one before it"
        )
    return cut_chain(chain, device, cost)[0]


def cut_chain(chain: Chain, device: Device, cost: Cost | None = None) -> tuple[list[int], float]:
    """The best cut of a chain and its cost: the least over all last kernels, stage by stage."""
    cost = cost or (lambda _, time_us: time_us)
    least = np.zeros(len(chain) + 1)
    start_of = np.zeros(len(chain), np.int64)
    for last in range(len(chain)):
        totals = least[: last + 1] + cost(*chain.kernels_ending_at(last, device))
        start_of[last] = np.argmin(totals)
        least[last + 1] = totals[start_of[last]]
    ends = [len(chain)]
    while ends[-1]:
        ends.append(int(start_of[ends[-1] - 1]))
    lengths = [after - before for after, before in pairwise(ends)]
    return lengths[::-1], float(least[-1])


def _prefix(values: Vector) -> Vector:
    return np.concatenate((np.zeros(1, values.dtype), np.cumsum(values)))


def _is_chain(graph: Graph) -> bool:
    """Whether each op is declared, reads the one before it, and shares nothing else."""
    shared = any(len(readers) > 1 for readers in graph.consumers.values())
    in_a_row = all(
        graph.predecessors[i] == ((i - 1,) if i else ()) and len(op.writes) == 1
        for i, op in enumerate(graph.ops)
    )
    ends_there = graph.outputs == (graph.ops[-1].writes[0].tensor,) if in_a_row else False
    return ends_there and not shared and all(op.kind == "declared" for op in graph.ops)
