"""A reduction's result where its reader wants it: at a window, a slice or a flip of its axes."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fuseledger.errors import CannotEmit
from fuseledger.graph.axis import Index
from fuseledger.graph.op import Op
from fuseledger.triton.lanes import Group
from fuseledger.triton.scope import Coords, Frame, Text, Variable, scaled

if TYPE_CHECKING:
    from fuseledger.triton.emit_body import Writer


def moved_result(w: Writer, i: int, tensor: str, coords: Coords, frame: Frame) -> Text:
    """The result at given coordinates. An axis that the reader only calls otherwise is the
    reader's. Where a tile holds the moved axes whole, its lanes change places; else the result is
    made again, at vectors that the reader's lanes make."""
    moved = {name: index for name, index in coords.items() if index.axis != name}
    renamed = {
        name: w.variables[index.axis]
        for name, index in moved.items()
        if index.axis is not None and _is_renamed(w, name, index.axis)
    }
    moved = {name: index for name, index in moved.items() if name not in renamed}
    if moved:
        with _in_sight(w, renamed):
            found = _in_lanes(w, i, tensor, moved, frame)
        if found is not None:
            return found
    op = w.nest.ops[i]
    made = {name: _moved_axis(w, op, name, index) for name, index in moved.items()}
    with _in_sight(w, renamed | made):
        return w.result(i, tensor, frame)


def _is_renamed(w: Writer, axis: str, other: str) -> bool:
    """Whether the points of another axis in sight are points of this one."""
    sizes = w.nest.sizes
    return other in sizes and other in w.variables and sizes[other] <= sizes[axis]


@contextmanager
def _in_sight(w: Writer, given: Mapping[str, Variable]) -> Generator[None]:
    """With these variables; those of the same names come back afterwards."""
    before = {name: w.variables[name] for name in given if name in w.variables}
    w.variables |= given
    try:
        yield
    finally:
        for name in given:
            w.variables.pop(name, None)
        w.variables |= before


def _in_lanes(
    w: Writer, i: int, tensor: str, moved: Mapping[str, Index], frame: Frame
) -> Text | None:
    """The lanes of the result's own tile in another order, where it holds all that is read."""
    op = w.nest.ops[i]
    owners = {w.variables[name].group if name in w.variables else None for name in moved}
    (owner,) = owners if len(owners) == 1 else (None,)
    if owner is None or owner not in frame:
        return None
    group = w.groups[owner]
    extents = dict(group.extents)
    for name, index in moved.items():
        if any(axis not in w.nest.sizes for axis, _ in index.terms):  # computed: where, who knows
            return None
        low, high = index.bounds(w.nest.sizes.__getitem__)
        known = all(
            axis in w.variables and w.variables[axis].group in (owner, None)
            for axis, _ in index.terms
            if w.nest.sizes[axis] > 1
        )
        is_held = extents[name] == w.nest.sizes[name] and group.lanes >= group.points
        if not (known and is_held and low >= 0 and high < w.nest.sizes[name]):
            return None
    lane = w.lane_names[owner]
    steps: list[str] = []
    depth = max(w.variables[name].depth for name in moved)
    for name, index in moved.items():
        at = _vector(w, name, index)
        depth = max(depth, at.depth)
        inner = group.axes[group.axes.index(name) + 1 :]
        stride = " * ".join(_extent(w, axis, extents[axis]) for axis in inner)
        stride = str(group.stride(name)) if group.held else stride
        gap = f"({at.text} - {w.variables[name].name})"
        steps.append(f"{gap} * {stride}" if inner else gap)
    text = " + ".join([lane, *steps])
    own = [
        limit for name in moved for where, limit in w.variables[name].conditions if where == lane
    ]
    if own:  # what lies beyond stays where it is
        text = f"tl.where({lane} < {own[0]}, {text}, {lane})"
    order = w.bind(f"{tensor}_lane".lower(), Text(text, depth, kind="int"))
    value = w.result(i, tensor, frame)
    kept = {w.variables[n].group for n in op.kept if n in w.variables}
    places = {place: w.groups[name] for name, place in frame.items() if name in kept}
    gathered = _gathered(w, value.text, order.text, owner, places)
    found = Text(gathered, max(value.depth, order.depth), value.places, value.kind)
    return w.bind(f"{tensor}_turned".lower(), found)


def _gathered(w: Writer, tile: str, lanes: str, owner: str, places: Mapping[int, Group]) -> str:
    """A tile with its lanes along one place in another order."""
    frame = {group.name: place for place, group in places.items()}
    turned, _ = w.lanes(lanes, owner, frame)
    if len(places) > 1:
        block = [w.block_name(places[place]) for place in range(w.layout.rank)]
        turned = f"tl.broadcast_to({turned}, [{', '.join(block)}])"
        return f"tl.gather({tile}, {turned}, axis={frame[owner]})"
    # as a vector: a tile's gather would lay out all that its result is spread over, as it needs it
    if w.layout.rank > 1:
        tile = f"tl.reshape({tile}, [{w.block_name(w.groups[owner])}])"
    return w.lanes(f"tl.gather({tile}, {lanes}, axis=0)", owner, frame)[0]


def _extent(w: Writer, axis: str, extent: int) -> str:
    return f"({w.ranges[axis].count})" if axis in w.ranges else str(extent)


def _vector(w: Writer, axis: str, index: Index) -> Text:
    """An axis's coordinates as a vector of the lanes that its index is made of."""
    terms = [(w.variables.get(name), name, stride) for name, stride in index.terms]
    parts = [
        scaled(found.name if found is not None else w.variable(name, {}).text, stride)
        for found, name, stride in terms
    ]
    parts += [str(index.offset)] if index.offset or not parts else []
    text = " + ".join(parts).replace("+ -", "- ")
    size = w.nest.sizes[axis]
    is_computed = any(name not in w.nest.sizes for name, _ in index.terms)
    low, high = (-1, size) if is_computed else index.bounds(w.nest.sizes.__getitem__)
    if low < 0 or high >= size:  # what lies outside is replaced by its reader
        text = f"tl.minimum(tl.maximum({text}, 0), {w.size_name(axis)} - 1)"
    depth = max((found.depth for found, _, _ in terms if found is not None), default=0)
    return w.bind(axis.lower(), Text(f"({text})", depth, kind="int"))


def _moved_axis(w: Writer, op: Op, axis: str, index: Index) -> Variable:
    walked = [w.variables[name] for name, _ in index.terms if name in w.variables]
    groups = {found.group for found in walked} - {None}
    if len(groups) > 1 or any(found.places for found in walked):
        raise CannotEmit(f"{op.name} is reduced, and read along {axis} by rows and columns")
    bound = _vector(w, axis, index)
    conditions = tuple(dict.fromkeys(c for found in walked for c in found.conditions))
    return Variable(bound.text, bound.depth, next(iter(groups), None), conditions)
