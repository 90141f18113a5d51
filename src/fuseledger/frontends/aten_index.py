"""ATen operators that look tensors up by the values of others."""

from __future__ import annotations

from fuseledger.frontends.aten_site import Lowerer, Site, Unlowered
from fuseledger.graph import sample, window
from fuseledger.graph.axis import Index
from fuseledger.graph.broadcast import broadcast_shapes, dim_letters
from fuseledger.graph.operand import Operand, Where
from fuseledger.graph.scalar import Read
from fuseledger.graph.view import View


def _embedding(s: Site) -> View:
    return window.take(s.b, s.view("weight"), s.view("indices"), 0)


def _index_select(s: Site) -> View:
    x, index = s.view(), s.view("index")
    return window.take(s.b, x, s.b.reshape(index, [index.elements]), int(s.get("dim")))


def _gather(s: Site) -> View:
    x, index = s.view(), s.view("index")
    if not x.shape or x.shape == (1,):
        raise Unlowered("self")
    return window.take_along(s.b, x, index, int(s.get("dim")))


def _index(s: Site) -> View:
    """`x[i, :, j]`: integer tensors that broadcast together; None leaves a dimension whole.

    The looked-up dimensions go where the first index stands if the indices are adjacent; they go
    first if not.
    """
    x = s.view()
    given = list(s.get("indices", []))
    indices: dict[int, View] = {i: v for i, v in enumerate(given) if isinstance(v, View)}
    if any(v.dtype in ("bool", "uint8") for v in indices.values()):
        raise Unlowered("indices")
    shape = broadcast_shapes("index", [v.shape for v in indices.values()])
    positions = list(indices)
    adjacent = positions[-1] - positions[0] + 1 == len(positions)
    at = positions[0] if adjacent else 0
    kept = [i for i in range(len(x.shape)) if i not in indices]
    order = (
        [*kept[:at], *(-1 for _ in shape), *kept[at:]]
        if adjacent
        else [*(-1 for _ in shape), *kept]
    )
    letters, out = dim_letters(s.out.shape)
    looked = [letter for letter, source in zip(out, order, strict=True) if source == -1]
    where: list[Where] = [None] * len(x.shape)
    for letter, source in zip(out, order, strict=True):
        if source != -1:
            where[source] = letter
    reads: list[Operand] = []
    for slot, (dim, view) in enumerate(indices.items()):
        tail = looked[len(looked) - len(view.shape) :]
        reads.append(
            Operand(
                view, tuple(x if n != 1 else None for x, n in zip(tail, view.shape, strict=True))
            )
        )
        where[dim] = Index(lookup=slot)
    reads.append(Operand(x, tuple(where)))
    return s.b.loop("gather", letters, reads, out, Read(len(indices)), dtypes=[x.dtype])[0]


def _one_hot(s: Site) -> View:
    from fuseledger.graph.scalar import Coord, call

    x = s.view()
    letters, out = dim_letters(s.out.shape)
    if out[-1] is None:
        raise Unlowered("num_classes")
    body = call("eq", Read(0), Coord(out[-1]))
    return s.b.loop(
        "one_hot", letters, [Operand(x, tuple(out[:-1]))], out, body, dtypes=[s.out.dtype]
    )[0]


_BORDERS: tuple[sample.Border, ...] = ("zeros", "border", "reflection")


def _grid_sampler(s: Site) -> View:
    """Modes by number: 0 linear, 1 nearest, 2 cubic; 0 zeros, 1 border, 2 reflection."""
    mode, border = int(s.get("interpolation_mode", 0)), int(s.get("padding_mode", 0))
    if mode > 1:
        raise Unlowered("interpolation_mode")
    return sample.grid_sample(
        s.b, s.view("input"), s.view("grid"), border=_BORDERS[border],
        corners=bool(s.get("align_corners", False)), nearest=mode == 1,
    )  # fmt: skip


def _affine_grid(s: Site) -> View:
    space = [int(n) for n in s.get("size")[2:]]
    return sample.affine_grid(
        s.b, s.view("theta"), space, corners=bool(s.get("align_corners", False))
    )


INDEXING: dict[str, Lowerer] = {
    "embedding": _embedding, "index_select": _index_select, "gather": _gather, "index": _index,
    "_unsafe_index": _index, "one_hot": _one_hot,
    "affine_grid_generator": _affine_grid,
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), _grid_sampler),
}  # fmt: skip
