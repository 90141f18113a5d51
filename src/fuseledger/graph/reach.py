"""How much of a tensor an access touches."""

from __future__ import annotations

from math import prod

from fuseledger.graph.axis import Index
from fuseledger.graph.op import Access, Op
from fuseledger.graph.tensor import Tensor


def touched_elements(tensor: Tensor, access: Access, op: Op) -> int:
    """Elements of `tensor` that the access can touch over all of the op's loops, at most.

    Coordinates that share no axis are apart: each takes what it can reach, a looked-up one any
    place. Those that share axes take no more places together than these axes have points: a row's
    own label picks one element of it.
    """
    if access.fill is None and None not in access.plain:
        return prod(op.sizes[name] for name in access.axes)
    groups: list[tuple[frozenset[str], int]] = []
    for axis, index in zip(tensor.axes, access.index, strict=True):
        behind = frozenset(name for name, _ in index.terms)
        places = axis.size
        if index.lookup is None:
            places = reach(index, op.sizes, axis.size)
        else:
            behind |= op.axes_behind(op.reads[index.lookup])
        apart: list[tuple[frozenset[str], int]] = []
        for axes, others in groups:
            if axes.isdisjoint(behind):
                apart.append((axes, others))
            else:
                behind, places = behind | axes, places * others
        groups = [*apart, (behind, min(places, prod(op.sizes[name] for name in behind)))]
    return prod(places for _, places in groups)


def reach(index: Index, extents: dict[str, int], size: int) -> int:
    """Distinct coordinates in `[0, size)` that the index takes when its axes run from 0.

    A window with steps wider than its kernel leaves gaps: the count is the lesser of the span
    and the number of points.
    """
    if index.axis is not None:
        return min(extents[index.axis], size)
    low, high, points = _span(index, extents)
    low, high = -(-low // index.divisor), high // index.divisor
    return min(max(0, min(high, size - 1) - max(low, 0) + 1), points)


def tile_reach(index: Index, extents: dict[str, int], size: int) -> int:
    """The most coordinates that the index takes when its axes run over a tile, wherever it lies.

    The first tile of a padded convolution meets padding; those inside read a halo on both sides.
    """
    if index.axis is not None:
        return min(extents[index.axis], size)
    low, high, points = _span(index, extents)
    return min((high - low) // index.divisor + 1, points, size)


def _span(index: Index, extents: dict[str, int]) -> tuple[int, int, int]:
    """Least and greatest coordinate before the divisor, and the number of points."""
    low = high = index.offset
    points = 1
    for name, stride in index.terms:
        extent = extents[name]
        points *= extent
        step = stride * (extent - 1)
        if step > 0:
            high += step
        else:
            low += step
    return low, high, points
