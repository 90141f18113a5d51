"""Where a block is: its number taken apart into positions along the grid axes, and its lanes."""

from __future__ import annotations

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
        span, stride = group.span(axis), group.stride(axis)
        text = flat if stride == 1 else f"{flat} // {stride}"
        if position:
            text += f" % {span}"
        if axis in starts:
            text = f"{starts[axis]} + {text}"
        name = w.names.new(axis.lower())
        w.line(f"{name} = {text}")
        if axis in group.held:
            reach = span if position else group.lanes // stride
            conditions = ((name, w.size_name(axis)),) if reach > tile else ()
        else:
            ends_short = sizes[axis] % tile or (single and short and tile == sizes[axis])
            conditions = (*own, (name, w.size_name(axis))) if ends_short else own
        w.variables[axis] = Variable(name, 0, group.name, conditions)
        w.lane_names[group.name] = name if flat == lanes else flat
