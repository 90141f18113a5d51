"""ATen operators that move no value: views, creations, and joins of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from fuseledger.frontends.aten import AtenNode, Lowerer, Site, Unlowered
from fuseledger.graph import window
from fuseledger.graph.axis import Index
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.operand import Operand, Where
from fuseledger.graph.scalar import Const, Coord, Read, call
from fuseledger.graph.view import View, fresh_axis

if TYPE_CHECKING:
    from fuseledger.frontends.aten import Lowering


def _input(s: Site) -> View:
    return s.view("self" if "self" in s.args else next(iter(s.args)))


def _reshape(s: Site) -> View:
    return s.b.reshape(_input(s), s.out.shape)


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


def _broadcast_together(s: Site) -> list[View | None]:
    return [v.expand(o.shape) for v, o in zip(s.views(), s.node.outputs, strict=True)]


def _select(s: Site) -> View:
    x = s.view()
    dim = int(s.get("dim", 0)) % len(x.shape)
    position = int(s.get("index"))
    position += x.shape[dim] if position < 0 else 0
    return s.b.slice(x, dim, position, 1).squeeze(dim)


def _bounds(s: Site, x: View) -> tuple[int, int, int, int]:
    """(dim, start, length, step) of a slice, clamped as ATen does."""
    dim = int(s.get("dim", 0)) % len(x.shape)
    size = x.shape[dim]
    start, end, step = int(s.get("start", 0)), int(s.get("end", size)), int(s.get("step", 1))
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return dim, start, -(-(end - start) // step), step


def _slice(s: Site) -> View:
    x = s.view()
    dim, start, length, step = _bounds(s, x)
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


def _flip(s: Site) -> View:
    x = s.view()
    for dim in s.dims(len(x.shape), "dims"):
        flipped = x.flip(dim)
        if flipped is None:
            flipped = s.b.move(x).flip(dim)
            assert flipped is not None  # a stored tensor"s dimension is one atom
        x = flipped
    return x


def _repeat(s: Site) -> View:
    """repeat and tile: each dimension gains an outer, expanded factor."""
    x = s.view()
    times = s.ints("repeats" if "repeats" in s.args else "dims")
    rank = max(len(times), len(x.shape))
    times = [1] * (rank - len(times)) + times
    sizes = [1] * (rank - len(x.shape)) + list(x.shape)
    split = s.b.reshape(x, [n for size in sizes for n in (1, size)])
    wide = split.expand([n for t, size in zip(times, sizes, strict=True) for n in (t, size)])
    return s.b.reshape(wide, s.out.shape)


def _repeat_interleave(s: Site) -> View:
    x = s.view()
    repeats = s.get("repeats")
    if not isinstance(repeats, int):
        raise Unlowered("repeats")
    dim = s.get("dim")
    x = x if dim is not None else s.b.reshape(x, [x.elements])
    at = int(dim or 0) % len(x.shape)
    wide = x.unsqueeze(at + 1).expand([*x.shape[: at + 1], repeats, *x.shape[at + 1 :]])
    return s.b.reshape(wide, s.out.shape)


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


def _diagonal(s: Site) -> View:
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


def _on_diagonal(s: Site, new: View, shape: Sequence[int], offset: int, rest: View | None) -> View:
    """`new` [..., n] on a diagonal of the last two dimensions, elsewhere `rest` or 0."""
    letters, out = dim_letters(shape)
    row, column = (Coord(letter) if letter else Const(0.0) for letter in out[-2:])
    place = out[-1 if offset <= 0 else -2]  # the dimension that counts from 0 on the diagonal
    where: list[Where] = [x if n != 1 else None for x, n in zip(out, new.shape[:-1], strict=False)]
    where.append(Index(((place, 1),)) if place is not None and new.shape[-1] != 1 else None)
    reads = [Operand(new, tuple(where), 0.0)]
    if rest is not None:
        reads.append(Operand(rest, tuple(out)))
    on = call("eq", call("sub", column, row), float(offset))
    body = call("where", on, Read(0), Read(1) if rest is not None else 0.0)
    return s.b.loop("diagonal", letters, reads, out, body, dtypes=[new.dtype])[0]


def _diag_embed(s: Site) -> View:
    rank = len(s.out.shape)
    dims = [int(s.get(name, default)) % rank for name, default in (("dim1", -2), ("dim2", -1))]
    if dims != [rank - 2, rank - 1]:
        raise Unlowered("dim1")
    offset = int(s.get("offset", s.get("diagonal", 0)))
    return _on_diagonal(s, s.view(), s.out.shape, offset, None)


def _diag(s: Site) -> View:
    return _diag_embed(s) if len(s.view().shape) == 1 else _diagonal(s)


def _as_strided(s: Site) -> View:
    """A view only where size and strides are those of the tensor laid out in order."""
    x = s.view()
    size, stride = s.ints("size"), s.ints("stride")
    expected = [prod(size[i + 1 :]) for i in range(len(size))]
    same = all(n == 1 or a == e for n, a, e in zip(size, stride, expected, strict=True))
    if not same or prod(size) != x.elements or s.get("storage_offset", 0):
        raise Unlowered("stride")
    return s.b.reshape(x, size)


def _cat(s: Site) -> View:
    from fuseledger.frontends.aten_pointwise import cast

    parts = [cast(s, view, s.out.dtype) for view in s.views()]
    rank = len(s.out.shape)
    parts = [view for view in parts if len(view.shape) == rank]  # torch lets an empty [0] be there
    return beside(s, parts, int(s.get("dim", 0)) % rank)


def _stack(s: Site) -> View:
    dim = int(s.get("dim", 0)) % len(s.out.shape)
    return beside(s, [view.unsqueeze(dim) for view in s.views()], dim)


def beside(s: Site, parts: Sequence[View], dim: int) -> View:
    """Parts side by side along `dim`; those of one known value at either end are padding."""
    uniform = s.lowering.uniform
    inner = [part for part in parts if part.shape[dim]] or list(parts[:1])
    edges: list[tuple[float, int, int]] = []
    while len(inner) > 1 and inner[0].base in uniform:
        first = inner.pop(0)
        edges.insert(0, (uniform[first.base], first.shape[dim], 0))
    while len(inner) > 1 and inner[-1].base in uniform:
        last = inner.pop()
        edges.insert(0, (uniform[last.base], 0, last.shape[dim]))
    joint = window.concat(s.b, inner, dim, dtype=s.out.dtype)
    for value, before, after in reversed(edges):
        low, high = [0] * len(joint.shape), [0] * len(joint.shape)
        low[dim], high[dim] = before, after
        joint = window.pad(s.b, joint, low, high, value)
    return joint


def _roll(s: Site) -> View:
    x = s.view()
    dims, shifts = s.ints("dims"), s.ints("shifts")
    if not dims:
        x, dims = s.b.reshape(x, [x.elements]), [0]
    for dim, shift in zip(dims, shifts, strict=True):
        size = x.shape[dim]
        cut = -shift % size
        if cut:
            parts = [s.b.slice(x, dim, cut, size - cut), s.b.slice(x, dim, 0, cut)]
            x = window.concat(s.b, parts, dim)
    return s.b.reshape(x, s.out.shape)


def joined(s: Site, x: View, new: View, dim: int, start: int, step: int = 1) -> View:
    """`x` with `new` in place of the part of dimension `dim` that begins at `start`."""
    size, length = x.shape[dim], new.shape[dim]
    if step != 1 and length != 1:
        raise Unlowered("step")
    end = start + length
    pieces = [(0, start, x), (0, length, new), (end, size - end, x)]
    parts = [s.b.slice(v, dim, at, n) for at, n, v in pieces if n]
    return beside(s, parts, dim)


def _slice_scatter(s: Site) -> View:
    x, new = s.view(), s.view("src")
    dim, start, _, step = _bounds(s, x)
    return joined(s, x, new, dim, start, step)


def _select_scatter(s: Site) -> View:
    x = s.view()
    dim = int(s.get("dim")) % len(x.shape)
    return joined(s, x, s.view("src").unsqueeze(dim), dim, int(s.get("index")) % x.shape[dim])


def _same(s: Site) -> View:
    return _input(s)


def _uniform(value: float) -> Lowerer:
    return lambda s: s.uniform(value, s.out.shape, s.out.dtype)


def _full(s: Site) -> View:
    for name in ("fill_value", "value", "s"):
        if name in s.args:
            return s.uniform(s.number(name), s.out.shape, s.out.dtype)
    raise Unlowered("fill_value")


def _made(s: Site) -> Sequence[View | None]:
    return s.fold()


def written_back(lowering: Lowering, node: AtenNode, parent: View, new: View) -> View | None:
    """The parent of a view after the view was overwritten by `new`, or None where unknown."""
    args = {n: parent if i == 0 else a for i, (n, a) in enumerate(node.args.items())}
    s = Site(lowering, node, args)
    packet = node.packet
    if packet in _PURE or packet.endswith("_"):
        return new
    if packet in _RESHAPES:
        return s.b.reshape(new, parent.shape)
    if packet in ("transpose", "swapaxes", "swapdims", "t", "permute", "numpy_T", "mT"):
        probe = View.whole(parent.base, parent.shape, parent.dtype)
        s = Site(lowering, node, {**args, next(iter(args)): probe})
        moved = VIEWS[packet](s)
        assert isinstance(moved, View)
        order = (
            [probe.dims.index(dim) for dim in moved.dims]
            if len(set(probe.dims)) == len(probe.dims)
            else None
        )
        if order is None:
            return None
        return new.transpose([order.index(i) for i in range(len(order))])
    if packet == "diagonal" and len(parent.shape) == 2:
        return _on_diagonal(s, new, parent.shape, int(s.get("offset", 0)), parent)
    if packet == "slice":
        dim, start, _, step = _bounds(s, parent)
        return joined(s, parent, new, dim, start, step) if step == 1 else None
    if packet == "select":
        dim = int(s.get("dim", 0)) % len(parent.shape)
        return joined(s, parent, new.unsqueeze(dim), dim, int(s.get("index")) % parent.shape[dim])
    return None


_PURE = frozenset({"alias", "detach", "contiguous", "lift", "lift_fresh", "view_as"})
_RESHAPES = frozenset(
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

RANDOM = frozenset(
    [
        "rand",
        "rand_like",
        "randn",
        "randn_like",
        "bernoulli",
        "uniform",
        "normal",
        "dropout",
        "native_dropout",
        "feature_dropout",
        "randint",
        "randint_like",
        "multinomial",
        "randperm",
    ]
)
"""What is drawn anew at every run depends on no input and is no weight all the same."""

VIEWS: dict[str, Lowerer] = {
    **dict.fromkeys(_RESHAPES, _reshape), **dict.fromkeys(_PURE, _same), "permute": _permute,
    "transpose": _swap("dim0", "dim1"), "swapaxes": _swap("axis0", "axis1"),
    "swapdims": _swap("dim0", "dim1"), "t": _reverse, "numpy_T": _reverse,
    "mT": _matrix_transpose, "movedim": _movedim, "moveaxis": _movedim, "expand": _expand,
    "expand_as": _expand, "broadcast_to": _expand, "select": _select, "slice": _slice,
    "narrow": _narrow, "split": _pieces, "split_with_sizes": _pieces, "chunk": _pieces,
    "tensor_split": _pieces, "unsafe_split": _pieces, "unsafe_chunk": _pieces,
    "unsafe_split_with_sizes": _pieces, "unbind": _unbind, "unfold": _unfold,
    "diagonal": _diagonal, "as_strided": _as_strided,
}  # fmt: skip
"""Operators whose result shares the memory of their first argument."""

CREATIONS: dict[str, Lowerer] = {
    **{name: _uniform(0.0) for name in ("zeros", "zeros_like", "new_zeros", "zero")},
    **{name: _uniform(1.0) for name in ("ones", "ones_like", "new_ones")},
    **dict.fromkeys(("full", "full_like", "new_full", "scalar_tensor", "fill"), _full),
    **{name: _uniform(0.0) for name in ("empty", "empty_like", "empty_strided")},
    **{name: _uniform(0.0) for name in ("new_empty", "new_empty_strided")},
    **dict.fromkeys(("arange", "eye", "linspace", "logspace"), _made),
    **dict.fromkeys(("tril_indices", "triu_indices"), _made),
}  # fmt: skip
"""Operators of whose tensors only the shape matters."""

SHAPES: dict[str, Lowerer] = {
    **CREATIONS, "clone": _same, "lift_fresh_copy": _same, "flip": _flip, "fliplr": _flip,
    "repeat": _repeat, "tile": _repeat,
    "repeat_interleave": _repeat_interleave, "cat": _cat, "concat": _cat, "concatenate": _cat,
    "stack": _stack, "broadcast_tensors": _broadcast_together, "roll": _roll,
    "slice_scatter": _slice_scatter, "select_scatter": _select_scatter,
    "diag_embed": _diag_embed, "diag": _diag,
}  # fmt: skip
