"""Walks: lanes over axes that are not on the grid, all at once or in a loop."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from fuseledger.errors import CannotEmit
from fuseledger.triton.emit_body import Frame, Writer
from fuseledger.triton.lanes import Group
from fuseledger.triton.scope import Scope, Variable

LANES_MAX = 1 << 20
"""Most elements of a Triton tile."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Axes in sight: as lanes of a group, or as scalars of a loop."""

    axes: tuple[str, ...]
    group: Group
    looped: bool
    is_scalar: bool
    first: str = "0"
    """Index of the first lane, along all axes together."""

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
) -> Generator[Walk]:
    """Bring axes into sight: as lanes here where they fit a block or are held whole, else in a
    loop, whose lines are those written inside. `beside` is the lanes of the tile's other place."""
    if not axes:
        yield Walk((), Group("point", ()), False, True)
        return
    total = prod(w.nest.sizes[name] for name in axes)
    lanes = max(least, 1 << (total - 1).bit_length())
    at_once = not scalar and (lanes <= block or w.whole.issuperset(axes))
    name = "_".join(axes)
    extents = tuple((axis, w.nest.sizes[axis]) for axis in axes)
    group = Group(
        f"{name}_{lanes if at_once else block}", extents, least, lanes if at_once else block
    )
    walk = Walk(axes, group, not at_once, scalar)
    if at_once:
        if lanes * beside > LANES_MAX:
            raise CannotEmit(f"{name} held whole: {lanes * beside:,} elements exceed Triton's tile")
        in_sight = [w.variables[axis].group for axis in axes if axis in w.variables]
        if in_sight != [group.name] * len(axes):
            with _outermost(w):
                _vectors(w, group, f"tl.arange(0, {w.block_name(group)})", total % lanes != 0)
        yield walk
        return
    before = dict(w.variables)
    stem = axes[0] if len(axes) == 1 else ("tap" if scalar else "point")
    if scalar:
        counter = _vector(w, stem, 1)
        header = f"for {counter} in range({_total(w, group)}):"
        walk = Walk(axes, group, True, True, counter)
    else:
        start = _vector(w, f"{stem}_start", block)
        header = f"for {start} in range(0, {_total(w, group)}, {w.block_name(group)}):"
        walk = Walk(axes, group, True, False, start)
    scope = Scope(w.depth + 1, header)
    w.scopes.append(scope)
    try:
        if scalar:
            _digits(w, group, walk.first, None, ())
        else:
            text = f"{walk.first} + tl.arange(0, {w.block_name(group)})"
            _vectors(w, group, text, total % block != 0)
        yield walk
    finally:
        w.scopes.pop()
        w.variables.clear()
        w.variables.update(before)
    w.scopes[-1].lines.append(scope)


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
    if len(group.axes) == 1:
        return w.size_name(group.axes[0])
    return " * ".join(w.size_name(axis) for axis in group.axes)


def _vector(w: Writer, axis: str, lanes: int) -> str:
    key = (axis, lanes)
    in_use = {found.name for found in w.variables.values() if found.depth}
    if key not in w.vectors or w.vectors[key] in in_use:
        w.vectors[key] = w.names.new(axis.lower())
    return w.vectors[key]


def _vectors(w: Writer, group: Group, text: str, overruns: bool) -> None:
    """The lanes' vector, and every axis's index from it."""
    wide = f"({text}).to(tl.int64)" if w.wide else text
    if len(group.axes) == 1:
        name = _vector(w, group.axes[0], group.lanes)
    else:
        name = _vector(w, group.name, group.lanes)
    conditions = ((name, _total(w, group)),) if overruns else ()
    w.line(f"{name} = {wide}")
    _digits(w, group, name, group.name, conditions)


def _digits(
    w: Writer, group: Group, flat: str, owner: str | None, conditions: tuple[tuple[str, str], ...]
) -> None:
    if len(group.axes) == 1:
        w.variables[group.axes[0]] = Variable(flat, w.depth, owner, conditions)
        return
    inner = group.points
    for position, (axis, size) in enumerate(group.extents):
        inner //= size
        text = flat if inner == 1 else f"{flat} // {inner}"
        if position:
            text += f" % {w.size_name(axis)}"
        name = _vector(w, axis, group.lanes if owner else 1)
        w.line(f"{name} = {text}")
        w.variables[axis] = Variable(name, w.depth, owner, conditions)


def shape_of(w: Writer, places: dict[int, Group], extra: dict[int, str] | None = None) -> str:
    """A tile's shape: lanes where a group has the place, else 1."""
    sizes = {place: w.block_name(group) for place, group in places.items()} | (extra or {})
    return "[" + ", ".join(sizes.get(place, "1") for place in range(w.layout.rank)) + "]"
