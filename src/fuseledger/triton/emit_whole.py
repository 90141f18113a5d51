"""Sums with a row that the block holds whole, for more results than can be made at once: the row
stays, and the results are made a few at a time.

Walking the row in steps would make or load again what is held along it, and beside results of two
places it has no lanes left. Here the results are walked instead. What each step makes takes its
place in a matrix of steps × results, which is their tile when it is reshaped.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from msgspec.structs import replace

from fuseledger.triton.emit_body import Writer
from fuseledger.triton.emit_statistic import Statistic, term
from fuseledger.triton.scope import Frame, Text, Variable
from fuseledger.triton.walk import Walk, shape_of, walking


def has_held_row(w: Writer, i: int, axes: tuple[str, ...], frame: Frame) -> bool:
    """Whether a sum over `axes` is of what the block makes and holds whole along them, and of what
    has the lanes of the frame besides."""
    if w.planned is not None:
        return w.planned.get(i) == "a few at a time"
    op = w.nest.ops[i]
    groups = [w.groups[name] for name in frame]
    lanes = {name for group in groups for name, extent in group.extents if extent > 1}
    points = prod(w.extent(name) for name in axes)
    if (
        op.combine != "sum"
        or not axes
        or not w.whole.issuperset(axes)
        or 2 * points > w.held_elements
    ):
        return False
    if w.layout.rank < 2 or not lanes or not lanes <= set(op.kept):
        return False
    if any(group.held or (group.is_step and len(group.axes) > 1) for group in groups):
        return False
    return any(read.tensor in w.makers and lanes.isdisjoint(read.axes) for read in op.reads)


def sum_few(w: Writer, together: Sequence[int], axes: tuple[str, ...], frame: Frame) -> None:
    """Sums over the same axes for all lanes of the frame, a few of the innermost at a time."""
    ops = {i: w.nest.ops[i] for i in together}
    w.crowded |= dict.fromkeys(together, "a few at a time")
    outer = w.depth
    *across, inner = (w.groups[name] for name in sorted(frame, key=frame.__getitem__))
    over = ", ".join(axis.lower() for axis in axes)
    for op in ops.values():
        w.line(f"# {op.title}: sum over {over}")
    with _tiles_in_sight(w) as tiles, walking(w, axes, block=1) as along:
        w.groups[along.group.name] = along.group
        few = min(inner.lanes, 1 << ((w.held_elements // along.group.lanes).bit_length() - 1))
        steps = w.names.new("STEPS")
        w.constants[steps] = prod(group.lanes for group in across) * inner.lanes // few
        names = {i: w.names.new(op.writes[0].tensor.lower()) for i, op in ops.items()}
        rows = tuple(axis for group in across for axis in group.axes)
        with (
            walking(w, rows, block=1, scalar=True) as row,
            walking(w, inner.axes, block=few, least=few, streams=True) as column,
        ):
            w.groups[column.group.name] = column.group
            _mask_tiles(w, tiles)
            block = w.block_name(column.group)
            for name in names.values():
                w.line(f"{name} = tl.zeros([{steps}, {block}], tl.float32)", outer)
            number = _step_number(row, column, inner.lanes // few, block)
            lies = {column.group.name: 0, along.group.name: 1}
            for i, name in names.items():
                state = Statistic(ops[i], i, {column.group.name: 0}, 1)
                made = f"tl.sum({term(w, state, along, lies)}, axis=1)[None, :]"
                w.line(
                    f"{name} = tl.where(tl.arange(0, {steps})[:, None] == {number}, {made}, {name})"
                )
    shape = shape_of(w, {place: w.groups[name] for name, place in frame.items()})
    for i, name in names.items():
        w.line(f"{name} = tl.reshape({name}, {shape})")
        key = w.result_key(i, ops[i].writes[0].tensor, frame)
        w.scopes[outer].known[key] = Text(name, outer, frozenset(frame.values()))


def _step_number(row: Walk, column: Walk, each: int, block: str) -> str:
    """The number of a step: of so many each row."""
    within = f"{column.seen} // {block}" if column.looped else "0"
    if not row.axes:
        return within
    before = row.seen if each == 1 else f"{row.seen} * {each}"
    return before if within == "0" else f"{before} + {within}"


@contextmanager
def _tiles_in_sight(w: Writer) -> Generator[dict[str, Variable]]:
    """With the tiles at hand as ranges, for loops over their points: the variables of their lanes,
    which come back."""
    variables, ranges = dict(w.variables), dict(w.ranges)
    w.ranges |= w.tiles
    try:
        yield variables
    finally:
        w.ranges = ranges
        w.variables.clear()
        w.variables |= variables


def _mask_tiles(w: Writer, tiles: Mapping[str, Variable]) -> None:
    """Tiles are walked to their ends: what lies beyond the axis is no point of it."""
    for axis in w.tiles.keys() & tiles.keys() & w.variables.keys():
        found, before = w.variables[axis], tiles[axis]
        ends = [(found.name, limit) for name, limit in before.conditions if name == before.name]
        w.variables[axis] = replace(
            found, conditions=tuple(dict.fromkeys((*found.conditions, *ends)))
        )
