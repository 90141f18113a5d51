"""Scans: running sums, products and extremes along an axis, with a carry where it is looped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fuseledger.errors import CannotEmit
from fuseledger.triton.scope import Frame, Text

if TYPE_CHECKING:
    from fuseledger.triton.emit_body import Writer

SCANS: dict[str, tuple[str, str, str, str]] = {
    "sum": ("0.0", "tl.cumsum({0}, axis={1})", "tl.sum({0}, {1})", "{0} + {1}"),
    "prod": (
        "1.0", "tl.cumprod({0}, axis={1})", "tl.reduce({0}, {1}, product_of)", "{0} * {1}",
    ),
    "max": (
        'float("-inf")', "tl.associative_scan({0}, {1}, larger_of)",
        "tl.reduce({0}, {1}, larger_of)", "larger_of({0}, {1})",
    ),
    "min": (
        'float("inf")', "tl.associative_scan({0}, {1}, smaller_of)",
        "tl.reduce({0}, {1}, smaller_of)", "smaller_of({0}, {1})",
    ),
}  # fmt: skip
"""Combine → (neutral, scan of a tile, its total, merging two)."""


def scan_op(w: Writer, i: int, frame: Frame) -> None:
    """Emit the scan at position `i` for the lanes, or the point, in sight."""
    op = w.nest.ops[i]
    neutral, scan, total, merge = SCANS[op.combine or "sum"]
    scanned = [name for name in op.sizes if name in op.scans and w.extent(name) > 1]
    found = {w.variables[name].group for name in scanned if name in w.variables}
    group = next(iter(found), None)
    if len(found) > 1 or any(name not in w.variables for name in scanned):
        raise CannotEmit(f"{op.name} scans axes that are walked apart")
    if group is not None and set(w.groups[group].axes) != set(scanned):
        raise CannotEmit(f"{op.name} scans {', '.join(scanned)}, whose lanes have other axes too")
    depth = max((w.variables[name].depth for name in scanned), default=0)
    x = w.body(i, frame)
    overrun = w.overrun(set(scanned), frame)
    if overrun is not None:
        masked = f"tl.where({overrun.text}, {x.number}, {neutral})"
        x = replace(x, text=masked, places=x.places | overrun.places)
    x = w.bind(f"{op.name}_in", replace(x, text=x.number, depth=w.depth))
    name = w.names.new(op.writes[0].tensor.lower())
    place = frame[group] if group is not None and w.layout.rank == 2 else 0
    tile = scan.format(x.text, place) if group is not None else x.text
    if depth == 0:
        w.line(f"{name} = {tile}")
    else:
        carry = w.names.new(f"{name}_carry")
        others = {at: w.groups[g] for g, at in frame.items() if g != group}
        lanes = ", ".join(
            w.block_name(others[at]) if at in others else "1" for at in range(w.layout.rank)
        )
        flat = w.layout.rank == 1 and not others
        start = f"tl.full({'[]' if flat else f'[{lanes}]'}, {neutral}, tl.float32)"
        w.line(f"{carry} = {start}", depth - 1)
        w.line(f"{name} = {merge.format(carry, tile)}")
        if group is None:
            w.line(f"{carry} = {name}")
        else:
            keep = total.removesuffix(")") + ("" if flat else ", keep_dims=True") + ")"
            w.line(f"{carry} = {merge.format(carry, keep.format(x.text, place))}")
    key = w.result_key(i, op.writes[0].tensor, frame)
    places = x.places | (frozenset({place}) if group is not None else frozenset[int]())
    w.scopes[-1].known[key] = Text(name, w.depth, places)
