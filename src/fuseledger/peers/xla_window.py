"""Contractions, convolutions and pools: what an op is in JAX's terms, read off its axes.

A coordinate with an axis that the op keeps and one that it reduces is a window. Only the worker and
tests import this.
"""

# JAX is untyped here:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from msgspec import Struct

from fuseledger.graph.axis import Index, mixed_radix
from fuseledger.graph.op import Access, Op
from fuseledger.graph.scalar import Call, Expr, Read, walk
from fuseledger.graph.tensor import Tensor
from fuseledger.peers.xla_read import named, permuted

Array = Any
Named = tuple[list[str], Array]
"""An array and the axis of each of its dimensions."""


class Window(Struct, frozen=True):
    """One windowed coordinate: `(stride·out + dilation·tap + offset) / spread`."""

    outs: tuple[str, ...]
    """The kept axes that move the window, outermost first; none where it stands still."""
    stride: int
    taps: tuple[str, ...]
    """The reduced axes inside the window; none for a window of one element."""
    dilation: int
    """Negative where taps are walked backwards (a transposed convolution)."""
    offset: int
    spread: int

    @staticmethod
    def of(index: Index, op: Op) -> Window | None:
        """The window that an index is, or None."""
        moving = _radix([term for term in index.terms if term[0] not in op.reduces], op)
        taps = _radix([term for term in index.terms if term[0] in op.reduces], op)
        if index.lookup is not None or moving is None or taps is None or moving[1] < 0:
            return None
        return Window(*moving, *taps, index.offset, index.divisor)


def _radix(terms: list[tuple[str, int]], op: Op) -> tuple[tuple[str, ...], int] | None:
    """Axes that count one index together, outermost first, and its stride; None where they do not.

    A pool after a convolution splits the convolution's output axis into such a pair.
    """
    ordered = sorted(terms, key=lambda term: -abs(term[1]))
    stride = ordered[-1][1] if ordered else 1
    expected = stride
    for name, found in reversed(ordered):
        if found != expected:
            return None
        expected *= op.sizes[name]
    return tuple(name for name, _ in ordered), stride


def is_product(body: Expr) -> bool:
    """Whether the body is a product of two different reads."""
    if not (isinstance(body, Call) and body.function == "mul"):
        return False
    return len({a.slot for a in body.args if isinstance(a, Read)}) == 2


def product(op: Op, body: Expr, stored: list[Array], dtype: str) -> Named | None:
    """The `dot_general` that a sum of products is, or None.

    None where neither operand has a kept axis that the other lacks: a JAX user multiplies and sums.
    """
    lax: Any = importlib.import_module("jax.lax")
    slots = [a.slot for a in walk(body) if isinstance(a, Read)]
    if any(op.reads[slot].is_lookup for slot in slots):
        return None
    (a_axes, a), (b_axes, b) = (named(op.reads[s], op, stored[s], []) for s in slots)
    kept = set(op.kept)
    if not (set(a_axes) ^ set(b_axes)) & kept:
        return None
    if any(name not in a_axes or name not in b_axes for name in op.reduces):
        return None
    shared = [name for name in a_axes if name in b_axes]
    inner = [name for name in shared if name in op.reduces]
    batch = [name for name in shared if name not in op.reduces]
    dims = (
        (tuple(map(a_axes.index, inner)), tuple(map(b_axes.index, inner))),
        (tuple(map(a_axes.index, batch)), tuple(map(b_axes.index, batch))),
    )
    result = lax.dot_general(a, b, dims, preferred_element_type=dtype)
    free = [name for axes in (a_axes, b_axes) for name in axes if name not in shared]
    return _broadcast(op, batch + free, result)


def convolution(op: Op, stored: list[Array], dtype: str) -> Named | None:
    """The `conv_general_dilated` that a sum of products through a window is, or None."""
    lax: Any = importlib.import_module("jax.lax")
    if len(op.reads) != 2:
        return None
    x_slot = 0 if any(index.axis is None for index in op.reads[0].index) else 1
    x, w = op.reads[x_slot], op.reads[1 - x_slot]
    if any(axis is None for axis in w.plain) or len(set(w.plain)) != len(w.plain):
        return None
    at = [i for i, index in enumerate(x.index) if index.axis is None]
    windows = [Window.of(x.index[i], op) for i in at]
    if not at or any(window is None for window in windows):
        return None
    spatial = [window for window in windows if window is not None]
    plain = [name for name in x.plain if name is not None]
    w_axes = [name for name in w.plain if name is not None]
    taps = [name for window in spatial for name in window.taps]
    outs = [name for window in spatial for name in window.outs]
    groups = [n for n in plain if n in w_axes and n not in op.reduces]
    channels = [n for n in plain if n in op.reduces]
    batch = [n for n in plain if n not in w_axes and n not in op.reduces]
    outputs = [n for n in w_axes if n not in op.reduces and n not in groups]
    walked = [*plain, *taps, *outs]
    if set(channels) | set(taps) != set(op.reduces) or len(set(walked)) != len(walked):
        return None
    if not set(channels) | set(taps) <= set(w_axes) or set(outs) & set(w_axes):
        return None
    sizes = op.sizes

    def size(names: Sequence[str]) -> int:
        return prod(sizes[name] for name in names)

    labels = [axis if axis is not None else f"@{i}" for i, axis in enumerate(x.plain)]
    held = permuted(stored[x_slot], labels, batch + groups + channels + [f"@{i}" for i in at])
    held = held.reshape(
        size(batch), size(groups) * size(channels), *(stored[x_slot].shape[i] for i in at)
    )
    kernel = permuted(stored[1 - x_slot], w_axes, groups + outputs + channels + taps)
    kernel = kernel.reshape(
        size(groups) * size(outputs), size(channels),
        *(size(s.taps) for s in spatial),
    )  # fmt: skip
    backwards = [2 + i for i, s in enumerate(spatial) if s.dilation < 0]
    result = lax.conv_general_dilated(
        held, lax.rev(kernel, backwards) if backwards else kernel,
        [s.stride for s in spatial],
        [_padding(s, stored[x_slot].shape[i], op) for s, i in zip(spatial, at, strict=True)],
        lhs_dilation=[s.spread for s in spatial], rhs_dilation=[abs(s.dilation) for s in spatial],
        feature_group_count=size(groups), preferred_element_type=dtype,
    )  # fmt: skip
    axes = batch + groups + outputs + outs
    return _broadcast(op, axes, result.reshape([sizes[name] for name in axes]))


def _padding(window: Window, length: int, op: Op) -> tuple[int, int]:
    """Elements added before and after (negative: dropped) so that the outputs are as many."""
    reach = (prod(op.sizes[name] for name in window.taps) - 1) * abs(window.dilation)
    first = window.offset - (reach if window.dilation < 0 else 0)
    outputs = prod(op.sizes[name] for name in window.outs)
    last = first + (outputs - 1) * window.stride + reach
    return -first, last - (length - 1) * window.spread


def window_reduction(
    op: Op,
    body: Expr,
    tensor: Tensor,
    stored: Array,
    value: Callable[[Expr, list[Array]], Array],
) -> Named | None:
    """The `reduce_window` that a pool is, or None.

    The op has one read, and in one of its tensor's dimensions at least something is kept and
    something reduced. A sum's body may scale it by what the window lacks (the element count of an
    average); that is applied to the sum.
    """
    lax: Any = importlib.import_module("jax.lax")
    if op.combine not in _WINDOWED or op.reads[0].is_lookup:
        return None
    access = op.reads[0]
    indices = _logical(access, tensor)
    windows = [Window.of(index, op) for index in indices or ()]
    found = [window for window in windows if window is not None]
    if not found or len(found) < len(windows) or any(w.dilation < 0 for w in found):
        return None
    if not any(w.taps and w.outs for w in found):
        return None
    if not (isinstance(body, Read) or (op.combine == "sum" and _scaling(body, op))):
        return None
    neutral, reduce = _WINDOWED[op.combine]
    if any(w.spread != 1 for w in found) or access.fill not in (None, neutral):
        return None
    array = stored.reshape(tensor.shape)
    padding = [_padding(w, size, op) for w, size in zip(found, array.shape, strict=True)]
    cut = [(min(before, 0), min(after, 0), 0) for before, after in padding]
    if any(before or after for before, after, _ in cut):  # elements that no window reaches
        array = lax.pad(array, _start(0.0, array), cut)
    pooled = lax.reduce_window(
        array, _start(neutral, array), getattr(lax, reduce),
        [prod(op.sizes[name] for name in w.taps) for w in found], [w.stride for w in found],
        [(max(before, 0), max(after, 0)) for before, after in padding],
        window_dilation=[w.dilation for w in found],
    )  # fmt: skip
    kept = [name for window in found for name in window.outs]
    pooled = pooled.reshape([op.sizes[name] for name in kept])
    if isinstance(body, Read):
        return _broadcast(op, kept, pooled)
    order = [name for name in op.sizes if name in kept]
    spread = permuted(pooled, kept, order)
    aligned = spread.reshape([size if name in order else 1 for name, size in op.sizes.items()])
    dims = [i for i, name in enumerate(op.sizes) if name in op.reduces]
    return list(op.kept), lax.squeeze(value(body, [aligned]), dims)


def _logical(access: Access, tensor: Tensor) -> list[Index] | None:
    """One index for each dimension of the tensor as its source wrote it, or None."""
    found: list[Index] = []
    at = 0
    for dim in tensor.dims:
        parts = access.index[at : at + len(dim)]
        at += len(dim)
        if len(parts) == 1:
            found.append(parts[0])
            continue
        if any(part.axis is None for part in parts):
            return None
        place = mixed_radix(dim)
        found.append(Index(tuple(
            (part.axis or "", stride)
            for part, (_, stride) in zip(parts, place.terms, strict=True)
        )))  # fmt: skip
    return found


_WINDOWED: dict[str, tuple[float, str]] = {
    "sum": (0.0, "add"), "max": (float("-inf"), "max"), "min": (float("inf"), "min"),
    "prod": (1.0, "mul"),
}  # fmt: skip
"""Combine → its neutral element and JAX's name of it."""


def _start(neutral: float, array: Array) -> Array:
    """The neutral element in the array's dtype."""
    numpy: Any = importlib.import_module("numpy")
    if array.dtype.kind in "iu" and neutral in (float("inf"), float("-inf")):
        bounds = numpy.iinfo(array.dtype)
        return numpy.asarray(bounds.max if neutral > 0 else bounds.min, array.dtype)
    return numpy.asarray(neutral, array.dtype)


def _scaling(body: Expr, op: Op) -> bool:
    """Whether the body is its read times or over something that no reduced axis changes."""
    if not (isinstance(body, Call) and body.function in ("mul", "div")):
        return False
    first, factor = body.args
    inside = walk(factor)
    if not isinstance(first, Read) or any(isinstance(e, Read) for e in inside):
        return False
    return not {getattr(e, "axis", None) for e in inside} & op.reduces


def _broadcast(op: Op, axes: list[str], value: Array) -> Named:
    """The array over every kept axis of the op: repeated along those that it lacks."""
    jnp: Any = importlib.import_module("jax.numpy")
    lacking = [name for name in op.kept if name not in axes]
    shape = [op.sizes[name] for name in lacking] + list(value.shape)
    return [*lacking, *axes], (jnp.broadcast_to(value, shape) if lacking else value)
