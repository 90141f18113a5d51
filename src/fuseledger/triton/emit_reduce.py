"""Reductions: which walk together, along which place, at which depth."""

from __future__ import annotations

from math import prod

from fuseledger.errors import CannotEmit
from fuseledger.graph.op import COMBINES, Op
from fuseledger.triton.dependence import above, siblings
from fuseledger.triton.emit_body import Writer
from fuseledger.triton.emit_product import contract, is_matrix, online_statistic, rescale_online
from fuseledger.triton.emit_rows import sides_summed, sum_rows
from fuseledger.triton.emit_scan import scan_op
from fuseledger.triton.emit_statistic import InLanes, Statistic, start, step
from fuseledger.triton.emit_whole import has_held_row, sum_few
from fuseledger.triton.lanes import MATRIX_LEAST
from fuseledger.triton.scope import Frame, Text
from fuseledger.triton.walk import LANES_MAX, hoisted, walking_apart

TAPS = 64
"""Up to so many reduced points that no tensor holds side by side are walked one by one."""


def reduce_op(w: Writer, i: int, frame: Frame) -> None:
    """Emit the reduction at position `i` so that its results are known in this frame."""
    op = w.nest.ops[i]
    depth = max((w.variables[n].depth for n in op.kept if n in w.variables), default=0)
    missing = [n for n in op.kept if n not in w.variables and w.extent(n) > 1]
    if missing:
        raise CannotEmit(f"{op.name} keeps axis {missing[0]}, which is not walked outside it")
    kept = _kept_groups(w, op)
    frame = {name: place for name, place in frame.items() if name in kept}
    if len(set(frame.values())) < len(frame) or not kept <= frame.keys():
        raise CannotEmit(f"{op.name}: its lanes have no place in the tile that reads it")
    with hoisted(w, depth):
        if op.scans:
            scan_op(w, i, frame)
        elif op.is_contraction and is_matrix(w, op, frame):
            statistic = online_statistic(w, i) if i in w.online else None
            if statistic is not None and _loops(w, op):
                rescale_online(w, i, statistic, frame)
            else:
                contract(w, i, frame)
        elif op.combine == "sum" and (sides := sides_summed(w, i, frame)) is not None:
            sum_rows(w, i, sides, frame)
        else:
            _statistics(w, i, frame)


def _kept_groups(w: Writer, op: Op) -> set[str]:
    found = (w.variables[n].group for n in op.kept if n in w.variables)
    return {group for group in found if group is not None}


def _loops(w: Writer, op: Op) -> bool:
    return prod(w.extent(n) for n in op.reduces) > w.loop_points


# -- statistics --------------------------------------------------------------------------------


def _statistics(w: Writer, i: int, frame: Frame) -> None:
    """Reductions over the same axes that need nothing of each other, in one walk."""
    ops = w.nest.ops
    op = ops[i]
    axes = tuple(name for name in op.sizes if name in op.reduces and w.extent(name) > 1)
    together = siblings(w, i, frame, lambda j: not (ops[j].scans or ops[j].is_contraction))
    in_lanes = InLanes.of(w, axes, frame)
    _refuse_repeated(w, op, in_lanes)
    result, frame = frame, {**frame, **in_lanes.frame}
    place = _free_place(w, frame)
    axes = tuple(name for name in axes if name not in in_lanes.axes)
    alone = () if (op.combine or "").startswith("arg") else apart(w, i, axes, frame)
    axes = tuple(name for name in axes if name not in alone)
    total = prod(w.extent(name) for name in axes)
    group_lanes = prod(w.groups[name].lanes for name in frame)
    least = MATRIX_LEAST if w.has_products else 1
    block = max(w.loop_points, least, _power_below(w.block_elements // max(1, group_lanes)))
    elements, is_product = total * group_lanes, _is_product(op)
    is_crowded = place is None or w.crowds(i, axes, elements, is_product=is_product)
    if is_crowded and not in_lanes.axes and not alone and _is_fast(w, op):
        few = [j for j in together if has_held_row(w, j, axes, frame)]
        if i in few:
            sum_few(w, few, axes, frame)
            return
    streams = w.streams(i, axes, elements, is_product=is_product)
    is_whole = w.whole.issuperset(axes) and not streams
    scalar = place is None or (
        not is_whole
        and bool(frame)
        and (group_lanes * block > LANES_MAX or (total <= TAPS and not _is_fast(w, op)))
    )
    states = [
        Statistic(w.nest.ops[j], j, result, None if scalar else place, in_lanes) for j in together
    ]
    outer = w.depth
    over = ", ".join(axis.lower() for axis in (*in_lanes.axes, *alone, *axes))
    for state in states if over else ():
        results = " and ".join(COMBINES[state.op.combine or "sum"].results)
        w.line(f"# {state.op.title}: {results} over {over}")
    if alone or _will_loop(w, axes, block, scalar=scalar, streams=streams):
        for state in states:
            start(w, state)
    with walking_apart(
        w, alone, axes, block=block, least=least, scalar=scalar, beside=group_lanes, streams=streams
    ) as walk:
        inner = walk.frame(frame, place)
        if not walk.is_scalar:
            w.groups[walk.group.name] = walk.group
        for state in states:
            step(w, state, walk, inner)
        if walk.looped and w.store_on_the_way is not None:
            on_the_way = set[int]().union(*(above(w, j) for j in together)) - set(together)
            w.store_on_the_way(w, on_the_way, walk.axes, inner)
    places = frozenset(result.values())
    for state in states:
        for write, name in zip(state.op.writes, state.names, strict=False):
            kind = "int" if name in w.integers else "float"
            w.scopes[outer].known[w.result_key(state.position, write.tensor, result)] = Text(
                name, outer, places, kind
            )


def _refuse_repeated(w: Writer, op: Op, in_lanes: InLanes) -> None:
    """Lanes that stand for axes which an op lacks hold its points several times: a sum over them
    would be too large."""
    if op.combine in ("max", "min", "any", "all"):
        return
    for name in in_lanes.frame:
        for axis, extent in w.groups[name].extents:
            if extent > 1 and axis not in in_lanes.axes:
                raise CannotEmit(f"{op.name}: its lanes stand for {axis} too, which it lacks")


def apart(w: Writer, i: int, axes: tuple[str, ...], frame: Frame) -> tuple[str, ...]:
    """Axes of a walk that are taken point by point around the others.

    A statistic on the way that keeps an axis of the walk and reduces the rest is made once for
    each of its points. A matrix product on the way has rows and columns of its own: what the walk
    has of the side that other lanes take already is no row.
    """
    if w.whole.issuperset(axes):
        return ()
    found: set[str] = set()
    taken = {n for group, place in frame.items() if place == 1 for n in w.groups[group].axes}
    for j in above(w, i):
        op = w.nest.ops[j]
        kept = set(op.kept) & set(axes)
        if op.scans:
            found |= set(axes) - op.scans
        elif op.is_contraction:
            left, right = (set(read.axes) for read in op.reads[:2])
            columns = taken & set(op.kept)
            for mine, other in ((left, right), (right, left)):
                if columns and columns <= mine - other:
                    found |= kept & (mine - other)
        elif op.combine is not None and op.reduces & set(axes):
            found |= kept
    return tuple(name for name in axes if name in found) if found < set(axes) else ()


def _free_place(w: Writer, frame: Frame) -> int | None:
    taken = set(frame.values())
    if w.layout.rank == 1:
        return None if taken else 0
    return next((place for place in (1, 0) if place not in taken), None)


def _is_fast(w: Writer, op: Op) -> bool:
    """Whether some external tensor holds neighbours along a reduced axis side by side."""
    for access in op.reads:
        if access.index and access.tensor not in w.makers:
            terms = access.index[-1].terms
            if any(name in op.reduces for name, _ in terms) and len(terms) == 1:
                return True
    return False


def _is_product(op: Op) -> bool:
    """Whether several tensors meet in it: what the plan holds is one of them, not their product."""
    return len({access.tensor for access in op.reads}) > 1


def _power_below(count: int) -> int:
    return 1 << max(0, count.bit_length() - 1)


def _will_loop(
    w: Writer, axes: tuple[str, ...], block: int, *, scalar: bool, streams: bool
) -> bool:
    total = prod(w.extent(name) for name in axes)
    lanes = 1 << (total - 1).bit_length()
    is_held = w.whole.issuperset(axes) and not streams
    return bool(axes) and (scalar or not (lanes <= block or is_held))
