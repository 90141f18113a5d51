"""Where a block is: its number taken apart into positions along the grid axes, and its lanes."""

from __future__ import annotations

from math import prod

from fuseledger.triton.emit_body import Writer
from fuseledger.triton.lanes import Group
from fuseledger.triton.scope import Range, Variable


def open_grid(w: Writer) -> None:
    """The block's position along every grid axis, and the lanes of its tile."""
    layout, sizes = w.layout, w.nest.sizes
    counted = [name for name, tile in layout.tiles.items() if tile < sizes[name]]
    grouped = {n: g for g in (layout.rows, layout.columns) if g is not None for n in g.axes}
    left = len(counted)
    program = "tl.program_id(0)" if w.is_alone else "pid"
    if w.is_alone and left > 1:
        w.line(f"pid = {program}")
        program = "pid"
    starts: dict[str, str] = {}
    for name in reversed(counted):
        left -= 1
        tile = layout.tiles[name]
        block = _tile_constant(w, name, tile, grouped.get(name))
        count = w.size_name(name) if tile == 1 else f"tl.cdiv({w.size_name(name)}, {block})"
        is_range = name in layout.split or name in layout.batch
        stem = f"part_{name}" if name in layout.split else f"pid_{name}" if tile > 1 else name
        position = w.names.new(stem.lower())
        if left:
            w.line(f"{position} = pid % {count}")
            w.line(f"pid = pid // {count}")
        else:
            w.line(f"{position} = {program}")
        w.positions[name] = position
        if is_range:
            _range(w, name, position, tile, block)
        elif name in grouped:
            starts[name] = f"{position} * {block}"
        else:
            w.variables[name] = Variable(position, 0)
    for group in (layout.rows, layout.columns):
        if group is not None:
            w.groups[group.name] = group
            _grid_lanes(w, group, starts)


def _range(w: Writer, name: str, position: str, tile: int, block: str) -> None:
    """The block's part of an axis that it walks itself."""
    size = w.nest.sizes[name]
    if name in w.layout.split:
        w.parts[name] = position
    is_even = size % tile == 0
    if tile == 1:
        w.ranges[name] = Range(position, f"{position} + 1", 1, is_even, "1")
        return
    begin, end = w.names.new(f"{name}_begin".lower()), w.names.new(f"{name}_end".lower())
    w.line(f"{begin} = {position} * {block}")
    limit = f"{begin} + {block}"
    w.line(f"{end} = {limit if is_even else f'tl.minimum({limit}, {w.size_name(name)})'}")
    count = block if is_even else f"({end} - {begin})"
    w.ranges[name] = Range(begin, end, tile, is_even, count)


def _tile_constant(w: Writer, axis: str, tile: int, group: Group | None) -> str:
    if tile == 1:
        return "1"
    if group is not None and group.axes == (axis,) and group.lanes == tile:
        return w.block_name(group)
    name = w.names.new(f"TILE_{axis.upper()}")
    w.constants[name] = tile
    return name


def _grid_lanes(w: Writer, group: Group, starts: dict[str, str]) -> None:
    sizes = w.nest.sizes
    lanes = f"tl.arange(0, {w.block_name(group)})"
    single = len(group.axes) == 1
    filled = group.outer_points * group.segment
    short = filled < group.lanes
    flat = lanes
    own: tuple[tuple[str, str], ...] = ()
    if not single or (short and group.points < sizes[group.axes[0]]):
        flat = w.names.new(group.name if not single else f"{group.axes[0]}_lane".lower())
        w.line(f"{flat} = {lanes}")
        if short:
            own = ((flat, str(filled)),)
    for position, (axis, tile) in enumerate(group.extents):
        part, stride = group.part(axis), group.stride(axis)
        name = w.names.new(axis.lower())
        if part is not None:
            w.line(f"{name} = {_held_digit(group, flat, axis, tile, part)}")
            if axis == part[0]:
                own = _ends_short(w, group, part, name)
            conditions = own
        else:
            text = flat if stride == 1 else f"{flat} // {stride}"
            if position:
                text += f" % {tile}"
            if axis in starts:
                text = f"{starts[axis]} + {text}"
            w.line(f"{name} = {text}")
            ends_short = sizes[axis] % tile or (single and short and tile == sizes[axis])
            conditions = (*own, (name, w.size_name(axis))) if ends_short else own
        w.variables[axis] = Variable(name, 0, group.name, conditions)
        w.lane_names[group.name] = name if flat == lanes else flat


def _held_digit(group: Group, flat: str, axis: str, extent: int, part: tuple[str, ...]) -> str:
    """An axis's index from the lane's number, within the lanes of the axes held with it."""
    step = group.part_stride(part)
    inner = group.stride(axis) // step
    text = flat if step == 1 else f"{flat} // {step}"
    if group.axes[0] != part[0]:
        text += f" % {group.span(part)}"
    text += f" // {inner}" if inner > 1 else ""
    return text + (f" % {extent}" if axis != part[0] else "")


def _ends_short(
    w: Writer, group: Group, part: tuple[str, ...], first: str
) -> tuple[tuple[str, str], ...]:
    """That the first of held axes is inside: it says so of all of them."""
    step = group.part_stride(part)
    reach = group.lanes // step if group.axes[0] == part[0] else group.span(part)
    points = prod(w.nest.sizes[axis] for axis in part)
    return ((first, w.size_name(part[0])),) if reach > points else ()
