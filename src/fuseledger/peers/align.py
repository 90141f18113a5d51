"""Which of our ops a peer's kernel computes.

A compiler says of a kernel which nodes of the source it was made from, and says so of every kernel
that a node reaches: a convolution with its bias is named by the library call and by the kernel that
adds the bias. The rules below give each op to one kernel.
"""

from __future__ import annotations

from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Op
from fuseledger.ledger.library_calls import is_product
from fuseledger.peers.peer import PeerKernel
from fuseledger.peers.program import Program

LIBRARY_KINDS = frozenset({"extern", "template", "gemm", "conv", "attention"})
"""Kinds of kernels that multiply matrices."""


def ops_by_kernel(program: Program, kernels: tuple[PeerKernel, ...]) -> list[tuple[int, ...]]:
    """For each kernel the positions of the ops it computes, ascending; each op has one kernel.

    - A product of tensors belongs to the first library call that names its node.
    - A first other op of the same node belongs to the first generated kernel behind it that names
      the node, or to the call itself where there is none.
    - A later op (a norm's `apply`) belongs to the first kernel from there on that writes something
      of its result's size (partial sums of it are larger), else to the first that writes enough for
      it, else to the next one that names the node.
    """
    named: dict[str, list[int]] = {}
    for position, kernel in enumerate(kernels):
        for origin in kernel.origins:
            named.setdefault(origin, []).append(position)
    found: list[list[int]] = [[] for _ in kernels]
    at: dict[str, int] = {}
    for i, op in enumerate(program.graph.ops):
        node = program.made_by.get(op.name)
        places = named.get(node, []) if node is not None else []
        if node is None or not places:
            continue
        at[node] = _place(program, op, places, kernels, at.get(node))
        found[at[node]].append(i)
    return [tuple(group) for group in found]


def _place(
    program: Program, op: Op, places: list[int], kernels: tuple[PeerKernel, ...], before: int | None
) -> int:
    libraries = [p for p in places if kernels[p].kind in LIBRARY_KINDS]
    if is_product(op) or op.is_contraction or op.is_opaque:
        return libraries[0] if libraries else places[0]
    if before is None or kernels[before].kind in LIBRARY_KINDS:
        later = [p for p in places if p not in libraries and (before is None or p > before)]
        return later[0] if later else places[0] if before is None else before
    needed = sum(program.graph.tensors[write.tensor].bytes for write in op.writes)
    onward = [p for p in places if p >= before]
    for place in onward:
        if needed in kernels[place].writes.values():
            return place
    for place in onward:
        if sum(kernels[place].writes.values()) >= needed:
            return place
    return onward[1] if len(onward) > 1 else before


def _unnamed_before(kernels: tuple[PeerKernel, ...], places: list[int]) -> list[int]:
    """Library calls that name no op, of those whose results some kernels read."""
    read = {name for place in places for name in kernels[place].reads}
    return [
        p
        for p, kernel in enumerate(kernels)
        if kernel.kind in LIBRARY_KINDS
        and not kernel.origins
        and not read.isdisjoint(kernel.writes)
    ]


def ops_by_name(graph: Graph, kernels: tuple[PeerKernel, ...]) -> list[tuple[int, ...]]:
    """The same for kernels whose origins are our ops; each op has one kernel, or none.

    A compiler computes an op's parts in several kernels and copies cheap ops into each reader.

    - A product of tensors belongs to the first library call that names it, else to one without a
      name whose result such a kernel reads (parts of a split product, summed by their reader).
    - Any other op belongs to the kernel that moves most bytes of those that name it, the last of
      equals: there its result is written, or used up.
    - An op that no kernel names went into the kernel of what it reads (an activation inside a
      library's convolution).
    """
    named: dict[str, list[int]] = {}
    for position, kernel in enumerate(kernels):
        for origin in kernel.origins:
            named.setdefault(origin, []).append(position)
    home: dict[int, int] = {}
    finished: dict[int, int] = {}
    for i, op in enumerate(graph.ops):
        places = named.get(op.name, [])
        before = [finished[j] for j in graph.predecessors[i] if j in finished]
        if places:
            finished[i] = home[i] = max(places, key=lambda p: (kernels[p].bytes, p))
        elif before:
            finished[i] = home[i] = max(before)
        if is_product(op) or op.is_contraction:
            libraries = [p for p in places if kernels[p].kind in LIBRARY_KINDS]
            if libraries:
                finished[i] = home[i] = libraries[0]
            elif parts := _unnamed_before(kernels, places):
                home[i] = parts[0]
    found: list[list[int]] = [[] for _ in kernels]
    for i, position in home.items():
        found[position].append(i)
    return [tuple(group) for group in found]
