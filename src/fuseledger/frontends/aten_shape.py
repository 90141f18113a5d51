"""ATen operators that move no value and are no view: creations, repeats, and joins of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from fuseledger.frontends.aten_site import Lowerer, Site, Unlowered
from fuseledger.frontends.aten_views import bounds, diagonal, first_tensor
from fuseledger.graph import window
from fuseledger.graph.axis import Index
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.operand import Operand, Where
from fuseledger.graph.scalar import Const, Coord, Read, call
from fuseledger.graph.view import View


def _broadcast_together(s: Site) -> list[View | None]:
    return [v.expand(o.shape) for v, o in zip(s.views(), s.node.outputs, strict=True)]


def _flip(s: Site) -> View:
    x = s.view()
    for dim in s.dims(len(x.shape), "dims"):
        flipped = x.flip(dim)
        if flipped is None:
            flipped = s.b.move(x).flip(dim)
            assert flipped is not None  # a stored tensor's dimension is one atom
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


def on_diagonal(s: Site, new: View, shape: Sequence[int], offset: int, rest: View | None) -> View:
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
    return on_diagonal(s, s.view(), s.out.shape, offset, None)


def _diag(s: Site) -> View:
    return _diag_embed(s) if len(s.view().shape) == 1 else diagonal(s)


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
    dim, start, _, step = bounds(s, x)
    return joined(s, x, new, dim, start, step)


def _select_scatter(s: Site) -> View:
    x = s.view()
    dim = int(s.get("dim")) % len(x.shape)
    return joined(s, x, s.view("src").unsqueeze(dim), dim, int(s.get("index")) % x.shape[dim])


def _uniform(value: float) -> Lowerer:
    return lambda s: s.uniform(value, s.out.shape, s.out.dtype)


def _full(s: Site) -> View:
    for name in ("fill_value", "value", "s"):
        if name in s.args:
            return s.uniform(s.number(name), s.out.shape, s.out.dtype)
    raise Unlowered("fill_value")


def _made(s: Site) -> Sequence[View | None]:
    return s.fold()


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
    **CREATIONS, "clone": first_tensor, "lift_fresh_copy": first_tensor, "flip": _flip,
    "fliplr": _flip, "repeat": _repeat, "tile": _repeat, "repeat_interleave": _repeat_interleave,
    "cat": _cat, "concat": _cat, "concatenate": _cat,
    "stack": _stack, "broadcast_tensors": _broadcast_together, "roll": _roll,
    "slice_scatter": _slice_scatter, "select_scatter": _select_scatter,
    "diag_embed": _diag_embed, "diag": _diag,
}  # fmt: skip
