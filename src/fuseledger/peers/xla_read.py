"""What an op reads, as a JAX array over the op's axes.

Index maps become the calls that a JAX user would have written: slices, pads, reversals, reshapes
and, where a value says where, gathers. Only the worker and tests import this.
"""

# JAX is untyped here:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import importlib
from math import prod
from typing import Any

from fuseledger.errors import SourceError
from fuseledger.graph.axis import Index
from fuseledger.graph.op import Access, Op

Array = Any


def read(access: Access, op: Op, stored: Array, reads: list[Array]) -> Array:
    """The operand with one dimension for each axis of the op, of size 1 where it has none.

    `stored` has one dimension for each index of the access; `reads` are the operands before it,
    among them those that its lookups name.
    """
    axes, value = named(access, op, stored, reads)
    order = [name for name in op.sizes if name in axes]
    value = permuted(value, axes, order)
    return value.reshape([size if name in axes else 1 for name, size in op.sizes.items()])


def named(access: Access, op: Op, stored: Array, reads: list[Array]) -> tuple[list[str], Array]:
    """The operand and the axis of each of its dimensions, each axis once."""
    terms = [name for index in access.index for name, _ in index.terms]
    if access.is_lookup:
        return _looked_up(access, op, stored, reads)
    if len(set(terms)) != len(terms):
        return list(op.sizes), _indexed(access, op, stored, reads)
    axes: list[str] = []
    value = stored
    at = 0
    for index in access.index:
        value, found = _along(value, at, index, access, op)
        axes += found
        at += len(found)
    return axes, value


def permuted(value: Array, axes: list[str], order: list[str]) -> Array:
    """The array with its dimensions, named by `axes`, in another order."""
    return value if axes == order else value.transpose([axes.index(name) for name in order])


def fitted(value: Array, at: int, index: Index, access: Access, op: Op) -> tuple[Array, int]:
    """Dimension `at` spread by the index's divisor and padded so that every coordinate is inside.

    Also where coordinate 0 of the index map's terms now lies. Raises SourceError where a coordinate
    leaves the tensor and the access has no fill.
    """
    lax: Any = importlib.import_module("jax.lax")
    low, high = index.bounds(op.sizes.__getitem__)
    spread = (value.shape[at] - 1) * index.divisor + 1
    before, after = max(0, -low), max(0, high - spread + 1)
    if before or after or index.divisor > 1:
        if access.fill is None:
            raise SourceError(f"{op.name}: {access.tensor} is read outside its bounds")
        widths = [(0, 0, 0)] * value.ndim
        widths[at] = (before, after, index.divisor - 1)
        value = lax.pad(value, _like(access.fill, value), widths)
    return value, index.offset + before


def _along(value: Array, at: int, index: Index, access: Access, op: Op) -> tuple[Array, list[str]]:
    """Dimension `at` replaced by dimensions for the axes of its index."""
    lax: Any = importlib.import_module("jax.lax")
    jnp: Any = importlib.import_module("jax.numpy")
    if index.axis is not None and value.shape[at] == op.sizes[index.axis]:
        return value, [index.axis]
    value, start = fitted(value, at, index, access, op)
    if not index.terms:
        return lax.index_in_dim(value, start, at, keepdims=False), []
    if len(index.terms) == 1:
        ((name, stride),) = index.terms
        size = op.sizes[name]
        first, last = sorted((start, start + stride * (size - 1)))
        value = lax.slice_in_dim(value, first, last + 1, abs(stride), at)
        return (lax.rev(value, (at,)) if stride < 0 else value), [name]
    ordered = sorted(index.terms, key=lambda term: -term[1])
    names = [name for name, _ in ordered]
    sizes = [op.sizes[name] for name in names]
    if [stride for _, stride in ordered] == [prod(sizes[i + 1 :]) for i in range(len(sizes))]:
        value = lax.slice_in_dim(value, start, start + prod(sizes), 1, at)
        return value.reshape([*value.shape[:at], *sizes, *value.shape[at + 1 :]]), names
    place: Any = start
    for i, (_, stride) in enumerate(ordered):
        place = place + stride * jnp.arange(sizes[i], dtype="int32").reshape(
            [-1 if j == i else 1 for j in range(len(sizes))]
        )
    return jnp.take(value, place, axis=at), names


def _looked_up(
    access: Access, op: Op, stored: Array, reads: list[Array]
) -> tuple[list[str], Array]:
    """One dimension taken at looked-up places where the others are plain, else a full gather."""
    jnp: Any = importlib.import_module("jax.numpy")
    at = [i for i, index in enumerate(access.index) if index.lookup is not None]
    others = [index for i, index in enumerate(access.index) if i not in at]
    index = access.index[at[0]]
    if len(at) == 1 and not index.terms and not index.offset and access.fill is None:
        assert index.lookup is not None
        places = reads[index.lookup]
        carried = [n for n, size in zip(op.sizes, places.shape, strict=True) if size != 1]
        plain = [other.axis for other in others]
        whole = all(
            name is not None and stored.shape[i] == op.sizes[name]
            for i, name in zip((i for i in range(stored.ndim) if i != at[0]), plain, strict=True)
        )
        if whole and not set(carried) & set(plain) and len(set(plain)) == len(plain):
            flat = places.reshape([op.sizes[name] for name in carried]).astype("int32")
            axes = [name for name in plain if name is not None]
            return [*axes[: at[0]], *carried, *axes[at[0] :]], jnp.take(stored, flat, axis=at[0])
    return list(op.sizes), _indexed(access, op, stored, reads)


def _indexed(access: Access, op: Op, stored: Array, reads: list[Array]) -> Array:
    """Every coordinate as an array of integers: a gather of single elements."""
    jnp: Any = importlib.import_module("jax.numpy")
    names = list(op.sizes)
    places: list[Array] = []
    inside: Any = True
    for index, size in zip(access.index, stored.shape, strict=True):
        place: Any = jnp.full([1] * len(names), index.offset, dtype="int32")
        for name, stride in index.terms:
            place = place + stride * coordinate(op, name)
        if index.lookup is not None:
            value = reads[index.lookup].astype("int32")
            place = place + jnp.where(value < 0, value + size, value)
        if index.divisor > 1:
            inside = inside & (place % index.divisor == 0)
            place = place // index.divisor
        inside = inside & (place >= 0) & (place < size)
        places.append(place)
    if access.fill is None:
        return stored[tuple(places)]
    clipped = tuple(jnp.clip(p, 0, n - 1) for p, n in zip(places, stored.shape, strict=True))
    return jnp.where(inside, stored[clipped], _like(access.fill, stored))


def coordinate(op: Op, axis: str) -> Array:
    """The value of a loop index, over that axis alone."""
    jnp: Any = importlib.import_module("jax.numpy")
    shape = [-1 if name == axis else 1 for name in op.sizes]
    return jnp.arange(op.sizes[axis], dtype="int32").reshape(shape)


def _like(fill: float, value: Array) -> Array:
    """The fill in the array's dtype; the least value of an integer dtype for −∞."""
    jnp: Any = importlib.import_module("jax.numpy")
    if jnp.issubdtype(value.dtype, jnp.integer) and fill in (float("inf"), float("-inf")):
        bounds = jnp.iinfo(value.dtype)
        return jnp.array(bounds.max if fill > 0 else bounds.min, value.dtype)
    return jnp.array(fill, value.dtype)
