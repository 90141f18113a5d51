"""Walks: lanes over axes that are not on the grid, all at once or in a loop."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from math import prod
from typing import Required, TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.errors import CannotEmit
from fuseledger.triton.emit_body import Writer
from fuseledger.triton.lanes import Group
from fuseledger.triton.scope import Frame, Range, Scope, Variable

LANES_MAX = 1 << 20
"""Most elements of a Triton tile."""


class _How(TypedDict, total=False):
    block: Required[int]
    least: int
    scalar: bool
    beside: int
    streams: bool


class Walk(Struct, frozen=True):
    """Axes in sight: as lanes of a group, or as scalars of a loop."""

    axes: tuple[str, ...]
    group: Group
    looped: bool
    is_scalar: bool
    first: str = "0"
    """Index of the first lane, along all axes together."""
    seen: str = "0"
    """Points walked before this step."""
    count: str = "1"
    """Points of all steps, as text."""
    left: str = "1"
    """Points from this step to the end of the innermost loop, as text."""
    is_even: bool = True
    """Whether every block has the same number of points."""

    def frame(self, frame: Frame, place: int | None) -> dict[str, int]:
        """The frame with the walk's lanes at a place."""
        if self.is_scalar or place is None:
            return dict(frame)
        kept = {name: at for name, at in frame.items() if at != place}
        return {**kept, self.group.name: place}

    @property
    def total(self) -> int:
        """Points of all axes together."""
        return self.group.points


@contextmanager
def hoisted(w: Writer, depth: int) -> Generator[None]:
    """Write into the block of that depth, with only what is in sight there."""
    scopes, variables = w.scopes, w.variables
    w.scopes = scopes[: depth + 1]
    w.variables = {name: v for name, v in variables.items() if v.depth <= depth}
    try:
        yield
    finally:
        w.scopes, w.variables = scopes, variables


@contextmanager
def walking(
    w: Writer,
    axes: tuple[str, ...],
    *,
    block: int,
    least: int = 1,
    scalar: bool = False,
    beside: int = 1,
    streams: bool = False,
) -> Generator[Walk]:
    """Bring axes into sight: as lanes here where they fit a block or are held whole, else in a
    loop, whose lines are those written inside. `beside` is the lanes of the tile's other place;
    what `streams` is not held, whatever the plan holds along these axes."""
    if not axes:
        yield Walk((), Group("point", ()), False, True)
        return
    total = prod(w.extent(name) for name in axes)
    is_even = all(name not in w.ranges or w.ranges[name].is_even for name in axes)
    lanes = max(least, 1 << (total - 1).bit_length())
    at_once = not scalar and (lanes <= block or (w.whole.issuperset(axes) and not streams))
    name = "_".join(axes)
    extents = tuple((axis, w.extent(axis)) for axis in axes)
    group = Group(
        f"{name}_{lanes if at_once else block}", extents, least, lanes if at_once else block
    )
    walk = Walk(axes, group, not at_once, scalar, count=_total(w, group), is_even=is_even)
    if at_once:
        if lanes * beside > LANES_MAX:
            raise CannotEmit(f"{name} held whole: {lanes * beside:,} elements exceed Triton's tile")
        in_sight = [w.variables[axis].group for axis in axes if axis in w.variables]
        if in_sight != [group.name] * len(axes):
            with _outermost(w):
                _vectors(w, group, "", total % lanes != 0 or not is_even)
        yield walk
        return
    before, tiles = dict(w.variables), dict(w.tiles)
    stem = axes[0] if len(axes) == 1 else ("tap" if scalar else "point")
    begin, end = _bounds(w, group)
    if scalar:
        start = _vector(w, stem, 1)
        header = f"for {start} in range({'' if begin == '0' else f'{begin}, '}{end}):"
    else:
        start = _vector(w, f"{stem}_start", block)
        header = f"for {start} in range({begin}, {end}, {w.block_name(group)}):"
    seen = start if begin == "0" else f"({start} - {begin})"
    points = str(total) if is_even else walk.count
    walk = replace(walk, first=start, seen=seen, left=f"{points} - {seen}")
    scope = Scope(w.depth + 1, header)
    scope.taken.add(start)
    w.scopes.append(scope)
    try:
        if scalar:
            _digits(w, group, walk.first, None, ())
        else:
            _vectors(w, group, walk.first, total % block != 0 or not is_even)
            if len(axes) == 1:
                lanes_name = w.block_name(group)
                end = f"{start} + {lanes_name}"
                w.tiles[axes[0]] = Range(start, end, group.lanes, True, lanes_name)
        yield walk
    finally:
        w.scopes.pop()
        w.variables.clear()
        w.variables.update(before)
        w.tiles = tiles
    w.scopes[-1].lines.append(scope)


@contextmanager
def walking_apart(
    w: Writer, apart: tuple[str, ...], axes: tuple[str, ...], **how: Unpack[_How]
) -> Generator[Walk]:
    """As `walking`, with the axes `apart` taken point by point in a loop around it."""
    if not apart:
        with walking(w, axes, **how) as walk:
            yield walk
        return
    with walking(w, apart, block=1, scalar=True) as outer, walking(w, axes, **how) as inner:
        before = f"{outer.first} * ({inner.count})"
        seen = before if inner.seen == "0" else f"({before} + {inner.seen})"
        left = inner.left if inner.looped else str(inner.total)
        yield replace(inner, axes=(*apart, *axes), looped=True, seen=seen, left=left)


@contextmanager
def _outermost(w: Writer) -> Generator[None]:
    """Write into the kernel's own block: lanes held at once need no loop."""
    scopes = w.scopes
    w.scopes = scopes[:1]
    try:
        yield
    finally:
        w.scopes = scopes


def _total(w: Writer, group: Group) -> str:
    return " * ".join(w.extent_text(axis) for axis in group.axes)


def _bounds(w: Writer, group: Group) -> tuple[str, str]:
    """Where a walk begins and ends: a single axis is walked in its own coordinate."""
    (axis, *others) = group.axes
    if not others and axis in w.ranges:
        return w.ranges[axis].begin, w.ranges[axis].end
    return "0", _total(w, group)


def _vector(w: Writer, axis: str, lanes: int) -> str:
    key = (axis, lanes)
    if key not in w.vectors or any(w.vectors[key] in scope.taken for scope in w.scopes):
        w.vectors[key] = w.names.new(axis.lower())
    return w.vectors[key]


def _vectors(w: Writer, group: Group, first: str, overruns: bool) -> None:
    """The lanes' vector, and every axis's index from it."""
    begin, end = _bounds(w, group)
    first = first or ("" if begin == "0" else begin)
    lanes = f"tl.arange(0, {w.block_name(group)})"
    text = f"{first} + {lanes}" if first else lanes
    wide = f"({text}).to(tl.int64)" if w.wide else text
    if len(group.axes) == 1:
        name = _vector(w, group.axes[0], group.lanes)
    else:
        name = _vector(w, group.name, group.lanes)
    w.lane_names[group.name] = name
    conditions = ((name, end),) if overruns else ()
    if w.depth:
        w.scopes[-1].taken.add(name)
    w.line(f"{name} = {wide}")
    _digits(w, group, name, group.name, conditions)


def _digits(
    w: Writer, group: Group, flat: str, owner: str | None, conditions: tuple[tuple[str, str], ...]
) -> None:
    if len(group.axes) == 1:
        w.variables[group.axes[0]] = Variable(flat, w.depth, owner, conditions)
        return
    for position, axis in enumerate(group.axes):
        inner = [w.extent_text(name) for name in group.axes[position + 1 :]]
        points = prod(w.extent(name) for name in group.axes[position + 1 :])
        if any(name in w.ranges for name in group.axes[position + 1 :]):
            after = f"({' * '.join(inner)})" if len(inner) > 1 else inner[0]
            text = f"{flat} // {after}"
        else:
            wide = [name for name in group.axes[position + 1 :] if w.extent(name) > 1]
            step = w.extent_text(wide[0]) if len(wide) == 1 else str(points)
            text = flat if points == 1 else f"{flat} // {step}"
        if position:
            text += f" % {w.extent_text(axis)}"
        if axis in w.ranges:
            text = f"{w.ranges[axis].begin} + {text}"
        name = _vector(w, axis, group.lanes if owner else 1)
        if w.depth:
            w.scopes[-1].taken.add(name)
        w.line(f"{name} = {text}")
        w.variables[axis] = Variable(name, w.depth, owner, conditions)


def shape_of(w: Writer, places: dict[int, Group], extra: dict[int, str] | None = None) -> str:
    """A tile's shape: lanes where a group has the place, else 1."""
    sizes = {place: w.block_name(group) for place, group in places.items()} | (extra or {})
    return "[" + ", ".join(sizes.get(place, "1") for place in range(w.layout.rank)) + "]"
