"""ONNX operators that rearrange: views, and copies where no view expresses them."""

from __future__ import annotations

from collections.abc import Callable

from fuseledger.frontends.onnx_site import Lowerer, Site, Unlowered
from fuseledger.graph import window
from fuseledger.graph.view import View


def _reshape(s: Site) -> View:
    """Everything that only changes the shape: the inferred shape says how."""
    return s.b.reshape(s.view(), s.shape)


def _transpose(s: Site) -> View:
    x = s.view()
    return x.transpose(s.ints("perm") or list(reversed(range(len(x.shape)))))


def _expand(s: Site) -> View:
    return s.view().expand(s.shape)


def part(s: Site, x: View, dim: int, start: int, length: int, step: int = 1) -> View:
    """`length` elements of a dimension; an empty part reads nothing."""
    if length <= 0:
        shape = [*x.shape[:dim], 0, *x.shape[dim + 1 :]]
        return s.values.fold(f"{s.out.name}.empty", shape, x.dtype)
    return s.b.slice(x, dim, start, length, step)


def _slice(s: Site) -> View:
    """Starts, ends, axes and steps are attributes until opset 9, inputs since."""
    x = s.view()
    starts, ends = s.ints("starts", 1), s.ints("ends", 2)
    if starts is None or ends is None:
        raise Unlowered("starts")
    axes = s.ints("axes", 3) or list(range(len(starts)))
    steps = s.ints("steps", 4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        dim = axis % len(x.shape)
        taken = range(*slice(start, end, step).indices(x.shape[dim]))
        if step < 0 and end < -x.shape[dim]:  # an end before the first element takes it too
            taken = range(*slice(start, None, step).indices(x.shape[dim]))
        x = part(s, x, dim, taken.start, len(taken), step)
    return x


def _split(s: Site) -> list[View | None]:
    """The inferred shapes of the results are the sizes."""
    x = s.view()
    dim = s.axis(len(x.shape), 0)
    parts: list[View | None] = []
    start = 0
    for value in s.results:
        if value is None or value.shape is None:
            raise Unlowered("split")
        parts.append(part(s, x, dim, start, value.shape[dim]))
        start += value.shape[dim]
    return parts


def _concat(s: Site) -> View:
    parts = s.views()
    dim = s.axis(len(parts[0].shape), 1)
    return window.concat(s.b, parts, dim, dtype=s.dtype)


def _tile(s: Site) -> View:
    """Each dimension gains an outer, expanded factor."""
    x = s.view()
    times = s.ints("repeats", 1) or []
    split = s.b.reshape(x, [n for size in x.shape for n in (1, size)])
    wide = split.expand([n for t, size in zip(times, x.shape, strict=True) for n in (t, size)])
    return s.b.reshape(wide, s.shape)


def _depth_to_space(s: Site) -> View:
    x, block = s.view(), int(s.get("blocksize", 1))
    batch, channels, height, width = x.shape
    if s.get("mode", "DCR") == "DCR":
        split, order = (
            [batch, block, block, channels // block**2, height, width],
            [0, 3, 4, 1, 5, 2],
        )
    else:
        split, order = (
            [batch, channels // block**2, block, block, height, width],
            [0, 1, 4, 2, 5, 3],
        )
    return s.b.reshape(s.b.reshape(x, split).transpose(order), s.shape)


def _space_to_depth(s: Site) -> View:
    x, block = s.view(), int(s.get("blocksize", 1))
    batch, channels, height, width = x.shape
    split = s.b.reshape(x, [batch, channels, height // block, block, width // block, block])
    order = [0, 3, 5, 1, 2, 4]
    if s.get("mode", "DCR") == "CRD":
        order = [0, 1, 3, 5, 2, 4]
    return s.b.reshape(split.transpose(order), s.shape)


# -- padding -------------------------------------------------------------------------------------


def _ends(s: Site, rank: int) -> tuple[list[int], list[int]]:
    """(before, after) for each dimension."""
    pads = s.ints("pads", 1) or []
    axes = s.ints("axes", 3)
    axes = [axis % rank for axis in axes] if axes is not None else list(range(rank))
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    return before, after


def _pad(s: Site) -> View:
    x = s.view()
    before, after = _ends(s, len(x.shape))
    mode = s.get("mode", "constant")
    if not any(before) and not any(after):
        return x
    if mode != "constant":
        for dim, (lo, hi) in enumerate(zip(before, after, strict=True)):
            x = _bordered(s, x, dim, lo, hi, _BORDERS[mode])
        return x
    value = s.number(2, 0.0) if s.given(2) is not None else float(s.get("value", 0.0))
    return window.pad(s.b, x, before, after, value)


Border = Callable[[int, int, int], list[tuple[int, int, int]]]
"""(size, before, after) → (start, length, step) of the pieces that stand side by side; a step of
0 repeats one element."""


def _reflect(size: int, before: int, after: int) -> list[tuple[int, int, int]]:
    if max(before, after) >= size:
        raise Unlowered("reflect")
    return [(before, before, -1), (0, size, 1), (size - 2, after, -1)]


def _edge(size: int, before: int, after: int) -> list[tuple[int, int, int]]:
    return [(0, before, 0), (0, size, 1), (size - 1, after, 0)]


def _wrap(size: int, before: int, after: int) -> list[tuple[int, int, int]]:
    if max(before, after) > size:
        raise Unlowered("wrap")
    return [(size - before, before, 1), (0, size, 1), (0, after, 1)]


_BORDERS: dict[str, Border] = {"reflect": _reflect, "edge": _edge, "wrap": _wrap}


def _bordered(s: Site, x: View, dim: int, before: int, after: int, border: Border) -> View:
    """A dimension between copies of its own elements: a concatenation of views of one tensor."""
    if before < 0 or after < 0:
        x = part(s, x, dim, max(-before, 0), x.shape[dim] + min(before, 0) + min(after, 0))
        before, after = max(before, 0), max(after, 0)
    pieces: list[View] = []
    for start, length, step in border(x.shape[dim], before, after):
        if length == 0:
            continue
        if step == 0:
            shape = [*x.shape[:dim], length, *x.shape[dim + 1 :]]
            pieces.append(s.b.slice(x, dim, start, 1).expand(shape))
        else:
            pieces.append(s.b.slice(x, dim, start, length, step))
    return window.concat(s.b, pieces, dim)


# -- resampling ----------------------------------------------------------------------------------


def _scales(s: Site, x: View) -> list[float]:
    """Output over input for each dimension, as the sizes have it."""
    return [out / size if size else 1.0 for out, size in zip(s.shape, x.shape, strict=True)]


def _resize(s: Site) -> View:
    """Nearest neighbour by whole factors: repeated elements (up), every k-th element (down)."""
    x = s.view()
    mode = s.get("coordinate_transformation_mode", "half_pixel" if s.opset >= 11 else "asymmetric")
    rounding = s.get("nearest_mode", "round_prefer_floor" if s.opset >= 11 else "floor")
    if s.get("mode", "nearest") != "nearest" or s.get("antialias", 0):
        raise Unlowered("mode")
    exact = mode == "asymmetric" and rounding == "floor"
    centred = mode.endswith(("half_pixel", "half_pixel_symmetric")) and rounding.startswith("round")
    given = s.array(2 if s.opset >= 11 else 1)
    asked = [] if given is None else [float(n) for n in given.reshape(-1)]
    scales = _scales(s, x)
    if asked and len(asked) == len(scales) and asked != scales:
        raise Unlowered("scales")
    for dim, scale in enumerate(scales):
        up, down = round(scale), round(1 / scale) if scale else 0
        if scale == 1:
            continue
        if scale == up and (exact or centred):
            shape = list(x.shape)
            wide = x.unsqueeze(dim + 1).expand([*shape[: dim + 1], up, *shape[dim + 1 :]])
            x = s.b.reshape(wide, [*shape[:dim], shape[dim] * up, *shape[dim + 1 :]])
        elif exact and s.shape[dim] * down == x.shape[dim]:
            x = s.b.slice(x, dim, 0, s.shape[dim], down)
        else:
            raise Unlowered("scales")
    return x


def _identity(s: Site) -> View:
    return s.view()


SHAPES: dict[str, Lowerer] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    "Identity": _identity, "Transpose": _transpose, "Expand": _expand, "Slice": _slice,
    "Split": _split, "Concat": _concat, "Tile": _tile, "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth, "Pad": _pad, "Resize": _resize, "Upsample": _resize,
}  # fmt: skip
