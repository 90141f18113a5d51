"""ATen operators whose result shares the memory of their first argument."""

from __future__ import annotations

from math import prod

from fuseledger.frontends.aten_site import Lowerer, Site, Unlowered
from fuseledger.graph.axis import Index
from fuseledger.graph.view import View, fresh_axis


def first_tensor(s: Site) -> View:
    """The operator's tensor as it is, whatever its schema calls it."""
    return s.view("self" if "self" in s.args else next(iter(s.args)))


def _reshape(s: Site) -> View:
    return s.b.reshape(first_tensor(s), s.out.shape)


def _permute(s: Site) -> View:
    x = s.view()
    return x.transpose([dim % len(x.shape) for dim in s.ints("dims")])


def _swap(first: str, second: str) -> Lowerer:
    def lower(s: Site) -> View:
        x = s.view()
        rank = len(x.shape)
        if rank == 0:
            return x
        order = list(range(rank))
        i, j = int(s.get(first)) % rank, int(s.get(second)) % rank
        order[i], order[j] = j, i
        return x.transpose(order)

    return lower


def _reverse(s: Site) -> View:
    x = s.view()
    return x.transpose(range(len(x.shape) - 1, -1, -1))


def _matrix_transpose(s: Site) -> View:
    x = s.view()
    rank = len(x.shape)
    return x.transpose([*range(rank - 2), rank - 1, rank - 2])


def _movedim(s: Site) -> View:
    x = s.view()
    rank = len(x.shape)
    source = [dim % rank for dim in s.ints("source")]
    target = [dim % rank for dim in s.ints("destination")]
    rest = iter(dim for dim in range(rank) if dim not in source)
    place = dict(zip(target, source, strict=True))
    return x.transpose([place[i] if i in place else next(rest) for i in range(rank)])


def _expand(s: Site) -> View:
    return s.view().expand(s.out.shape)


def _select(s: Site) -> View:
    x = s.view()
    dim = int(s.get("dim", 0)) % len(x.shape)
    position = int(s.get("index"))
    position += x.shape[dim] if position < 0 else 0
    return s.b.slice(x, dim, position, 1).squeeze(dim)


def bounds(s: Site, x: View) -> tuple[int, int, int, int]:
    """(dim, start, length, step) of a slice, clamped as ATen does."""
    dim = int(s.get("dim", 0)) % len(x.shape)
    size = x.shape[dim]
    start, end, step = int(s.get("start", 0)), int(s.get("end", size)), int(s.get("step", 1))
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return dim, start, -(-(end - start) // step), step


def _slice(s: Site) -> View:
    x = s.view()
    dim, start, length, step = bounds(s, x)
    return _part(s, x, dim, start, length, step)


def _part(s: Site, x: View, dim: int, start: int, length: int, step: int = 1) -> View:
    if length == 0:
        empty = [*x.shape[:dim], 0, *x.shape[dim + 1 :]]
        return s.uniform(0.0, empty, x.dtype)
    return s.b.slice(x, dim, start, length, step)


def _narrow(s: Site) -> View:
    x = s.view()
    dim, start = int(s.get("dim")) % len(x.shape), int(s.get("start"))
    return _part(s, x, dim, start % x.shape[dim] if start < 0 else start, int(s.get("length")))


def _pieces(s: Site) -> list[View | None]:
    """split, chunk, split_with_sizes: the recorded results say the lengths."""
    x = s.view()
    dim = int(s.get("dim", 0)) % len(x.shape)
    parts: list[View | None] = []
    start = 0
    for value in s.node.outputs:
        parts.append(_part(s, x, dim, start, value.shape[dim]))
        start += value.shape[dim]
    return parts


def _unbind(s: Site) -> list[View | None]:
    x = s.view()
    dim = int(s.get("dim", 0)) % len(x.shape)
    return [s.b.slice(x, dim, i, 1).squeeze(dim) for i in range(x.shape[dim])]


def _unfold(s: Site) -> View:
    """Overlapping windows of one dimension, as a view: position·step + offset."""
    x = s.view()
    dim = int(s.get("dimension")) % len(x.shape)
    merged = x.merged(dim)
    if merged is None:
        merged = s.b.move(x).merged(dim)
    if merged is None:
        raise Unlowered("dimension")
    atom, x = merged
    step, width = int(s.get("step")), int(s.get("size"))
    place, offset = fresh_axis(s.out.shape[dim]), fresh_axis(width)
    terms = tuple((a.name, n) for a, n in ((place, step), (offset, 1)) if a.size != 1)
    coords = x.substitute({atom.name: Index(terms)})
    dims = list(x.dims)
    dims[dim] = (place,) if place.size != 1 else ()
    dims.append((offset,) if offset.size != 1 else ())
    return View(x.base, tuple(dims), coords, x.dtype)


def diagonal(s: Site) -> View:
    """Two dimensions walked by one axis, which becomes the last."""
    x = s.view()
    rank = len(x.shape)
    i, j = int(s.get("dim1", 0)) % rank, int(s.get("dim2", 1)) % rank
    offset = int(s.get("offset", s.get("diagonal", 0)))
    length = s.out.shape[-1]
    first = s.b.slice(x, i, max(-offset, 0), length)
    both = s.b.slice(first, j, max(offset, 0), length)
    if length == 1:
        return s.b.reshape(both, s.out.shape)
    (one,), (two,) = both.dims[i], both.dims[j]
    coords = both.substitute({two.name: Index.of(one.name)})
    dims = [dim for k, dim in enumerate(both.dims) if k not in (i, j)]
    return View(x.base, (*dims, (one,)), coords, x.dtype)


def _as_strided(s: Site) -> View:
    """A view only where size and strides are those of the tensor laid out in order."""
    x = s.view()
    size, stride = s.ints("size"), s.ints("stride")
    expected = [prod(size[i + 1 :]) for i in range(len(size))]
    same = all(n == 1 or a == e for n, a, e in zip(size, stride, expected, strict=True))
    if not same or prod(size) != x.elements or s.get("storage_offset", 0):
        raise Unlowered("stride")
    return s.b.reshape(x, size)


PURE = frozenset({"alias", "detach", "contiguous", "lift", "lift_fresh", "view_as"})
"""Operators whose result is their tensor as it is."""
RESHAPES = frozenset(
    [
        "view",
        "reshape",
        "_unsafe_view",
        "flatten",
        "unflatten",
        "unsqueeze",
        "squeeze",
        "reshape_as",
        "ravel",
    ]
)
"""Operators that give the same elements in another shape."""

VIEWS: dict[str, Lowerer] = {
    **dict.fromkeys(RESHAPES, _reshape), **dict.fromkeys(PURE, first_tensor), "permute": _permute,
    "transpose": _swap("dim0", "dim1"), "swapaxes": _swap("axis0", "axis1"),
    "swapdims": _swap("dim0", "dim1"), "t": _reverse, "numpy_T": _reverse,
    "mT": _matrix_transpose, "movedim": _movedim, "moveaxis": _movedim, "expand": _expand,
    "expand_as": _expand, "broadcast_to": _expand, "select": _select, "slice": _slice,
    "narrow": _narrow, "split": _pieces, "split_with_sizes": _pieces, "chunk": _pieces,
    "tensor_split": _pieces, "unsafe_split": _pieces, "unsafe_chunk": _pieces,
    "unsafe_split_with_sizes": _pieces, "unbind": _unbind, "unfold": _unfold,
    "diagonal": diagonal, "as_strided": _as_strided,
}  # fmt: skip
"""Operators whose result shares the memory of their first argument."""
