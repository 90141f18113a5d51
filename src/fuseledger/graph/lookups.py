"""Reads by a looked-up place of tensors made in the same kernel.

A tensor that is computed point by point need not be whole in memory for that: its reader *computes
it there*. `log_softmax(x)[m, t[m]]` is `x[m, t[m]] − max[m] − ln Σexp[m]`: the lookup moves on to
what the tensor is made of, until it meets tensors from outside, and what lies along other axes
alone (statistics of the row) is read as it is. An op whose results nobody wants at any other place
then does not run.

A reduction's result is *selected* as it comes by: `C[m, t[m]] = Σ_n [n = t[m]] C[m, n]` is a
reduction over the axis that is looked up, an op more in the kernel, and what holds for reductions
holds for it (R2, R4). It may share its walk with the statistic of a loss.

The rule reads index maps and bodies, not names.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fuseledger.graph.axis import Axis, Index
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Const, Coord, Expr, Read, call, rename, walk
from fuseledger.graph.tensor import Tensor

Ops = dict[int, Op]

BODY_LONGEST = 256
"""Terms of a body beyond which nothing more is taken into it: a chain of ops that read their
operand twice doubles with each."""


def followed(graph: Graph, ops: Ops) -> tuple[Graph, Ops, float]:
    """The ops of a kernel as they run, and how many operations following adds to theirs.

    The graph has the results of selections besides. Their ops have positions behind its own, and
    stand before their readers. A lookup that can be neither computed nor selected stays as it is.
    """
    made = {write.tensor: i for i, op in ops.items() for write in op.writes}
    found: Ops = {}
    taken: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for i, op in ops.items():
        slot = 0
        while slot < len(op.reads):
            read = op.reads[slot]
            producer = made.get(read.tensor) if read.is_lookup else None
            if producer is None:
                slot += 1
                continue
            there = _computed_there(graph, op, slot, found[producer])
            if there is not None:
                taken.add(producer)
                op, slot = there, 0
                continue
            selection = _selection(graph, op, slot, f"{op.name}.selected{len(tensors) or ''}")
            if selection is not None:
                chosen, result, op = selection
                position = len(graph.ops) + len(tensors)
                found[position], made[result.name] = chosen, position
                tensors[result.name] = result
                graph = replace(graph, tensors=graph.tensors | {result.name: result})
            slot += 1
        found[i] = op
    for i in sorted(taken, reverse=True):
        if not _is_wanted(graph, found, i, frozenset(ops)):
            del found[i]
    return graph, found, max(0.0, _operations(found) - _operations(ops))


def _is_wanted(graph: Graph, running: Ops, i: int, members: frozenset[int]) -> bool:
    """Whether an op's results are read as they are, by an op that runs or outside the kernel."""
    results = {write.tensor for write in running[i].writes}
    if any(read.tensor in results for op in running.values() for read in op.reads):
        return True
    return any(
        name in graph.outputs or not members.issuperset(graph.consumers.get(name, ()))
        for name in results
    )


def _operations(ops: Ops) -> float:
    return float(sum(op.flops + op.special_ops for op in ops.values()))


def _computed_there(graph: Graph, op: Op, slot: int, producer: Op) -> Op | None:
    """The op with the producer's body in place of a read that looks its result up.

    None where the producer is no pointwise loop or a place cannot be told in its own coordinates.
    """
    if producer.combine is not None or producer.body is None or op.body is None:
        return None
    others = [old for old in range(len(op.reads)) if old != slot]
    mine = {old: new for new, old in enumerate(others)}
    reads = [_relabelled(op.reads[old], mine) for old in others]
    access = _relabelled(op.reads[slot], mine)
    where: dict[str, Index] = {}
    for axis, index in zip(producer.writes[0].plain, access.index, strict=True):
        if axis is None or index.divisor != 1:
            return None
        where[axis] = index
    theirs: dict[int, int] = {}
    for old in _lookups_first(producer):
        read = _moved(graph, producer, producer.reads[old], where, theirs)
        if read is None:
            return None
        if access.fill is not None and read.fill is None and _leaves(graph, op, read):
            read = replace(read, fill=0.0)  # not looked at: what lies outside is replaced below
        if read not in reads:
            reads.append(read)
        theirs[old] = reads.index(read)
    value = rename(
        producer.body,
        slots=lambda old: Read(theirs[old]),
        axes=lambda axis: _place(where.get(axis, Index()), producer.sizes[axis]),
    )
    inside = _inside(access, [axis.size for axis in graph.tensors[access.tensor].axes], op)
    if access.fill is not None and inside is not None:
        value = call("where", inside, value, Const(access.fill))
    body = rename(op.body, slots=lambda old: value if old == slot else Read(mine[old]), axes=Coord)
    return replace(op, reads=tuple(reads), body=body) if len(walk(body)) <= BODY_LONGEST else None


def _selection(graph: Graph, op: Op, slot: int, name: str) -> tuple[Op, Tensor, Op] | None:
    """A sum over the axes that a read looks up, of which one point is not 0, its result, and the
    op reading that; or None where the places depend on these axes themselves.

    What lies outside the tensor is the fill, taken at the first point.
    """
    access, tensor = op.reads[slot], graph.tensors[op.reads[slot].tensor]
    behind = op.axes_behind(access)
    kept = tuple(axis for axis in op.axes if axis.name in behind)
    inside = _inside(access, [axis.size for axis in tensor.axes], op)
    if access.fill is None:
        inside = None
    coordinates: list[Index] = []
    walked: list[Axis] = []
    chosen: list[Expr] = []
    for index, axis in zip(access.index, tensor.axes, strict=True):
        if index.lookup is None:
            coordinates.append(index)
            continue
        if index.divisor != 1 or axis.name in op.sizes:
            return None
        place = _place(index, axis.size)
        place = place if inside is None else call("where", inside, place, 0)
        chosen.append(call("eq", Coord(axis.name), place))
        walked.append(axis)
        coordinates.append(Index.of(axis.name))
    body: Expr = Read(slot)
    if inside is not None:
        body = call("where", inside, body, Const(access.fill or 0.0))
    for condition in chosen:
        body = call("where", condition, body, 0.0)
    wanted = _needed(op, slot)
    mine = {old: new for new, old in enumerate(wanted)}
    reads = [
        _relabelled(
            replace(access, index=tuple(coordinates)) if old == slot else op.reads[old], mine
        )
        for old in wanted
    ]
    write = Access(tensor=name, index=tuple(Index.of(axis.name) for axis in kept))
    selection = Op(
        name=name, function=f"{op.function}.select", label=op.label, axes=(*kept, *walked),
        reduces=frozenset(axis.name for axis in walked), combine="sum", reads=tuple(reads),
        writes=(write,), body=rename(body, slots=lambda old: Read(mine[old]), axes=Coord),
    )  # fmt: skip
    result = Tensor(
        name=name, dims=tuple((axis,) for axis in kept), dtype=tensor.dtype, role="intermediate"
    )
    after = list(op.reads)
    after[slot] = write
    return selection, result, replace(op, reads=tuple(after))


def _needed(op: Op, slot: int) -> list[int]:
    """A read and those that say where it lies, directly or not."""
    found = {slot}
    for old in reversed(_lookups_first(op)):
        if old in found:
            found |= {index.lookup for index in op.reads[old].index if index.lookup is not None}
    return sorted(found)


def _relabelled(read: Access, slots: Mapping[int, int]) -> Access:
    """A read whose lookups name their reads anew."""
    if not read.is_lookup:
        return read
    index = tuple(i if i.lookup is None else replace(i, lookup=slots[i.lookup]) for i in read.index)
    return replace(read, index=index)


def _lookups_first(op: Op) -> list[int]:
    """The op's reads, those that say where others lie before these."""
    found: list[int] = []
    while len(found) < len(op.reads):
        found += [
            slot
            for slot, read in enumerate(op.reads)
            if slot not in found
            and all(index.lookup is None or index.lookup in found for index in read.index)
        ]
    return found


def _moved(
    graph: Graph, producer: Op, read: Access, where: Mapping[str, Index], slots: Mapping[int, int]
) -> Access | None:
    """A read of the producer at the places where its result is looked up, or None."""
    found: list[Index] = []
    for index, axis in zip(read.index, graph.tensors[read.tensor].axes, strict=True):
        lookup = None if index.lookup is None else slots[index.lookup]
        strides: dict[str, int] = {}
        offset = index.offset
        for name, stride in index.terms:
            there = where.get(name, Index())
            offset += stride * there.offset
            for term, step in there.terms:
                strides[term] = strides.get(term, 0) + stride * step
            if there.lookup is None:
                continue
            # negative places count from the end, which must be the same
            is_same = stride == 1 and axis.size == producer.sizes[name]
            if lookup is not None or index.divisor != 1 or not is_same:
                return None
            lookup = there.lookup
        terms = tuple((name, stride) for name, stride in strides.items() if stride)
        found.append(Index(terms, offset, index.divisor, lookup))
    return replace(read, index=tuple(found))


def _place(index: Index, size: int) -> Expr:
    """A coordinate of a tensor as a value; negative lookups count from the end."""
    parts: list[Expr] = [
        Coord(name) if stride == 1 else call("mul", Coord(name), stride)
        for name, stride in index.terms
    ]
    if index.lookup is not None:
        value = Read(index.lookup)
        parts.append(call("where", call("lt", value, 0), call("add", value, size), value))
    if index.offset or not parts:
        parts.append(Const(float(index.offset)))
    total = parts[0]
    for part in parts[1:]:
        total = call("add", total, part)
    return total


def _leaves(graph: Graph, op: Op, read: Access) -> bool:
    """Whether a read of an op may have coordinates outside its tensor."""
    return _inside(read, [axis.size for axis in graph.tensors[read.tensor].axes], op) is not None


def _inside(access: Access, shape: list[int], op: Op) -> Expr | None:
    """Whether all coordinates lie in the tensor, or None where they do in any case."""
    conditions: list[Expr] = []
    for index, size in zip(access.index, shape, strict=True):
        low, high = index.bounds(op.sizes.__getitem__)
        if index.lookup is not None and not index.terms and not index.offset:
            value, least = Read(index.lookup), -size
        elif index.lookup is not None or low < 0 or high >= size:
            value, least = _place(index, size), 0
        else:
            continue
        conditions += [call("ge", value, least), call("lt", value, size)]
    found: Expr | None = None
    for condition in conditions:
        found = condition if found is None else call("and", found, condition)
    return found
