"""TorchInductor's own plan as kernels of the library clock.

A library call has the shape of the eager kernel that it stands for; a generated kernel has the
loops that its source states: rows, length of a reduced row, one tiled axis or two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from fuseledger.clock.library_kernel import LibraryKernel, Stream
from fuseledger.peers.eager import EagerPlan
from fuseledger.peers.peer import CHANNELS_LAST, PeerKernel, PeerPlan

LIBRARY = frozenset({"gemm", "conv", "attention", "rnn"})
"""Kinds of eager kernels that multiply."""
_LENGTH = re.compile(r"^ +(?P<axis>[xyz]|r\d_)numel = (?P<length>\d+)$", re.M)
_ACROSS = re.compile(r"reduction_hint=ReductionHint\.OUTER")


def inductor_kernels(plan: PeerPlan, eager: EagerPlan) -> list[LibraryKernel]:
    """The plan's kernels in launch order; `eager` is the plan of the same calls in eager mode."""
    made: list[LibraryKernel] = []
    order = {node: place for place, node in enumerate(eager.by_node)}
    for kernel in plan.kernels:
        nodes = sorted((node for node in kernel.origins if node in order), key=order.__getitem__)
        stands_for = [each for node in nodes for each in eager.by_node[node]]
        if kernel.kind == "triton" or not stands_for:
            made.append(_generated(kernel, stands_for))
        else:
            made.extend(_called(kernel, stands_for))
    return made


def _called(kernel: PeerKernel, stands_for: Sequence[LibraryKernel]) -> list[LibraryKernel]:
    """A library call: the product among the eager kernels of its nodes, else all of them.

    TorchInductor lists with its node the nodes that made what it reads, a product before it too.
    Where the call is named like one of the nodes (`torch.ops.aten.topk.default`) it is that one's;
    else (`extern_kernels.addmm`) the last product is its own.
    """
    reads, writes = _streams(kernel.reads), _streams(kernel.writes)
    named = [each for each in stands_for if each.op.partition(" ")[0] in kernel.name]
    stands_for = named or stands_for
    product = next((each for each in reversed(stands_for) if each.kind in LIBRARY), None)
    if product is None:
        *before, last = replace(stands_for[0], reads=reads), *stands_for[1:]
        return [*before, replace(last, writes=writes)]
    shape, pipe = product.shape, product.pipe
    if product.kind == "conv" and kernel.config == CHANNELS_LAST:
        # a depthwise one runs in cuDNN then (`Convolution.cpp`, `use_cudnn_depthwise`)
        shape, pipe = {**shape, "channels_last": 1.0}, "tf32" if pipe == "lanes" else pipe
    return [replace(product, reads=reads, writes=writes, shape=shape, pipe=pipe)]


def _generated(kernel: PeerKernel, stands_for: Sequence[LibraryKernel]) -> LibraryKernel:
    source = kernel.source or ""
    lengths = {m["axis"]: int(m["length"]) for m in _LENGTH.finditer(source)}
    rows = math.prod(n for axis, n in lengths.items() if axis[0] != "r")
    length = math.prod(n for axis, n in lengths.items() if axis[0] == "r")
    reduces = any(axis[0] == "r" for axis in lengths)
    windows = [each.shape["window"] for each in stands_for if each.kind == "pool"]
    ops = float(len(kernel.aten))
    return LibraryKernel(
        name=kernel.name, op=" + ".join(kernel.aten), kind="fused", reads=_streams(kernel.reads),
        writes=_streams(kernel.writes), flops=float(rows * length) * ops,
        shape={
            "rows": float(rows) if reduces else 0.0, "length": float(length) if reduces else 0.0,
            "inner": float(_ACROSS.search(source) is None), "window": max(windows, default=1.0),
            "reduces": float(reduces), "ops": ops, "scans": float("_scan(" in source),
            "split": 0.0, "transposes": float("y" in lengths and not reduces),
        },
    )  # fmt: skip


def _streams(buffers: Mapping[str, int]) -> tuple[Stream, ...]:
    return tuple(Stream(name, size) for name, size in buffers.items())
