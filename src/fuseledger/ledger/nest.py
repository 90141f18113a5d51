"""The loop nest of a kernel: what its ops share, before any schedule is chosen.

From the ops' axes alone follows which axes may be put on the grid, which results a grid axis
makes partial (R3), and which tensors are read both before and after a reduction over one of their
axes, so that they must be held whole or walked again (R2).
"""

from __future__ import annotations

from collections.abc import Set

from msgspec import Struct, field

from fuseledger.graph.graph import Graph
from fuseledger.graph.lookups import followed
from fuseledger.graph.op import Access, Op
from fuseledger.graph.tensor import Tensor


class Edge(Struct):
    """A tensor made and read inside the kernel."""

    tensor: Tensor
    producer: int
    consumer: int
    access: Access
    is_linked: bool
    """Whether the consumer walks other axes than the tensor's: windows, slices, transposes."""


class Nest(Struct):
    """What the schedule search needs to know of a set of ops."""

    graph: Graph
    """With the tensors that selections make."""
    members: tuple[int, ...]
    """Positions of all ops of the kernel."""
    positions: tuple[int, ...]
    """Of those that run: without ops whose results are wanted at looked-up places alone, and with
    selections."""
    ops: dict[int, Op]
    """Position → op, as it runs, producers first; see `graph/lookups.py`."""
    edges: list[Edge]
    external: dict[str, list[tuple[int, Access]]]
    """Tensors read from outside → the reads."""
    outputs: list[str]
    """Tensors written to memory: graph outputs and what other kernels read."""
    sizes: dict[str, int]
    open_axes: tuple[str, ...] = ()
    """Axes that the grid may tile: walked by a sink and reduced by nobody with a reader here."""
    split_axes: frozenset[str] = frozenset()
    """Open axes that a sink reduces: on the grid they make its result partial."""
    carried: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Tensor → axes along which it is read again after a reduction over them."""
    earlier: frozenset[int] = frozenset()
    """Statistics over an axis of something carried, which its last walk finds made."""
    held_through: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Accumulator → axes it holds whole because a shared loop runs outside them."""
    rescaled: frozenset[int] = frozenset()
    """Sums that are rescaled while a tensor is online; see `online.py`."""
    again: float = 0.0
    """Operations that following lookups adds: what is computed at looked-up places beside its own
    loop."""
    veto: str | None = None
    """Why these ops can share no kernel at all."""

    @property
    def is_declared(self) -> bool:
        """Whether the ops bring declared accounts and no loop nest."""
        return any(op.kind == "declared" for op in self.ops.values())

    @property
    def is_opaque(self) -> bool:
        """Whether it holds an op of unknown kind, which has no loop nest either."""
        return any(op.is_opaque for op in self.ops.values())


def analyse(source: Graph, positions: tuple[int, ...]) -> Nest:
    """The nest of the ops of a graph at `positions` (ascending)."""
    ops = {i: source.ops[i] for i in positions}
    graph, members, again = source, positions, 0.0
    if len(positions) > 1 and any(op.looks_up for op in ops.values()):
        graph, ops, again = followed(source, ops)
        positions = tuple(ops)
    nest = Nest(
        graph=graph,
        members=members,
        positions=positions,
        ops=ops,
        edges=[],
        external={},
        outputs=[],
        sizes={a.name: a.size for op in ops.values() for a in op.axes},
        again=again,
    )
    made = {w.tensor: i for i, op in ops.items() for w in op.writes}
    _connect(nest, made, source)
    if len(positions) > 1 and nest.is_opaque:
        nest.veto = "an op of unknown kind is a barrier"
    if nest.is_declared or nest.veto:
        return nest
    fed = {edge.producer for edge in nest.edges}
    _open_axes(nest, fed)
    if nest.is_opaque:
        nest.open_axes = ()
    elif len(positions) > 1:
        _carry(nest)
        _hold(nest)
    return nest


def cone(nest: Nest) -> frozenset[int]:
    """Ops that must run again when carried tensors are walked twice."""
    makers = {edge.tensor.name: edge.producer for edge in nest.edges}
    return _closure([makers[name] for name in nest.carried if name in makers], _producers(nest))


def rewalked(nest: Nest) -> frozenset[str]:
    """External tensors that one more walk over the carried tensors reads again.

    What lies along a block's own axes alone (a bias of its columns) stays where it is.
    """
    again = cone(nest)
    carried = {axis for axes in nest.carried.values() for axis in axes}
    still = set(nest.open_axes) - carried
    return frozenset(
        name
        for name, reads in nest.external.items()
        if name in nest.carried
        or any(i in again and not still.issuperset(a.axes) for i, a in reads)
    )


def _connect(nest: Nest, made: dict[str, int], source: Graph) -> None:
    inside = frozenset(nest.members)
    for i, op in nest.ops.items():
        for access in op.reads:
            if access.tensor not in made:
                nest.external.setdefault(access.tensor, []).append((i, access))
                continue
            tensor = nest.graph.tensors[access.tensor]
            if access.is_lookup:
                nest.veto = f"{op.name} looks {tensor.name} up by value: it must be whole in memory"
            is_linked = access.plain != tensor.axis_names
            nest.edges.append(Edge(tensor, made[access.tensor], i, access, is_linked))
        for write in op.writes:
            readers = source.consumers.get(write.tensor, ())
            if write.tensor in source.outputs or not inside.issuperset(readers):
                nest.outputs.append(write.tensor)
            if None in write.plain and not inside.isdisjoint(readers):
                nest.veto = f"{op.name} writes its result in an order that its reader does not walk"


def _open_axes(nest: Nest, fed: set[int]) -> None:
    """Axes of sinks, less those reduced with a reader inside, scanned, or driven by a link."""
    closed: set[str] = set()
    wanted: dict[str, None] = {}
    reduced: set[str] = set()
    for i, op in nest.ops.items():
        closed |= op.scans
        if i in fed:
            closed |= op.reduces
        else:
            wanted.update(dict.fromkeys(op.sizes))
            reduced |= op.reduces
    nest.open_axes = tuple(name for name in wanted if name not in closed and nest.sizes[name] > 1)
    nest.split_axes = frozenset(reduced & set(nest.open_axes))


def _carry(nest: Nest) -> None:
    """R2: along each axis an op belongs to a pass, one more than the reductions before it."""
    passes: dict[int, dict[str, int]] = {i: {} for i in nest.positions}
    incoming: dict[int, list[Edge]] = {}
    for edge in nest.edges:
        incoming.setdefault(edge.consumer, []).append(edge)
    for i in nest.positions:
        mine = passes[i]
        for edge in incoming.get(i, ()):
            before = passes[edge.producer]
            for name, count in before.items():
                if count > mine.get(name, 0):
                    mine[name] = count
            for name in nest.ops[edge.producer].reduces | nest.ops[edge.producer].scans:
                count = before.get(name, 0) + (name in nest.ops[edge.producer].reduces)
                if count > mine.get(name, 0):
                    mine[name] = count
    _postpone(nest, passes)
    for edge in nest.edges:
        producer, consumer = passes[edge.producer], passes[edge.consumer]
        axes = {
            axis.name
            for axis in edge.tensor.axes
            if consumer.get(axis.name, 0) > producer.get(axis.name, 0)
        }
        if axes:
            _add(nest.carried, edge.tensor.name, axes)
    for name, reads in nest.external.items():
        if len(reads) > 1:
            for axis in dict.fromkeys(axis for _, access in reads for axis in access.axes):
                seen = {passes[i].get(axis, 0) for i, access in reads if axis in access.axes}
                if len(seen) > 1:
                    _add(nest.carried, name, {axis})
    nest.earlier = _earlier(nest, passes)


def _earlier(nest: Nest, passes: dict[int, dict[str, int]]) -> frozenset[int]:
    """Reductions over axes of what is carried, in a pass before the last that reads it."""
    last: dict[str, int] = {}
    for i, op in nest.ops.items() if nest.carried else ():
        for read in op.reads:
            for name in nest.carried.get(read.tensor, ()):
                last[name] = max(last.get(name, 0), passes[i].get(name, 0))
    return frozenset(
        i
        for i, op in nest.ops.items()
        if any(passes[i].get(name, 0) < last[name] for name in op.reduces & last.keys())
    )


def last_walk(nest: Nest) -> frozenset[int]:
    """Ops that run in the last walk over what is carried: all that the sinks are made of, short of
    statistics that earlier walks have made."""
    read = {edge.producer for edge in nest.edges}
    return _closure([i for i in nest.positions if i not in read], _producers(nest, nest.earlier))


def earlier_walks(nest: Nest) -> frozenset[int]:
    """Ops that run in walks before the last: the statistics made there, and what they need."""
    return _closure(list(nest.earlier), _producers(nest))


def _producers(nest: Nest, but: Set[int] = frozenset()) -> dict[int, list[int]]:
    """Op → those that make what it reads, but some."""
    found: dict[int, list[int]] = {}
    for edge in nest.edges:
        if edge.producer not in but:
            found.setdefault(edge.consumer, []).append(edge.producer)
    return found


def _closure(pending: list[int], makers: dict[int, list[int]]) -> frozenset[int]:
    """Ops and all that they are made of."""
    found: set[int] = set()
    while pending:
        i = pending.pop()
        if i not in found:
            found.add(i)
            pending.extend(makers.get(i, ()))
    return frozenset(found)


def _postpone(nest: Nest, passes: dict[int, dict[str, int]]) -> None:
    """What no earlier pass needs is made in the first pass that does: values in an attention's
    second."""
    readers: dict[int, list[int]] = {}
    for edge in nest.edges:
        readers.setdefault(edge.producer, []).append(edge.consumer)
    for i in reversed(nest.positions):
        op = nest.ops[i]
        for name in set(op.kept) - op.scans if i in readers else ():
            first = min(passes[reader].get(name, 0) for reader in readers[i])
            if first > passes[i].get(name, 0):
                passes[i][name] = first


def _hold(nest: Nest) -> None:
    """An accumulator over a loop that it shares with a producer lives through all of that loop.

    Along an axis that the producer lacks, looping outside would compute the producer again, so
    the accumulator is whole there (GEMM→GEMM: the second accumulator spans all of its columns).
    """
    for edge in nest.edges:
        op = nest.ops[edge.consumer]
        shared = op.reduces & {axis.name for axis in edge.tensor.axes}
        if not shared:
            continue
        lacking = set(op.sizes) - op.reduces - set(nest.ops[edge.producer].sizes)
        for write in op.writes:
            if lacking:
                _add(nest.held_through, write.tensor, lacking)


def _add(table: dict[str, frozenset[str]], key: str, axes: set[str]) -> None:
    table[key] = table.get(key, frozenset[str]()) | axes
