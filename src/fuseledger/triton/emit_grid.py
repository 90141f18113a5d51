"""Where a block is: its number taken apart into positions along the grid axes, and its lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isqrt, prod

from fuseledger.triton.emit_body import Writer
from fuseledger.triton.lanes import Group
from fuseledger.triton.scope import Range, Variable


def open_grid(w: Writer) -> None:
    """The block's position along every grid axis, and the lanes of its tile."""
    layout = w.layout
    grouped = {n: g for g in (layout.rows, layout.columns) if g is not None for n in g.axes}
    counted = [name for name, tile in layout.tiles.items() if tile < w.nest.sizes[name]]
    blocks = {n: _tile_constant(w, n, layout.tiles[n], grouped.get(n)) for n in reversed(counted)}
    counts = {
        name: w.size_name(name) if block == "1" else f"tl.cdiv({w.size_name(name)}, {block})"
        for name, block in blocks.items()
    }
    _positions(w, counted, counts)
    starts: dict[str, str] = {}
    for name, block in blocks.items():
        position = w.positions[name]
        if name in layout.split or name in layout.batch:
            _range(w, name, position, layout.tiles[name], block)
        elif name in grouped:
            starts[name] = f"{position} * {block}"
            end = f"{starts[name]} + {block}"
            w.tiles[name] = Range(starts[name], end, layout.tiles[name], True, block)
        else:
            w.variables[name] = Variable(position, 0)
    for group in (layout.rows, layout.columns):
        if group is not None:
            w.groups[group.name] = group
            _grid_lanes(w, group, starts)


def _positions(w: Writer, axes: list[str], counts: dict[str, str]) -> None:
    """The block's position along every grid axis, of which the last one changes fastest.

    The clock has the blocks that run at once fill a square of a matrix product's tiles
    (`Roofline.reread_bytes`). Where these are not all of them, its columns change faster than its
    rows, which fills the square unless a row of blocks is longer than its side: then as many rows
    as that go together, column by column.
    """
    program = "tl.program_id(0)" if w.is_alone else "pid"
    if w.is_alone and len(axes) > 1:
        w.line(f"pid = {program}")
        program = "pid"
    sides, rest = (w.layout.block_rows, w.layout.block_columns), w.layout.split
    rows, columns, parts = (tuple(n for n in axes if n in some) for some in (*sides, rest))
    side = isqrt((w.in_flight or 0) // _tiles(w, parts))
    if not rows or not columns or _tiles(w, (*rows, *columns)) <= side * side or not side:
        _take_apart(w, program, [(name,) for name in axes], counts)
        return
    others = [name for name in axes if name not in (*rows, *columns, *parts)]
    if _tiles(w, columns) <= side:
        _take_apart(w, program, [(n,) for n in (*others, *rows, *columns, *parts)], counts)
        return
    outer, inner = ([(name,) for name in names] for names in (others, parts))
    found = _take_apart(w, program, [*outer, rows, columns, *inner], counts)
    row, column = found[rows], found[columns]
    group = w.names.new(f"GROUP_{rows[0].upper() if len(rows) == 1 else 'ROWS'}")
    w.constants[group] = side
    sizes = ", ".join(" * ".join(counts[name] for name in names) for names in (rows, columns))
    w.line("# blocks that run at once fill a square of tiles and share its rows and columns in L2")
    w.line(f"{row}, {column} = tl.swizzle2d({row}, {column}, {sizes}, {group})")
    for number, names in ((row, rows), (column, columns)):
        if len(names) > 1:
            _take_apart(w, number, [(name,) for name in names], counts)


def _tiles(w: Writer, axes: Iterable[str]) -> int:
    """Tiles of some grid axes together."""
    return prod(-(-w.nest.sizes[name] // w.layout.tiles[name]) for name in axes)


def _take_apart(
    w: Writer, number: str, places: Sequence[tuple[str, ...]], counts: dict[str, str]
) -> dict[tuple[str, ...], str]:
    """Lines that take a number apart into one of each place, the last the fastest, and the names
    of these; a place of one axis is the block's position along it."""
    found: dict[tuple[str, ...], str] = {}
    for place in reversed(places):
        (name, *others) = place
        stem = f"pid_{name}" if w.layout.tiles[name] > 1 else name
        stem = f"part_{name}" if name in w.layout.split else stem
        if others:
            stem = "pid_rows" if name in w.layout.block_rows else "pid_columns"
        position = found[place] = w.names.new(stem.lower())
        if not others:
            w.positions[name] = position
        if place == places[0]:
            w.line(f"{position} = {number}")
            continue
        count = " * ".join(counts[axis] for axis in place)
        count = f"({count})" if others else count
        w.line(f"{position} = {number} % {count}")
        w.line(f"{number} = {number} // {count}")
    return found


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
