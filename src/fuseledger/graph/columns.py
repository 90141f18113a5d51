"""Windows as columns of a matrix (im2col, unfold), and columns summed back (col2im, fold)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fuseledger.graph.axis import Index
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.operand import Operand, Where
from fuseledger.graph.scalar import Read
from fuseledger.graph.view import View
from fuseledger.graph.window import Window


def unfold(b: GraphBuilder, x: View, windows: Sequence[Window]) -> View:
    """`x` [b, c, …] → [b, c·taps, positions]: every window as a column."""
    counts = [w.outputs(size) for w, size in zip(windows, x.shape[2:], strict=True)]
    letters, positions, taps = _letters(x.shape[:2], counts, windows)
    out = [*_present("bc", letters), *_present(taps, letters), *_present(positions, letters)]
    where: list[Where] = [*_present("bc", letters)]
    for position, tap, w in zip(positions, taps, windows, strict=True):
        terms = [(position, w.stride), (tap, w.dilation)]
        where.append(Index(tuple(t for t in terms if t[0] in letters), -w.before))
    padded = any(w.before or w.after for w in windows)
    reads = [Operand(x, tuple(where), 0.0 if padded else None)]
    (columns,) = b.loop("im2col", letters, reads, out, Read(0), dtypes=[x.dtype])
    batch, channels = x.shape[:2]
    return b.reshape(columns, [batch, channels * prod(w.kernel for w in windows), prod(counts)])


def fold(b: GraphBuilder, columns: View, image: Sequence[int], windows: Sequence[Window]) -> View:
    """`columns` [b, c·taps, positions] → [b, c, *image]: each element sums what overlaps it."""
    batch, rows, _ = columns.shape
    channels = rows // prod(w.kernel for w in windows)
    letters, positions, taps = _letters((batch, channels), image, windows)
    counts = [w.outputs(size) for w, size in zip(windows, image, strict=True)]
    split = b.reshape(columns, [batch, channels, *(w.kernel for w in windows), *counts])
    where: list[Where] = [*_present("bc", letters), *_present(taps, letters)]
    for position, tap, w in zip(positions, taps, windows, strict=True):
        terms = [(position, 1), (tap, -w.dilation)]
        where.append(Index(tuple(t for t in terms if t[0] in letters), w.before, w.stride))
    out = [*_present("bc", letters), *_present(positions, letters)]
    reads = [Operand(split, tuple(where), 0.0)]
    (image_view,) = b.loop(
        "col2im", letters, reads, out, Read(0), dtypes=[columns.dtype], combine="sum"
    )
    return b.reshape(image_view, [batch, channels, *image])


def _letters(
    lead: Sequence[int], space: Sequence[int], windows: Sequence[Window]
) -> tuple[dict[str, int], list[str], list[str]]:
    """Sizes other than 1 by letter, and the letters of positions and taps."""
    positions = [f"x{k}" for k in range(len(windows))]
    taps = [f"r{k}" for k in range(len(windows))]
    sizes = dict(zip("bc", lead, strict=True))
    sizes |= dict(zip(positions, space, strict=True))
    sizes |= {tap: w.kernel for tap, w in zip(taps, windows, strict=True)}
    return {name: size for name, size in sizes.items() if size != 1}, positions, taps


def _present(names: Sequence[str], letters: dict[str, int]) -> list[str | None]:
    return [name if name in letters else None for name in names]
