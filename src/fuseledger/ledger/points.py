"""Coordinates that blocks take along one dimension: sets of them, and their number over blocks."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

Points = frozenset[int] | range
"""Coordinates along one axis or dimension."""

POSITIONS_MAX = 1 << 12
"""Blocks beyond which edges are no longer looked at one by one."""
POINTS_MAX = 1 << 12
"""Coordinates of one read in one block beyond which their number counts, not which they are."""
FEW_POINTS = 64
"""Coordinates of one read in one block up to which plain loops are quicker than arrays."""


def meet(one: Points, other: Points) -> Points:
    """Coordinates in both."""
    if isinstance(one, range):
        if isinstance(other, range):
            return range(max(one.start, other.start), min(one.stop, other.stop))
        return _inside(other, one)
    return _inside(one, other) if isinstance(other, range) else one & other


def _inside(points: frozenset[int], within: range) -> Points:
    return frozenset([point for point in points if point in within])


def join(one: Points, other: Points) -> Points:
    """Coordinates in either."""
    if isinstance(one, range) and isinstance(other, range):
        if not one or not other:
            return one or other
        if one.start <= other.stop and other.start <= one.stop:
            return range(min(one.start, other.start), max(one.stop, other.stop))
    return frozenset(one) | frozenset(other)


@lru_cache(maxsize=1 << 14)
def window_sum(
    terms: tuple[tuple[int, int, int], ...], offset: int, divisor: int, size: int
) -> int:
    """Σ over blocks of the coordinates that each takes: terms are (stride, size, tile)."""
    if divisor == 1 and _is_inside(terms, offset, size):
        return _unclipped_sum(terms)
    counts = [-(-extent // tile) for _, extent, tile in terms]
    blocks = prod(counts)
    walk = (
        product(*map(range, counts))
        if blocks <= POSITIONS_MAX
        else [[min(1, c - 1) for c in counts]]
    )
    total = 0
    for where in walk:
        ranges = tuple(
            (range(at * tile, min(extent, (at + 1) * tile)), stride)
            for at, (stride, extent, tile) in zip(where, terms, strict=True)
        )
        total += len(coordinates(ranges, offset, divisor, size))
    return total if blocks <= POSITIONS_MAX else total * blocks


def _is_inside(terms: tuple[tuple[int, int, int], ...], offset: int, size: int) -> bool:
    """Whether no point of the walk leaves the tensor."""
    ends = [stride * (extent - 1) for stride, extent, _ in terms]
    low = offset + sum(min(0, end) for end in ends)
    return low >= 0 and offset + sum(max(0, end) for end in ends) < size


def _unclipped_sum(terms: tuple[tuple[int, int, int], ...]) -> int:
    """The same where no point leaves the tensor: blocks differ in their ragged ends alone."""
    total = 0
    for ends in product(*(_lengths(extent, tile) for _, extent, tile in terms)):
        steps = [(abs(stride), n) for (n, _), (stride, _, _) in zip(ends, terms, strict=True)]
        total += prod(blocks for _, blocks in ends) * _distinct(steps)
    return total


def _lengths(extent: int, tile: int) -> list[tuple[int, int]]:
    """(points, how many blocks have so many) along one axis."""
    full, rest = divmod(extent, tile) if tile else (0, 0)
    return [(points, blocks) for points, blocks in ((tile, full), (rest, 1)) if points and blocks]


def _distinct(steps: list[tuple[int, int]]) -> int:
    """Values of Σ stride·i, i < n, of (stride, n).

    Strides in ascending order fill a range, or leave gaps that nothing falls into twice; where
    neither holds the points are walked.
    """
    count, reach = 1, 0
    for stride, n in sorted(step for step in steps if step[1] > 1):
        if count == reach + 1 and stride <= count:
            reach += stride * (n - 1)
            count = reach + 1
        elif stride > reach:
            reach += stride * (n - 1)
            count *= n
        else:
            walked = tuple((range(n), stride) for stride, n in steps)
            return len(coordinates(walked, 0, 1, sum(s * (n - 1) for s, n in steps) + 1))
    return count


@lru_cache(maxsize=1 << 12)
def coordinates(
    terms: tuple[tuple[Points, int], ...], offset: int, divisor: int, size: int
) -> Points:
    """Values of (Σ stride·point + offset) / divisor that are whole and inside `[0, size)`."""
    if any(not points for points, _ in terms):
        return range(0)
    low = high = offset
    filled = 0  # all steps below it are taken
    for points, stride in sorted(terms, key=lambda term: abs(term[1])):
        if not isinstance(points, range) or (len(points) > 1 and abs(stride) > filled + 1):
            break
        ends = (stride * points[0], stride * points[-1])
        low, high = low + min(ends), high + max(ends)
        filled += abs(stride) * (len(points) - 1)
    else:
        return range(max(0, -(-low // divisor)), min(size - 1, high // divisor) + 1)
    count = prod(len(points) for points, _ in terms)
    if count > POINTS_MAX:
        low, high = _span(terms, offset)
        first, last = max(0, -(-low // divisor)), min(size - 1, high // divisor)
        return range(first, min(last + 1, first + count))
    if count > FEW_POINTS:
        return _many_coordinates(terms, offset, divisor, size)
    sums = [offset]
    for points, stride in terms:
        sums = [value + stride * point for value in sums for point in points]
    return frozenset([v // divisor for v in sums if v % divisor == 0 and 0 <= v // divisor < size])


def _many_coordinates(
    terms: tuple[tuple[Points, int], ...], offset: int, divisor: int, size: int
) -> frozenset[int]:
    import numpy as np  # slow to import, and few kernels walk so many points

    sums = np.array([offset])
    for points, stride in terms:
        steps = stride * np.fromiter(points, np.int64, len(points))
        sums = np.add.outer(sums, steps).ravel()
    whole = sums[sums % divisor == 0] // divisor
    return frozenset(whole[(whole >= 0) & (whole < size)].tolist())


def _span(terms: tuple[tuple[Points, int], ...], offset: int) -> tuple[int, int]:
    """Least and greatest value of offset + Σ stride·point."""
    ends = [(stride * min(points), stride * max(points)) for points, stride in terms]
    return offset + sum(map(min, ends)), offset + sum(map(max, ends))
