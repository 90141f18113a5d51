"""Kernels whose ops share inputs but no grid: parts that run as block ranges side by side."""

from __future__ import annotations

from fuseledger.devices import Device
from fuseledger.graph.graph import Graph
from fuseledger.ledger.kernel import Kernel, Merge
from fuseledger.ledger.library_calls import Calls, Core
from fuseledger.ledger.nest import Nest, analyse
from fuseledger.ledger.price import Price, external_bytes


def components(nest: Nest) -> list[tuple[int, ...]]:
    """The parts of a kernel that run side by side, as block ranges of one grid.

    Sinks that walk nested sets of axes share a part: their tiles are one grid. Sinks with axes of
    their own on both sides (Q and K projections of one input) get a part each, and what they
    share inside the kernel is computed in both.
    """
    if nest.is_declared or nest.members != nest.positions or nest.again:
        return [nest.members]  # ops that follow lookups do not stand alone
    before: dict[int, list[int]] = {}
    feeds: set[int] = set()
    for edge in nest.edges:
        before.setdefault(edge.consumer, []).append(edge.producer)
        feeds.add(edge.producer)
    parts: list[tuple[set[str], list[int]]] = []
    for i in reversed(nest.positions):
        if i in feeds:
            continue
        axes = {a.name for a in nest.ops[i].axes if a.size > 1}
        for known, sinks in parts:
            if axes <= known or known <= axes:
                known |= axes
                sinks.append(i)
                break
        else:
            parts.append((axes, [i]))
    if len(parts) == 1:
        return [nest.members]
    return [_cone(sinks, before) for _, sinks in parts]


def parts_of(graph: Graph, kernel: Kernel) -> tuple[Kernel, ...]:
    """The parts of a kernel as kernels: the kernel itself where it is one nest."""
    if kernel.parts:
        return kernel.parts
    parts = components(analyse(graph, kernel.ops))
    if len(parts) == 1:
        return (kernel,)
    return tuple(Kernel(ops=ops, schedule=kernel.schedule) for ops in parts)


def _cone(sinks: list[int], before: dict[int, list[int]]) -> tuple[int, ...]:
    found: set[int] = set()
    pending = list(sinks)
    while pending:
        i = pending.pop()
        if i not in found:
            found.add(i)
            pending.extend(before.get(i, ()))
    return tuple(sorted(found))


def merge(nest: Nest, parts: list[tuple[int, ...]], prices: list[Price], device: Device) -> Price:
    """Prices of components side by side: shared inputs are read once."""
    together = sum(external_bytes(nest, device).values())
    shared = sum(p.read_bytes for p in prices) - together
    again = sum(nest.ops[i].flops + nest.ops[i].special_ops for part in parts for i in part)
    again -= sum(op.flops + op.special_ops for op in nest.ops.values())
    deepest = max(prices, key=lambda p: p.staged_bytes)
    merged = Price(
        tiles={n: t for p in prices for n, t in p.tiles.items()},
        walks=max(p.walks for p in prices),
        blocks=sum(p.blocks for p in prices),
        read_bytes=sum(p.read_bytes for p in prices) - max(0, shared),
        rewalked_bytes=sum(p.rewalked_bytes for p in prices),
        rewalked_per_block=max(p.rewalked_per_block for p in prices),
        write_bytes=sum(nest.graph.tensors[name].bytes for name in nest.outputs),
        partial_bytes=sum(p.partial_bytes for p in prices),
        parts=max(p.parts for p in prices),
        l2_bytes=sum(p.l2_bytes for p in prices),
        special_ops=sum(p.special_ops for p in prices),
        extra_flops=sum(p.extra_flops for p in prices) + again,
        held=max(prices, key=lambda p: p.register_bytes).held,
        staged=deepest.staged,
        shared_bytes=max(p.shared_bytes for p in prices),
        register_bytes=max(p.register_bytes for p in prices),
        pipeline=deepest.pipeline,
        warps=max(p.warps for p in prices),
        registers=max(p.registers for p in prices),
        spill_bytes=max(p.spill_bytes for p in prices),
        launches=1 + sum(p.launches - 1 for p in prices),
        merge=next((way for way in _MERGES if any(p.merge == way for p in prices)), None),
        merging_blocks=sum(p.merging_blocks for p in prices),
        blocks_per_sm=min(p.blocks_per_sm for p in prices),
        calls=_calls_side_by_side(prices),
    )
    for price in prices:
        for key, flops in price.flops.items():
            merged.flops[key] = merged.flops.get(key, 0.0) + flops
    return merged


_MERGES: tuple[Merge, ...] = ("launch", "last block", "readers")
"""From what delays the kernel's results most to what does least."""


def _calls_side_by_side(prices: list[Price]) -> Calls:
    """Kernels that run as one grid are generated; the class is the first one's that has one."""
    core: Core | None = next((p.calls.core for p in prices if p.calls.core), None)
    return Calls(core, None, "a library computes one product a call" if core else "")
