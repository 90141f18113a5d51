"""R2's third way: a carried tensor made *online* by rescaling what was accumulated so far.

`Σ_n exp(S[m,n] − t[m]) / z[m] · V[n,d]` with `(t, z) = (max, Σexp)_n S` need not know the final `t`
while it walks `n`: with a running maximum, what was summed under an old one is multiplied by
`exp(t_old − t_new)`, and the division by `z` waits until the end. This is sound where the tensor is
read, after its statistic, only as such an exponential, and that, cast or not, only by sums over the
same axis; a cast then rounds what is not yet divided by `z`.
The rule reads bodies and combines, not names; attention is its best-known instance.

What is kept while walking, (t, z) and the sums, is one statistic with an associative merge: two
parts are merged by the same rescaling. So where the sums are the kernel's results, their axis may
be on the grid (R3): split-KV.
"""

from __future__ import annotations

from msgspec.structs import replace

from fuseledger.graph.op import Op
from fuseledger.graph.scalar import Call, Expr, Read, walk
from fuseledger.ledger.nest import Nest


def online_variant(nest: Nest) -> Nest | None:
    """The nest with every tensor that can be online no longer carried, or None where none can."""
    online: set[str] = set()
    rescaled: set[int] = set()
    walked: set[str] = set()
    for tensor, axes in nest.carried.items():
        sums = _sums_over(nest, tensor, axes)
        if sums is not None:
            online.add(tensor)
            rescaled |= sums
            walked |= axes
    if not online:
        return None
    carried = {name: axes for name, axes in nest.carried.items() if name not in online}
    split = tuple(name for name in nest.sizes if name in walked and _splits(nest, name, rescaled))
    return replace(
        nest, carried=carried, rescaled=frozenset(rescaled), open_axes=(*nest.open_axes, *split),
        split_axes=nest.split_axes.union(split),
    )  # fmt: skip


def _splits(nest: Nest, axis: str, rescaled: set[int]) -> bool:
    """Whether the grid may tile an axis that rescaled sums walk: they end there, with results.

    No consumer of a partial result shares the kernel, and nothing else reduces or scans the axis.
    """
    if nest.sizes[axis] < 2 or axis in nest.open_axes:
        return False
    feeds = {edge.producer for edge in nest.edges}
    for i, op in nest.ops.items():
        if axis in op.scans:
            return False
        if axis in op.reduces and op.combine != "max_sumexp" and (i in feeds or i not in rescaled):
            return False
    return all(axis in nest.ops[i].reduces and i not in feeds for i in rescaled)


def _sums_over(nest: Nest, tensor: str, axes: frozenset[str]) -> set[int] | None:
    """Positions of the sums that would be rescaled, or None where the tensor must stay whole."""
    readers = [(i, op) for i, op in nest.ops.items() if any(r.tensor == tensor for r in op.reads)]
    statistics = [i for i, op in readers if op.combine == "max_sumexp" and axes <= op.reduces]
    later = [i for i, _ in readers if i not in statistics]
    if len(statistics) != 1 or not later:
        return None
    results = [write.tensor for write in nest.ops[statistics[0]].writes]
    sums: set[int] = set()
    for i in later:
        op = nest.ops[i]
        if op.combine is not None:
            return None
        if not _is_shifted_exponential(op, tensor, results):
            return None
        made = [op.writes[0].tensor]
        for name in made:  # it grows while it is walked
            if name in nest.outputs:
                return None
            for j, consumer in nest.ops.items():
                if not any(read.tensor == name for read in consumer.reads):
                    continue
                if only_rounds(consumer):
                    made.append(consumer.writes[0].tensor)
                elif axes <= consumer.reduces and _is_linear_in(consumer, name):
                    sums.add(j)
                else:
                    return None
    return sums


def only_rounds(op: Op) -> bool:
    """Whether the op is a cast: what is rescaled before it may as well be rescaled after."""
    body = op.body
    return (
        op.combine is None
        and len(op.reads) == 1
        and isinstance(body, Call)
        and body.function == "identity"
        and all(index.axis is not None for index in op.reads[0].index)
    )


def _is_shifted_exponential(op: Op, tensor: str, results: list[str]) -> bool:
    """Whether the body is exp(tensor − max), perhaps over Σexp."""
    body = op.body
    if (
        isinstance(body, Call)
        and body.function == "div"
        and _reads(op, body.args[1]) == results[-1]
    ):
        body = body.args[0]
    return body is not None and _is_exponential(op, body, tensor, results[0])


def special_saved(nest: Nest) -> dict[int, int]:
    """Op position → special operations that the one walk over a carried tensor spares it.

    The statistic of a softmax has computed `exp(x − max)` where its readers want it. Where they are
    online, the division by Σexp waits for the sums.
    """
    found: dict[int, int] = {}
    for op in nest.ops.values():
        if op.combine != "max_sumexp" or not isinstance(op.body, Read):
            continue
        tensor = op.reads[op.body.slot].tensor
        results = [write.tensor for write in op.writes]
        for i, reader in nest.ops.items():
            for each in walk(reader.body) if reader.body is not None else ():
                if _is_exponential(reader, each, tensor, results[0]):
                    found[i] = found.get(i, 0) + reader.points_of(each)
            if nest.rescaled and _is_shifted_exponential(reader, tensor, results):
                found[i] = reader.special_ops
    return found


def _is_exponential(op: Op, expr: Expr, tensor: str, top: str) -> bool:
    """Whether an expression is exp(tensor − top)."""
    if not (isinstance(expr, Call) and expr.function == "exp"):
        return False
    shift = expr.args[0]
    return (
        isinstance(shift, Call)
        and shift.function == "sub"
        and _reads(op, shift.args[0]) == tensor
        and _reads(op, shift.args[1]) == top
    )


def _is_linear_in(op: Op, tensor: str) -> bool:
    """Whether the op sums a product with the tensor as exactly one factor."""
    return op.combine == "sum" and op.body is not None and _factors(op, op.body).count(tensor) == 1


def _factors(op: Op, body: Expr) -> list[str | None]:
    if isinstance(body, Call) and body.function == "mul":
        return [factor for arg in body.args for factor in _factors(op, arg)]
    return [_reads(op, body)]


def _reads(op: Op, expr: Expr) -> str | None:
    return op.reads[expr.slot].tensor if isinstance(expr, Read) else None
