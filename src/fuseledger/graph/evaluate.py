"""The meaning of the IR: a graph on NumPy arrays, in float64.

Reads become strided views over the op's axes (padded where they leave the tensor), contractions
go through `einsum`, everything else is evaluated point by point and reduced. It is written to be
obviously right; models under test are small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from fuseledger.errors import InvalidGraph
from fuseledger.graph.graph import Graph
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import FUNCTIONS, Call, Const, Coord, Expr, Read
from fuseledger.graph.view import View

Array = Any
OpaqueMeaning = Callable[[Op, list[Array]], list[Array]]


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    opaque: Mapping[str, OpaqueMeaning] | None = None,
    keep: bool = False,
) -> dict[str, Array]:
    """Outputs (every tensor too with `keep`) by name, in their logical shapes, as float64.

    `inputs` holds each external tensor in its logical shape. `opaque` gives the meaning of
    barriers by function name; without it a graph with barriers raises InvalidGraph.
    """
    values: dict[str, Array] = {}
    for tensor in graph.tensors.values():
        if (tensor.is_external and tensor.name in graph.consumers) or tensor.name in inputs:
            given = np.asarray(inputs[tensor.name])
            real = given if np.iscomplexobj(given) else given.astype(np.float64)
            values[tensor.name] = real.reshape([axis.size for axis in tensor.axes])
    last_use = {name: users[-1] for name, users in graph.consumers.items()}
    for position, op in enumerate(graph.ops):
        results = _run(graph, op, values, opaque or {})
        values.update(zip((write.tensor for write in op.writes), results, strict=True))
        if not keep:
            for name in {read.tensor for read in op.reads}:
                if last_use[name] == position and name not in graph.outputs:
                    values.pop(name, None)
    logical = {n: value.reshape(graph.tensors[n].shape) for n, value in values.items()}
    results = {r.name: _view(r.view, logical[r.view.base]) for r in graph.results}
    return {**logical, **results} if keep else results


def _view(view: View, stored: Array) -> Array:
    """The logical array of a view of a stored tensor."""
    if 0 in view.shape:
        return np.zeros(view.shape)
    atoms = [atom for dim in view.dims for atom in dim]
    shape = [atom.size for atom in atoms]
    place = {atom.name: i for i, atom in enumerate(atoms)}
    where: list[Array] = []
    for coord in view.coords:
        position: Array = np.full([1] * len(atoms), coord.offset)
        for name, stride in coord.terms:
            span = [1] * len(atoms)
            span[place[name]] = shape[place[name]]
            position = position + stride * np.arange(shape[place[name]]).reshape(span)
        where.append(position)
    return np.broadcast_to(stored[tuple(where)], shape).reshape(view.shape)


def _run(
    graph: Graph, op: Op, values: dict[str, Array], opaque: Mapping[str, OpaqueMeaning]
) -> list[Array]:
    if op.is_opaque:
        if op.function not in opaque:
            raise InvalidGraph(f"{op.name}: no meaning is given for the barrier {op.function}")
        arguments = [values[r.tensor].reshape(graph.tensors[r.tensor].shape) for r in op.reads]
        for slot, order in op.attributes.get("orders", {}).items():
            arguments[slot] = arguments[slot].transpose(order)
        results = opaque[op.function](op, arguments)
        return [
            np.asarray(result, dtype=np.float64).reshape(
                [a.size for a in graph.tensors[w.tensor].axes]
            )
            for w, result in zip(op.writes, results, strict=True)
        ]
    assert op.body is not None
    names = list(op.sizes)
    reads: list[Array] = []
    for access in op.reads:
        reads.append(_gather(access, op, values[access.tensor], reads))
    kept = [name for name in names if name not in op.reduces]
    if _is_product(op.body) and op.combine == "sum" and op.reduces and not op.scans:
        results = [_einsum(op, op.body, reads, names, kept)]
    else:
        dense = _broadcast(_value(op.body, reads, op, names), op, names)
        results = _combine(op, dense, names, kept)
    return [
        _store(graph, op, access, result, kept)
        for access, result in zip(op.writes, results, strict=False)
    ]


def _gather(access: Access, op: Op, stored: Array, reads: list[Array]) -> Array:
    """The read as a view over all of the op's axes, size 1 where it does not depend on one."""
    names = list(op.sizes)
    shape = [op.sizes[name] if _depends(access, name) else 1 for name in names]
    if 0 in op.sizes.values():
        return np.zeros(shape)
    if access.is_lookup:
        return _gather_lookup(access, op, stored, reads)
    strides = dict.fromkeys(names, 0)
    array = stored
    start = [0] * array.ndim
    fill = access.fill if access.fill is not None else np.nan
    for k, index in enumerate(access.index):
        low, high = index.bounds(op.sizes.__getitem__)
        if index.divisor > 1:  # a coordinate between two elements reads the fill
            spread = list(array.shape)
            spread[k] = (array.shape[k] - 1) * index.divisor + 1
            wide = np.full(spread, fill)
            at: list[Any] = [slice(None)] * array.ndim
            at[k] = slice(None, None, index.divisor)
            wide[tuple(at)] = array
            array = wide
        before, after = max(0, -low), max(0, high - array.shape[k] + 1)
        if before or after:
            if access.fill is None:
                raise InvalidGraph(f"{op.name}: {access.tensor} is read outside its bounds")
            widths = [(0, 0)] * array.ndim
            widths[k] = (before, after)
            array = np.pad(array, widths, constant_values=fill)
        start[k] = index.offset + before
    for k, index in enumerate(access.index):
        for name, stride in index.terms:
            strides[name] += stride * array.strides[k]
    origin = array[tuple(slice(s, None) for s in start)] if array.ndim else array
    return np.lib.stride_tricks.as_strided(
        origin, shape, [strides[name] for name in names], writeable=False
    )


def _depends(access: Access, name: str) -> bool:
    return any(name == term for index in access.index for term, _ in index.terms)


def _gather_lookup(access: Access, op: Op, stored: Array, reads: list[Array]) -> Array:
    names = list(op.sizes)
    positions: list[Array] = []
    for index, size in zip(access.index, stored.shape, strict=True):
        position: Array = np.full([1] * len(names), index.offset)
        for name, stride in index.terms:
            position = position + stride * _iota(op, names, name)
        if index.lookup is not None:
            looked_up = reads[index.lookup].astype(np.int64)
            position = position + looked_up + size * (looked_up < 0)
        positions.append(position.astype(np.int64))
    if access.fill is None:
        return stored[tuple(positions)]
    inside = np.ones([1] * len(names), dtype=bool)
    for position, size in zip(positions, stored.shape, strict=True):
        inside = inside & (position >= 0) & (position < size)
    clipped = tuple(np.clip(p, 0, s - 1) for p, s in zip(positions, stored.shape, strict=True))
    return np.where(inside, stored[clipped], access.fill)


def _iota(op: Op, names: list[str], axis: str) -> Array:
    shape = [1] * len(names)
    shape[names.index(axis)] = op.sizes[axis]
    return np.arange(op.sizes[axis], dtype=np.float64).reshape(shape)


def _value(expr: Expr, reads: list[Array], op: Op, names: list[str]) -> Array:
    if isinstance(expr, Read):
        return reads[expr.slot]
    if isinstance(expr, Const):
        return np.full([1] * len(names), expr.value)
    if isinstance(expr, Coord):
        return _iota(op, names, expr.axis)
    arguments = [_value(arg, reads, op, names) for arg in expr.args]
    with np.errstate(all="ignore"):
        return FUNCTIONS[expr.function].meaning(*arguments)


def _broadcast(array: Array, op: Op, names: list[str]) -> Array:
    return np.broadcast_to(array, [op.sizes[name] for name in names])


def _is_product(body: Expr) -> bool:
    if isinstance(body, Read):
        return True
    return (
        isinstance(body, Call) and body.function == "mul" and all(_is_product(a) for a in body.args)
    )


def _factors(body: Expr) -> list[int]:
    if isinstance(body, Read):
        return [body.slot]
    assert isinstance(body, Call)
    return [slot for arg in body.args for slot in _factors(arg)]


def _einsum(op: Op, body: Expr, reads: list[Array], names: list[str], kept: list[str]) -> Array:
    number = {name: i for i, name in enumerate(names)}
    arguments: list[Any] = []
    summed: set[str] = set()
    for slot in _factors(body):
        array = reads[slot]
        axes = [name for i, name in enumerate(names) if array.shape[i] != 1 or op.sizes[name] == 1]
        summed.update(axes)
        arguments += [array.reshape([op.sizes[name] for name in axes]), [number[n] for n in axes]]
    repeats = 1
    for name in op.reduces:  # an axis that no factor has multiplies the sum
        repeats *= op.sizes[name] if name not in summed else 1
    present = [name for name in kept if name in summed]
    result = np.einsum(*arguments, [number[name] for name in present], optimize=True) * repeats
    shape = [op.sizes[name] if name in summed else 1 for name in kept]
    return np.broadcast_to(result.reshape(shape), [op.sizes[name] for name in kept])


def _combine(op: Op, dense: Array, names: list[str], kept: list[str]) -> list[Array]:
    """Results over the kept axes."""
    if op.scans:
        at = tuple(i for i, name in enumerate(names) if name in op.scans)
        moved = np.moveaxis(dense, at, range(-len(at), 0))
        points = prod(moved.shape[moved.ndim - len(at) :])
        flat = moved.reshape(*moved.shape[: moved.ndim - len(at)], points)
        scan: dict[str, Callable[..., Array]] = {
            "sum": np.cumsum,
            "prod": np.cumprod,
            "max": np.maximum.accumulate,
            "min": np.minimum.accumulate,
        }
        scanned: Array = scan[op.combine or "sum"](flat, axis=-1).reshape(moved.shape)
        return [np.moveaxis(scanned, range(-len(at), 0), at)]
    if not op.reduces:
        return [dense]
    at = [i for i, name in enumerate(names) if name in op.reduces]
    moved = np.moveaxis(dense, at, range(-len(at), 0))
    points = prod(op.sizes[name] for name in op.reduces)
    flat = moved.reshape(*[op.sizes[name] for name in kept], points)
    with np.errstate(all="ignore"):
        return _COMBINE[op.combine or "sum"](flat)


def _max_sumexp(x: Array) -> list[Array]:
    top = x.max(-1, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0.0)
    return [top, np.exp(x - shift[..., None]).sum(-1)]


_COMBINE: dict[str, Callable[[Array], list[Array]]] = {
    "sum": lambda x: [x.sum(-1)],
    "prod": lambda x: [x.prod(-1)],
    "max": lambda x: [x.max(-1, initial=-np.inf)],
    "min": lambda x: [x.min(-1, initial=np.inf)],
    "any": lambda x: [(x != 0).any(-1) * 1.0],
    "all": lambda x: [(x != 0).all(-1) * 1.0],
    "argmax": lambda x: [x.argmax(-1) * 1.0],
    "argmin": lambda x: [x.argmin(-1) * 1.0],
    "max_index": lambda x: [x.max(-1), x.argmax(-1) * 1.0],
    "min_index": lambda x: [x.min(-1), x.argmin(-1) * 1.0],
    "max_sumexp": _max_sumexp,
    "moments": lambda x: [x.mean(-1), ((x - x.mean(-1, keepdims=True)) ** 2).sum(-1)],
}


def _store(graph: Graph, op: Op, access: Access, result: Array, kept: list[str]) -> Array:
    """The result, whose axes are `kept`, in the stored order of the tensor's axes."""
    tensor = graph.tensors[access.tensor]
    stored = np.zeros([axis.size for axis in tensor.axes], dtype=result.dtype)
    position: list[Array] = []
    for index in access.index:
        where: Array = np.full([1] * len(kept), index.offset)
        for name, stride in index.terms:
            shape = [1] * len(kept)
            shape[kept.index(name)] = op.sizes[name]
            where = where + stride * np.arange(op.sizes[name]).reshape(shape)
        position.append(where)
    stored[tuple(position)] = result
    return stored
