"""Eager PyTorch as a peer: its kernel table where the source has ATen nodes, else one an op."""

from __future__ import annotations

import time

from fuseledger.clock.library_kernel import Stream
from fuseledger.graph.graph import Graph
from fuseledger.peers.eager import eager_plan
from fuseledger.peers.peer import PeerKernel, PeerPlan
from fuseledger.peers.program import Program

NAME = "eager"


def eager_peer(program: Program) -> PeerPlan:
    """The kernels that eager PyTorch launches for a program."""
    started = time.perf_counter()
    if program.aten is None:
        kernels = one_an_op(program.graph)
        notes = ("one kernel an op: the source has no ATen nodes to look up",)
    else:
        found = eager_plan(program.aten)
        kernels = tuple(
            PeerKernel(
                name=kernel.name, kind=kernel.kind, aten=(kernel.op,), origins=(node,),
                reads=_bytes(kernel.reads), writes=_bytes(kernel.writes),
                launches=kernel.launches,
            )
            for node, launched in found.by_node.items()
            for kernel in launched
        )  # fmt: skip
        notes = tuple(f"{op}: one pass over its tensors is assumed" for op in found.unknown)
    seconds = time.perf_counter() - started
    return PeerPlan(
        name=NAME, version=None, status="planned", kernels=kernels, seconds=seconds, notes=notes
    )


def one_an_op(graph: Graph) -> tuple[PeerKernel, ...]:
    """A kernel for each op: every tensor that it touches once."""
    kernels: list[PeerKernel] = []
    for op in graph.ops:
        touched = {read.tensor: graph.tensors[read.tensor] for read in op.reads}
        kernels.append(
            PeerKernel(
                name=op.function, kind="gemm" if op.is_contraction else "pointwise",
                aten=(op.title,), origins=(op.name,),
                reads={
                    name: min(tensor.bytes, graph.touched_bytes(name))
                    for name, tensor in touched.items()
                },
                writes={w.tensor: graph.tensors[w.tensor].bytes for w in op.writes},
            )
        )  # fmt: skip
    return tuple(kernels)


def _bytes(streams: tuple[Stream, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for stream in streams:
        found[stream.storage] = found.get(stream.storage, 0) + stream.bytes
    return found
