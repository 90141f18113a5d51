"""Attention as one call, for peers whose users write it so: which of our ops it covers."""

from __future__ import annotations

from msgspec import Struct

from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Call, Const, Coord, Expr, Read

LABEL = "attention"
"""What frontends call the composite."""


class Attention(Struct, frozen=True, kw_only=True):
    """softmax(q·kᵀ·scale + mask)·v, and the ops that it was lowered to."""

    ops: tuple[int, ...]
    """Positions of its ops: they follow each other, and the last one writes the result."""
    query: Access
    key: Access
    value: Access
    mask: Access | None
    is_bool: bool
    """Whether the mask says where attention is allowed, rather than being added."""
    is_causal: bool
    scale: float


def attentions(graph: Graph) -> dict[int, Attention]:
    """Position of an attention's first op → the attention.

    Left out is what one call does not say: dropout, causal masks of a rectangle, other bodies.
    """
    found: dict[int, Attention] = {}
    for start, op in enumerate(graph.ops):
        if op.label != LABEL or op.combine != "sum" or start + 5 > len(graph.ops):
            continue
        made = _attention(graph, start)
        if made is not None:
            found[start] = made
    return found


def _attention(graph: Graph, start: int) -> Attention | None:
    scores, masked, statistic, apply, result = ops = graph.ops[start : start + 5]
    chained = all(
        graph.consumers.get(write.tensor, ()) and
        set(graph.consumers[write.tensor]) <= set(range(start, start + 5))
        and write.tensor not in graph.outputs
        for op in ops[:-1] for write in op.writes
    )  # fmt: skip
    if not chained or any(op.label != LABEL for op in ops):
        return None
    if not (_is_product(scores) and _is_product(result) and masked.combine is None):
        return None
    if statistic.combine != "max_sumexp" or apply.function != "softmax.apply":
        return None
    body, causal = _without_causal(masked)
    body, is_bool, slot = _without_mask(body)
    scale = _scale(body)
    if scale is None or causal is None:
        return None
    by_tensor = {access.tensor: access for access in result.reads}
    weights = apply.writes[0].tensor
    (value,) = [access for name, access in by_tensor.items() if name != weights]
    return Attention(
        ops=tuple(range(start, start + 5)), query=scores.reads[0], key=scores.reads[1],
        value=value, mask=None if slot is None else masked.reads[slot], is_bool=is_bool,
        is_causal=causal, scale=scale,
    )  # fmt: skip


def _is_product(op: Op) -> bool:
    """Whether the op is Σ of a product of two reads over one axis."""
    body = op.body
    return (
        op.combine == "sum" and len(op.reads) == 2 and len(op.reduces) == 1
        and isinstance(body, Call) and body.function == "mul"
        and all(isinstance(arg, Read) for arg in body.args)
    )  # fmt: skip


def _without_causal(op: Op) -> tuple[Expr, bool | None]:
    """The body below a causal mask, and whether there is one; None for one that no call says."""
    body = op.body
    assert body is not None
    if not (isinstance(body, Call) and body.function == "where" and _is_place(body.args[0])):
        return body, False
    assert isinstance(body.args[0], Call)
    column, row = body.args[0].args
    if not (isinstance(column, Coord) and isinstance(row, Call) and row.function == "add"):
        return body, None
    first, offset = row.args
    columns = op.sizes[column.axis]
    rows = op.sizes[first.axis] if isinstance(first, Coord) else 1
    if offset != Const(columns - rows) or (rows != columns and rows != 1):
        return body, None
    return body.args[1], rows == columns


def _is_place(test: Expr) -> bool:
    return isinstance(test, Call) and test.function == "le" and isinstance(test.args[0], Coord)


def _without_mask(body: Expr) -> tuple[Expr, bool, int | None]:
    """The body below a mask, whether the mask is boolean, and the read that it is."""
    if isinstance(body, Call) and body.function == "where" and isinstance(body.args[0], Read):
        return body.args[1], True, body.args[0].slot
    if isinstance(body, Call) and body.function == "add" and isinstance(body.args[1], Read):
        return body.args[0], False, body.args[1].slot
    return body, False, None


def _scale(body: Expr) -> float | None:
    if not (isinstance(body, Call) and body.function == "mul" and len(body.args) == 2):
        return None
    read, factor = body.args
    return factor.value if isinstance(read, Read) and isinstance(factor, Const) else None
