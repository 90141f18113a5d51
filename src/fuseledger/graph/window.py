"""Ops that address a tensor through windows, offsets and lookups: convolution, pooling, padding,
concatenation, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec import Struct

from fuseledger.errors import ShapeError
from fuseledger.graph.axis import Index
from fuseledger.graph.broadcast import dim_letters
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.compose import mean
from fuseledger.graph.operand import Operand, Where
from fuseledger.graph.scalar import Const, Coord, Expr, Read, call
from fuseledger.graph.view import View


class Window(Struct, frozen=True, kw_only=True):
    """One spatial dimension of a convolution or pool."""

    kernel: int
    stride: int = 1
    before: int = 0
    """Padding before the first element."""
    after: int = 0
    dilation: int = 1

    def outputs(self, size: int, *, ceil: bool = False) -> int:
        """Output size; with `ceil` a last window that starts inside the padded input counts."""
        span = size + self.before + self.after - self.dilation * (self.kernel - 1) - 1
        count = (-(-span // self.stride) if ceil else span // self.stride) + 1
        if ceil and (count - 1) * self.stride >= size + self.before:
            count -= 1
        return max(count, 0)


def convolution(
    b: GraphBuilder,
    x: View,
    weight: View,
    windows: Sequence[Window],
    *,
    groups: int = 1,
    dtype: str | None = None,
) -> View:
    """[batch, c, …] ⋆ weight [o, c/groups, …]; the bias is an op of its own."""
    _, channels, *space = x.shape
    outputs, per_group, *_ = weight.shape
    if per_group * groups != channels:
        raise ShapeError(
            f"convolution: weight {list(weight.shape)} with {groups} groups does not fit "
            f"input {list(x.shape)}"
        )
    sizes = [w.outputs(size) for w, size in zip(windows, space, strict=True)]
    _reached("convolution", sizes, space, windows)
    windows = list(windows)
    for i, (w, size) in enumerate(zip(windows, space, strict=True)):
        tap, between = divmod(w.before, w.dilation)
        if size == sizes[i] == 1 and not between and tap < w.kernel:
            weight = b.slice(weight, 2 + i, tap, 1)  # the one tap that meets the one element
            windows[i] = Window(kernel=1)
    letters, out_space = _space_letters(sizes, windows)
    place = [
        Index(
            ((out, w.stride),) * (out in letters) + ((tap, w.dilation),) * (tap in letters),
            -w.before,
        )
        for w, (out, tap) in zip(windows, out_space, strict=True)
    ]
    padded = any(_leaves(w, size, n) for w, size, n in zip(windows, space, sizes, strict=True))
    return _grouped_convolution(
        b, x, weight, letters, out_space, place, groups, outputs, 0.0 if padded else None, dtype
    )


def transposed_convolution(
    b: GraphBuilder,
    x: View,
    weight: View,
    windows: Sequence[Window],
    output_padding: Sequence[int],
    *,
    groups: int = 1,
    dtype: str | None = None,
) -> View:
    """Transposed convolution, weight [c, o/groups, …]; reads (x + pad − tap·dilation)/stride.

    The divisor says that only taps of the output index's phase do work: one dense convolution
    per phase.
    """
    _, channels, *space = x.shape
    _, per_group, *_ = weight.shape
    sizes = [
        (size - 1) * w.stride - w.before - w.after + w.dilation * (w.kernel - 1) + extra + 1
        for w, size, extra in zip(windows, space, output_padding, strict=True)
    ]
    letters, out_space = _space_letters(sizes, windows)
    place = [
        Index(
            ((out, 1),) * (out in letters) + ((tap, -w.dilation),) * (tap in letters),
            w.before,
            w.stride,
        )
        for w, (out, tap) in zip(windows, out_space, strict=True)
    ]
    split = b.reshape(weight, [groups, channels // groups, *weight.shape[1:]])
    order = [0, 2, 1, *range(3, len(split.shape))]
    flat = split.transpose(order)
    merged = b.reshape(flat, [groups * per_group, channels // groups, *weight.shape[2:]])
    return _grouped_convolution(
        b, x, merged, letters, out_space, place, groups, groups * per_group, 0.0, dtype
    )


def _space_letters(
    sizes: Sequence[int], windows: Sequence[Window]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    names = ["x", "yx", "zyx"][len(sizes) - 1] if len(sizes) <= 3 else "zyxwvu"[: len(sizes)]
    taps = ["s", "rs", "trs"][len(sizes) - 1] if len(sizes) <= 3 else "tuvrsw"[: len(sizes)]
    letters = {name: size for name, size in zip(names, sizes, strict=True) if size != 1}
    letters |= {tap: w.kernel for tap, w in zip(taps, windows, strict=True) if w.kernel != 1}
    return letters, list(zip(names, taps, strict=True))


def _reached(
    what: str, sizes: Sequence[int], space: Sequence[int], windows: Sequence[Window]
) -> None:
    """Refuse windows that fit nowhere in what they slide over."""
    if 0 in sizes and 0 not in space:
        raise ShapeError(
            f"{what}: windows of {[w.kernel for w in windows]} are larger than the input "
            f"{list(space)} with its padding"
        )


def _leaves(w: Window, size: int, outputs: int) -> bool:
    last = (outputs - 1) * w.stride - w.before + (w.kernel - 1) * w.dilation
    return w.before > 0 or last >= size


def _grouped_convolution(
    b: GraphBuilder,
    x: View,
    weight: View,
    letters: dict[str, int],
    space: list[tuple[str, str]],
    place: list[Index],
    groups: int,
    outputs: int,
    fill: float | None,
    dtype: str | None,
) -> View:
    batch, channels = x.shape[:2]
    per_group, outs = channels // groups, outputs // groups
    sizes = {"b": batch, "g": groups, "o": outs, "c": per_group}
    present = {name: size for name, size in sizes.items() if size != 1}
    all_letters = {**present, **letters}
    grouped_x = b.reshape(x, [batch, groups, per_group, *x.shape[2:]])
    grouped_w = b.reshape(weight, [groups, outs, per_group, *weight.shape[2:]])

    def letter(name: str) -> str | None:
        return name if name in all_letters else None

    where_x: list[Where] = [letter("b"), letter("g"), letter("c"), *place]
    where_w: list[Where] = [
        letter("g"),
        letter("o"),
        letter("c"),
        *(letter(tap) for _, tap in space),
    ]
    out = [letter("b"), letter("g"), letter("o"), *(letter(name) for name, _ in space)]
    reads = [Operand(grouped_x, tuple(where_x), fill), Operand(grouped_w, tuple(where_w))]
    ordered = [x for x in out if x is not None]
    all_letters = {**{x: all_letters[x] for x in ordered}, **all_letters}
    (result,) = b.loop(
        "conv",
        all_letters,
        reads,
        out,
        call("mul", Read(0), Read(1)),
        dtypes=[dtype or x.dtype],
        combine="sum",
    )
    return b.reshape(result, [batch, outputs, *result.shape[3:]])


def pool(
    b: GraphBuilder,
    x: View,
    windows: Sequence[Window],
    combine: str,
    *,
    ceil: bool = False,
    scale: float | None = None,
    count_padding: bool = True,
) -> View:
    """Max or average pool over the trailing dimensions; `combine` is `max` or `sum`.

    An average divides by the kernel size, by `scale` where given, or, with padding that does not
    count, by the number of elements inside, as a function of the output index.
    """
    lead = len(x.shape) - len(windows)
    space = x.shape[lead:]
    sizes = [w.outputs(size, ceil=ceil) for w, size in zip(windows, space, strict=True)]
    _reached("pool", sizes, space, windows)
    lead_letters = {f"d{i}": size for i, size in enumerate(x.shape[:lead]) if size != 1}
    letters, names = _space_letters(sizes, windows)
    place = [
        Index(
            ((out, w.stride),) * (out in letters) + ((tap, w.dilation),) * (tap in letters),
            -w.before,
        )
        for w, (out, tap) in zip(windows, names, strict=True)
    ]
    out: list[str | None] = [f"d{i}" if f"d{i}" in lead_letters else None for i in range(lead)]
    where = (*out, *place)
    out += [name if name in letters else None for name, _ in names]
    padded = any(_leaves(w, size, n) for w, size, n in zip(windows, space, sizes, strict=True))
    body: Expr = Read(0)
    function = "max_pool"
    if combine == "sum":
        function = "avg_pool"
        body = call("mul", Read(0), Const(scale or 1.0 / prod(w.kernel for w in windows)))
        if padded and not scale and (not count_padding or ceil):
            body = call(
                "div", Read(0), _inside(windows, space, names, letters, count_padding=count_padding)
            )
    fill = (float("-inf") if combine == "max" else 0.0) if padded else None
    reads = [Operand(x, where, fill)]
    every = {**lead_letters, **letters}
    return b.loop(function, every, reads, out, body, dtypes=[x.dtype], combine=combine)[0]


def _inside(
    windows: Sequence[Window],
    space: Sequence[int],
    names: Sequence[tuple[str, str]],
    letters: dict[str, int],
    *,
    count_padding: bool,
) -> Expr:
    """Elements that a window counts, as a function of the output index."""
    total: Expr = Const(1)
    for w, size, (name, _) in zip(windows, space, names, strict=True):
        place: Expr = Coord(name) if name in letters else Const(0)
        start = call("sub", call("mul", place, Const(w.stride)), Const(w.before))
        low, high = (-w.before, size + w.after) if count_padding else (0, size)
        stop = call("min", call("add", start, Const(w.kernel)), Const(high))
        total = call("mul", total, call("sub", stop, call("max", start, Const(low))))
    return total


def adaptive_avg_pool(b: GraphBuilder, x: View, outputs: Sequence[int]) -> View | None:
    """Adaptive average pool where the output divides the input (else None: windows differ)."""
    lead = len(x.shape) - len(outputs)
    space = x.shape[lead:]
    if any(size % n for size, n in zip(space, outputs, strict=True)):
        return None
    if all(n == 1 for n in outputs):
        return mean(b, x, list(range(lead, len(x.shape))), keepdim=True)
    windows = [Window(kernel=s // n, stride=s // n) for s, n in zip(space, outputs, strict=True)]
    return pool(b, x, windows, "sum")


def pad(
    b: GraphBuilder, x: View, before: Sequence[int], after: Sequence[int], value: float
) -> View:
    """Constant padding (negative amounts crop), one amount per dimension."""
    shape = [s + lo + hi for s, lo, hi in zip(x.shape, before, after, strict=True)]
    letters, out = dim_letters(shape)
    where: list[Where] = []
    for i, size in enumerate(x.shape):
        letter = out[i]
        if before[i] == 0 and after[i] == 0:
            where.append(letter if size != 1 else None)
        else:
            where.append(Index(((letter, 1),) if letter else (), -before[i]))
    return b.loop(
        "pad", letters, [Operand(x, tuple(where), value)], out, Read(0), dtypes=[x.dtype]
    )[0]


def concat(b: GraphBuilder, parts: Sequence[View], dim: int, *, dtype: str | None = None) -> View:
    """Parts side by side along `dim`: each point reads the one part that it lies in."""
    rank = len(parts[0].shape)
    dim %= rank
    parts = [part for part in parts if part.shape[dim]] or [parts[0]]
    if len(parts) == 1:
        return parts[0]
    for part in parts[1:]:
        same = all(
            p == q
            for i, (p, q) in enumerate(zip(part.shape, parts[0].shape, strict=True))
            if i != dim
        )
        if not same:
            raise ShapeError(f"concat: {list(part.shape)} beside {list(parts[0].shape)} on {dim}")
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    letters, out = dim_letters(shape)
    along = out[dim]
    assert along is not None  # at least two parts with an element each
    reads: list[Operand] = []
    starts: list[int] = []
    start = 0
    for part in parts:
        where: list[Where] = [x if part.shape[i] != 1 else None for i, x in enumerate(out)]
        alone = part.shape[dim] == 1  # its one element is read everywhere, and used where it lies
        if not alone:
            where[dim] = Index(((along, 1),), -start)
        reads.append(Operand(part, tuple(where), None if alone else 0.0))
        starts.append(start)
        start += part.shape[dim]
    body = _side(Coord(along), starts, 0, len(parts))
    return b.loop("concat", letters, reads, out, body, dtypes=[dtype or parts[0].dtype])[0]


def _side(place: Coord, starts: Sequence[int], first: int, end: int) -> Expr:
    """The one of the reads from `first` to `end` whose part `place` lies in, found by halving:
    what is joined of a thousand parts is ten calls deep."""
    if end == first + 1:
        return Read(first)
    middle = (first + end) // 2
    before, after = _side(place, starts, first, middle), _side(place, starts, middle, end)
    return call("where", call("lt", place, Const(starts[middle])), before, after)


def take(b: GraphBuilder, table: View, indices: View, dim: int) -> View:
    """`table` with dimension `dim` looked up by `indices` (embedding, index_select, Gather)."""
    dim %= len(table.shape)
    shape = [*table.shape[:dim], *indices.shape, *table.shape[dim + 1 :]]
    letters, out = dim_letters(shape)
    span = len(indices.shape)
    where_i = tuple(out[dim : dim + span])
    before, after = out[:dim], out[dim + span :]
    where_t: tuple[Where, ...] = (*before, Index(lookup=0), *after)
    return b.loop(
        "gather",
        letters,
        [Operand(indices, where_i), Operand(table, where_t)],
        out,
        Read(1),
        dtypes=[table.dtype],
    )[0]


def take_along(b: GraphBuilder, table: View, indices: View, dim: int) -> View:
    """`table` looked up along `dim` by `indices` of the result's shape (gather, GatherElements)."""
    letters, out = dim_letters(indices.shape)
    where_t: list[Where] = [
        (x if size != 1 else None) for x, size in zip(out, table.shape, strict=True)
    ]
    where_t[dim % len(out)] = Index(lookup=0)
    for i, (size, table_size) in enumerate(zip(indices.shape, table.shape, strict=True)):
        letter = out[i]
        if i != dim % len(out) and letter is not None and size != table_size:
            where_t[i] = Index(((letter, 1),))
    reads = [Operand(indices, tuple(out)), Operand(table, tuple(where_t))]
    return b.loop("gather", letters, reads, out, Read(1), dtypes=[table.dtype])[0]
