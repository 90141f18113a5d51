"""How much all blocks of a grid take of a tensor: Σ over blocks of a union of boxes.

A box is what one read takes in one block: along each dimension a set of coordinates that follows
from where the block is along its *drivers*, the grid's axes. By inclusion and exclusion the sum is
one over sets of boxes, of what all boxes of a set share. Dimensions with no driver in common are
factors of that. Along one dimension, what boxes with drivers of their own share over all pairs of
blocks follows from how many blocks take each coordinate: once each, where tiles just partition it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from fuseledger.ledger.points import POSITIONS_MAX, Points, coordinates, join, meet, window_sum

BOXES_MAX = 8
"""Boxes of one tensor beyond which the largest stands for their union."""


class Image(NamedTuple):
    """Coordinates inside `[0, size)` that (Σ stride·walk + offset) / divisor takes."""

    terms: tuple[tuple[Walk, int], ...]
    offset: int
    divisor: int
    size: int


class Union(NamedTuple):
    """What several walks take together."""

    walks: tuple[Walk, ...]


Walk = int | Points | Image | Union
"""Where a block is along an axis: in its tile of a driver, by number; or always at some points."""
Box = tuple[Walk, ...]
"""A walk of each dimension."""


class Driver(NamedTuple):
    """An axis of the grid in tiles."""

    size: int
    tile: int

    @property
    def blocks(self) -> int:
        """Blocks along it."""
        return -(-self.size // self.tile)

    def block(self, number: int) -> range:
        """Points of one of them."""
        return range(number * self.tile, min(self.size, (number + 1) * self.tile))


@lru_cache(maxsize=1 << 14)
def block_sum(sizes: tuple[int, ...], boxes: tuple[Box, ...], drivers: tuple[Driver, ...]) -> int:
    """Σ over all blocks of the elements that each takes of dimensions of these sizes.

    Exact, but for walks of more than POSITIONS_MAX blocks or POINTS_MAX coordinates, where a block
    inside stands for others, and for more than BOXES_MAX boxes.
    """
    apart = _apart(sizes, boxes)
    if len(apart) > BOXES_MAX:
        return max(_shared(sizes, (box,), drivers) for box in apart)
    total, sign = 0, 1
    sets = [((box,), k) for k, box in enumerate(apart)]
    while sets:
        found = [(_shared(sizes, those, drivers), those, k) for those, k in sets]
        total += sign * sum(shared for shared, _, _ in found)
        sign = -sign
        sets = [
            ((*those, apart[j]), j)
            for shared, those, k in found
            if shared
            for j in range(k + 1, len(apart))
        ]
    return total


def _apart(sizes: tuple[int, ...], boxes: tuple[Box, ...]) -> list[Box]:
    """Boxes without those that lie in another; unions along a dimension as boxes of their own,
    unless that makes too many."""
    simple = dict.fromkeys(
        each for box in boxes for each in product(*(walks_of(walk) for walk in box))
    )
    found = _outermost(sizes, tuple(simple))
    return found if len(found) <= BOXES_MAX else _outermost(sizes, boxes)


def _outermost(sizes: tuple[int, ...], boxes: tuple[Box, ...]) -> list[Box]:
    return [
        box
        for box in boxes
        if not any(other != box and _holds(sizes, other, box) for other in boxes)
    ]


def walks_of(walk: Walk) -> tuple[Walk, ...]:
    """The walks that a union is of: else it itself."""
    return walk.walks if isinstance(walk, Union) else (walk,)


def _holds(sizes: tuple[int, ...], one: Box, other: Box) -> bool:
    """Whether one box is whole wherever the two differ."""
    return all(a in (b, range(size)) for a, b, size in zip(one, other, sizes, strict=True))


def drivers_of(walk: Walk) -> frozenset[int]:
    """Drivers that decide where a walk is."""
    if isinstance(walk, int):
        return frozenset((walk,))
    if isinstance(walk, Image):
        return _NONE.union(*(drivers_of(inner) for inner, _ in walk.terms))
    if isinstance(walk, Union):
        return _NONE.union(*map(drivers_of, walk.walks))
    return _NONE


def points_of(walk: Walk, at: Sequence[range]) -> Points:
    """Where a walk is in the block that is at these points of its drivers."""
    if isinstance(walk, int):
        return at[walk]
    if isinstance(walk, Image):
        terms = tuple((points_of(inner, at), stride) for inner, stride in walk.terms)
        return coordinates(terms, walk.offset, walk.divisor, walk.size)
    if isinstance(walk, Union):
        found: Points = range(0)
        for inner in walk.walks:
            found = join(found, points_of(inner, at))
        return found
    return walk


def _shared(sizes: tuple[int, ...], boxes: tuple[Box, ...], drivers: tuple[Driver, ...]) -> int:
    """Σ over blocks of the elements that all of these boxes have."""
    total = 1
    unused = set(range(len(drivers)))
    groups: list[tuple[list[int], set[int]]] = []
    for dim in range(len(sizes)):
        joined, by = [dim], {k for box in boxes for k in drivers_of(box[dim])}
        unused -= by
        others = [group for group in groups if not by.isdisjoint(group[1])]
        groups = [group for group in groups if by.isdisjoint(group[1])]
        for dims, theirs in others:
            joined, by = dims + joined, by | theirs
        groups.append((joined, by))
    for dims, by in groups:
        walks = [tuple({box[dim] for box in boxes}) for dim in dims]
        total *= _along(sizes[dims[0]], walks, sorted(by), drivers)
        if not total:
            return 0
    return total * prod([drivers[k].blocks for k in unused])


def _along(
    size: int, walks: list[tuple[Walk, ...]], by: list[int], drivers: tuple[Driver, ...]
) -> int:
    """Σ over blocks along some drivers of what the walks of each dimension share."""
    first, *others = walks
    if others:
        return _summed(walks, by, drivers)
    if len(first) == 1:
        window = _window(first[0], drivers)
        if window is not None:
            return window_sum(*window)
    clusters = _clusters(first)
    counted = [c for c in clusters if not _is_partition(c, size, drivers)]
    if not counted:
        return size
    if len(counted) == 1:
        return _summed([counted[0]], sorted(_drivers(counted[0])), drivers)
    if prod([drivers[k].blocks for k in by]) <= _FEW_BLOCKS or any(
        prod([drivers[k].blocks for k in _drivers(c)]) > POSITIONS_MAX for c in counted
    ):
        return _summed([first], by, drivers)
    return _covered([list(_takes(cluster, drivers)) for cluster in counted])


_FEW_BLOCKS = 16
"""Blocks that are quicker walked than their drivers told apart."""


def _window(
    walk: Walk, drivers: tuple[Driver, ...]
) -> tuple[tuple[tuple[int, int, int], ...], int, int, int] | None:
    """A walk that is an affine map of tiles and whole axes, in numbers: see `window_sum`."""
    if isinstance(walk, int):
        size, tile = drivers[walk]
        return ((1, size, tile),), 0, 1, size
    if not isinstance(walk, Image):
        return None
    terms: list[tuple[int, int, int]] = []
    tiled = [inner for inner, _ in walk.terms if isinstance(inner, int)]
    if len(set(tiled)) < len(tiled):
        return None  # two axes of an op that are in one tile of the grid
    for inner, stride in walk.terms:
        if isinstance(inner, int):
            terms.append((stride, drivers[inner].size, drivers[inner].tile))
        elif isinstance(inner, range) and inner.start == 0 and inner:
            terms.append((stride, len(inner), len(inner)))
        else:
            return None
    return tuple(terms), walk.offset, walk.divisor, walk.size


def _clusters(walks: Iterable[Walk]) -> list[tuple[Walk, ...]]:
    """Walks that have a driver in common, together; those without any with the first of them."""
    found: list[tuple[tuple[Walk, ...], frozenset[int]]] = []
    still: tuple[Walk, ...] = ()
    for walk in walks:
        joined, by = (walk,), drivers_of(walk)
        if not by:
            still += joined
            continue
        apart: list[tuple[tuple[Walk, ...], frozenset[int]]] = []
        for others, theirs in found:
            if by.isdisjoint(theirs):
                apart.append((others, theirs))
            else:
                joined, by = others + joined, by | theirs
        found = [*apart, (joined, by)]
    clusters = [walks for walks, _ in found]
    if still:
        clusters[:1] = [still + clusters[0]] if clusters else [still]
    return clusters


def _is_partition(walks: tuple[Walk, ...], size: int, drivers: tuple[Driver, ...]) -> bool:
    """Whether each coordinate is in one block: a tile of the dimension as it is."""
    (walk, *others) = walks
    return not others and isinstance(walk, int) and drivers[walk].size == size


def _drivers(walks: Iterable[Walk]) -> frozenset[int]:
    return _NONE.union(*map(drivers_of, walks))


def _takes(walks: Sequence[Walk], drivers: tuple[Driver, ...]) -> Iterator[Points]:
    """What the walks share in each block."""
    by = sorted(_drivers(walks))
    for at, _ in places(by, drivers):
        yield _common(walks, at)


def _common(walks: Sequence[Walk], at: Sequence[range]) -> Points:
    found = points_of(walks[0], at)
    for walk in walks[1:]:
        found = meet(found, points_of(walk, at))
    return found


def _summed(
    walks: Sequence[tuple[Walk, ...]], by: Sequence[int], drivers: tuple[Driver, ...]
) -> int:
    """Σ over blocks of the product over dimensions of what their walks share."""
    total = 0
    for at, weight in places(by, drivers):
        total += weight * prod([len(_common(each, at)) for each in walks])
    return total


def places(
    by: Sequence[int], drivers: tuple[Driver, ...], *, most: int = POSITIONS_MAX
) -> Iterator[tuple[Sequence[range], int]]:
    """(points of the drivers, how many blocks it stands for) of the blocks along some drivers.

    All of them up to `most`; beyond, the first, the last and one between along each.
    """
    at = [range(0)] * len(drivers)
    counts = [drivers[k].blocks for k in by]
    each = (
        [[(block, 1) for block in range(count)] for count in counts]
        if prod(counts) <= most
        else [_few(count) for count in counts]
    )
    for where in product(*each):
        weight = 1
        for k, (block, blocks) in zip(by, where, strict=True):
            at[k] = drivers[k].block(block)
            weight *= blocks
        yield at, weight


def _few(count: int) -> list[tuple[int, int]]:
    """(block, how many it stands for) along one axis: first, last, and one for all between."""
    if count <= 3:
        return [(block, 1) for block in range(count)]
    return [(0, 1), (count // 2, count - 2), (count - 1, 1)]


def _covered(clusters: Sequence[Sequence[Points]]) -> int:
    """Σ over coordinates of the product over clusters of how many blocks take each."""
    events: dict[int, list[int]] = {}
    for k, takes in enumerate(clusters):
        for points in takes:
            for piece in (points,) if isinstance(points, range) else _ranges(points):
                if piece:
                    events.setdefault(piece.start, [0] * len(clusters))[k] += 1
                    events.setdefault(piece.stop, [0] * len(clusters))[k] -= 1
    total, before, now = 0, 0, [0] * len(clusters)
    for place in sorted(events):
        total += (place - before) * prod(now)
        before = place
        now = [count + step for count, step in zip(now, events[place], strict=True)]
    return total


def _ranges(points: frozenset[int]) -> Iterator[range]:
    """A set as runs of neighbours."""
    start = end = None
    for point in sorted(points):
        if start is None or end is None or point != end:
            if start is not None and end is not None:
                yield range(start, end)
            start = point
        end = point + 1
    if start is not None and end is not None:
        yield range(start, end)


_NONE: frozenset[int] = frozenset()
