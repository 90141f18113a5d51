"""ONNX operators that address tensors by values or by loop indices."""

from __future__ import annotations

from fuseledger.frontends.onnx_shape import part
from fuseledger.frontends.onnx_site import Lowerer, Site, Unlowered
from fuseledger.graph import sample, window
from fuseledger.graph.axis import Index
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.operand import Operand, Where
from fuseledger.graph.scalar import Const, Coord, Expr, Read, call
from fuseledger.graph.view import View


def _gather(s: Site) -> View:
    """Known indices in regular steps are a slice; others are looked up."""
    x = s.view()
    dim = s.axis(len(x.shape), 0)
    value = s.operand(1)
    steps = _regular(value.array, x.shape[dim])
    if steps is None:
        return window.take(s.b, x, s.view(1), dim)
    start, length, step = steps
    return s.b.reshape(part(s, x, dim, start, length, step), s.shape)


def _regular(indices: object, size: int) -> tuple[int, int, int] | None:
    """(start, length, step) of known indices in regular steps within [0, size)."""
    if indices is None:
        return None
    flat = [int(i) for i in indices.reshape(-1)]  # type: ignore[attr-defined]
    flat = [i + size if i < 0 else i for i in flat]
    if not flat or any(not 0 <= i < size for i in flat):
        return None
    step = flat[1] - flat[0] if len(flat) > 1 else 1
    if step == 0 or flat != [flat[0] + step * k for k in range(len(flat))]:
        return None
    return flat[0], len(flat), step


def _gather_elements(s: Site) -> View:
    x = s.view()
    return window.take_along(s.b, x, s.view(1), s.axis(len(x.shape), 0))


def _gather_nd(s: Site) -> View:
    """The last dimension of the indices holds coordinates of the leading dimensions of the data."""
    x, indices = s.view(), s.view(1)
    batch, depth = int(s.get("batch_dims", 0)), indices.shape[-1]
    letters, out = dim_letters(s.shape)
    lead = out[: len(indices.shape) - 1]
    reads: list[Operand] = []
    where: list[Where] = [*out[:batch]]
    for k in range(depth):
        column = s.b.slice(indices, len(indices.shape) - 1, k, 1).squeeze(len(indices.shape) - 1)
        reads.append(Operand(column, tuple(lead)))
        where.append(Index(lookup=k))
    where += out[len(lead) :]
    reads.append(Operand(x, tuple(where)))
    return s.b.loop("gather", letters, reads, out, Read(depth), dtypes=[x.dtype])[0]


def _one_hot(s: Site) -> View:
    """1 where the index, wrapped around if negative, is the coordinate: on or off values."""
    indices = s.view()
    depth = int(s.number(1, 0.0))
    off, on = (float(v) for v in s.array(2).reshape(-1))
    axis = int(s.get("axis", -1)) % (len(indices.shape) + 1)
    letters, out = dim_letters(s.shape)
    place: Expr = Coord(letter) if (letter := out[axis]) else Const(0)
    wrapped = call("where", call("lt", Read(0), 0.0), call("add", Read(0), depth), Read(0))
    body = call("where", call("eq", wrapped, place), on, off)
    where = tuple(x for i, x in enumerate(out) if i != axis)
    return s.b.loop("one_hot", letters, [Operand(indices, where)], out, body, dtypes=[s.dtype])[0]


def _trilu(s: Site) -> View:
    x = s.view()
    letters, out = dim_letters(x.shape)
    row, column = (Coord(letter) if letter else Const(0.0) for letter in out[-2:])
    upper = bool(s.get("upper", 1))
    keep = call("ge" if upper else "le", call("sub", column, row), s.number(1, 0.0))
    body = call("where", keep, Read(0), 0.0)
    name = "triu" if upper else "tril"
    return s.b.loop(name, letters, [Operand(x, tuple(out))], out, body, dtypes=[x.dtype])[0]


def _scan(combine: str, neutral: float) -> Lowerer:
    """A running sum or product; `exclusive` reads one back, `reverse` from the end."""

    def lower(s: Site) -> View:
        x = s.view()
        if not x.shape:
            raise Unlowered("axis")
        dim = int(s.number(1, 0.0)) % len(x.shape)
        flips = bool(s.get("reverse", 0))
        x = _flipped(s, x, dim) if flips else x
        letters, out = dim_letters(x.shape)
        letter = out[dim]
        if letter is None:
            raise Unlowered("axis")
        where: list[Where] = list(out)
        fill = None
        if s.get("exclusive", 0):
            where[dim], fill = Index(((letter, 1),), -1), neutral
        (result,) = s.b.loop(
            f"cum{combine}", letters, [Operand(x, tuple(where), fill)], out, Read(0),
            dtypes=[s.dtype], combine=combine, scans=[letter],
        )  # fmt: skip
        return _flipped(s, result, dim) if flips else result

    return lower


def _flipped(s: Site, x: View, dim: int) -> View:
    found = x.flip(dim)
    if found is None:
        found = s.b.move(x).flip(dim)
    if found is None:
        raise Unlowered("reverse")
    return found


def _grid_sample(s: Site) -> View:
    """Linear and nearest; a cubic one reads 4^rank elements, whose border rule is per element."""
    mode = str(s.get("mode", "linear" if s.opset >= 20 else "bilinear"))
    if mode not in ("linear", "bilinear", "nearest"):
        raise Unlowered("mode")
    return sample.grid_sample(
        s.b, s.view(), s.view(1), border=s.get("padding_mode", "zeros"),
        corners=bool(s.get("align_corners", 0)), nearest=mode == "nearest",
    )  # fmt: skip


def _affine_grid(s: Site) -> View:
    space = [int(n) for n in s.array(1).reshape(-1)[2:]]
    return sample.affine_grid(s.b, s.view(), space, corners=bool(s.get("align_corners", 0)))


def _reverse_sequence(s: Site) -> View:
    along, batch = int(s.get("time_axis", 0)), int(s.get("batch_axis", 1))
    return sample.reverse_rows(s.b, s.view(), s.view(1), along, batch)


def _tensor_scatter(s: Site) -> View:
    x = s.view()
    along, mode = int(s.get("axis", -2)) % len(x.shape), s.get("mode", "linear")
    return sample.write_rows(s.b, x, s.view(1), s.maybe(2), along, circular=mode == "circular")


INDEXING: dict[str, Lowerer] = {
    "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd,
    "GridSample": _grid_sample, "AffineGrid": _affine_grid, "ReverseSequence": _reverse_sequence,
    "TensorScatter": _tensor_scatter, "OneHot": _one_hot, "Trilu": _trilu,
    "CumSum": _scan("sum", 0.0), "CumProd": _scan("prod", 1.0),
}  # fmt: skip
