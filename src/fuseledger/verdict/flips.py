"""Flip points of an edge: the value of a size or a device figure at which its verdict changes.

Where a figure enters as a product or a line, the value follows by division; else it is solved for:
the figure is moved, both options are searched or timed again, and the change is bisected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fuseledger.clock.time import Time
from fuseledger.devices import Device
from fuseledger.graph.graph import Graph
from fuseledger.graph.resize import free_axes, part_of, resized
from fuseledger.ledger.account import format_time
from fuseledger.ledger.price import Price
from fuseledger.planner.schedules import ScheduleSearch
from fuseledger.verdict.flip_points import flips_of_size

Groups = Sequence[tuple[int, ...]]

AXES = 2
"""Sizes solved for: of the largest axes."""
SIZE_FACTOR = 64
"""How far a size is followed, up and down."""
SCALE_MAX = 1024
"""How far a bandwidth is followed, up and down."""
TINY = 1e-9
"""A cost that no kernel stays below: asked to, the search ends with what none can beat."""


def capacity_flips(price: Price, device: Device, sizes: dict[str, int]) -> tuple[str, ...]:
    """What would make the largest held tensor fit: capacity, or the axis it is whole along.

    The bytes are a product over axes, so the size at which they meet the room is a division.
    """
    if not price.held:
        return ()
    item = max(price.held, key=lambda held: held.bytes)
    flips = [f"fits from {item.bytes / 1024:,.0f} KB a block"]
    rooms = [device.accumulator_bytes_per_block or 0]
    if item.shared_bytes is not None:
        rooms.append(device.shared_memory_per_block_bytes or 0)
    whole = [(size, name) for name, size in item.extents if sizes.get(name) == size]
    if whole and max(rooms):
        size, name = max(whole)
        most = size * max(rooms) // item.bytes
        if 0 < most < size:
            flips.append(f"fits while {name} is at most {most:,}")
    return tuple(flips)


def launch_flips(gain_us: float, launches: int, now_us: float) -> tuple[str, ...]:
    """Cost of a launch at which two options take as long: time is a line in it.

    `gain_us` and `launches` are what the other option takes more than the chosen one.
    """
    if not launches or not 0 <= gain_us < math.inf:
        return ()
    value = now_us - gain_us / launches
    if value <= 0:
        return ()
    side = "less" if launches > 0 else "more"
    dear = f"where a launch costs {side} than {format_time(value)} ({format_time(now_us)} here)"
    return (f"{dear} the other is faster",)


def bandwidth_flips(
    chosen: Sequence[Time], other: Sequence[Time], device: Device
) -> tuple[str, ...]:
    """DRAM bandwidths at which the other option is faster, both with the schedules they have."""
    now = device.stream_gbs
    if now is None:
        return ()
    flips: list[str] = []
    for direction in (-1, 1):
        scale = _first_change(
            lambda scale: _total(chosen, scale) <= _total(other, scale), direction
        )
        if scale is not None:
            side = "below" if direction < 0 else "above"
            flips.append(
                f"{side} {now * scale:,.0f} GB/s of DRAM ({now:,.0f} here) the other is faster"
            )
    return tuple(flips)


def _total(times: Sequence[Time], scale: float) -> float:
    """µs of kernels at `scale` times the bandwidth."""
    return sum(
        time.launch_us + time.latency_us
        + (time.spill_us + time.combine_us + time.layout_us) / scale
        + max(us / scale if name == "dram" else us for name, us in time.terms)
        for time in times
    )  # fmt: skip


def _first_change(holds: Callable[[float], bool], direction: int) -> float | None:
    """The factor nearest to 1 at which what holds at 1 no longer does, to 1 %."""
    if not holds(1.0):
        return None
    same, other = 1.0, 2.0**direction
    while holds(other):
        if not 1 / SCALE_MAX < other < SCALE_MAX:
            return None
        same, other = other, other * 2.0**direction
    while abs(other / same - 1) > 0.01:
        middle = (same * other) ** 0.5
        same, other = (middle, other) if holds(middle) else (same, middle)
    return other


class Sizes:
    """Sizes at which the better of two options is the other one, both searched again at each size.

    What is searched at a size is kept: the edges of a kernel ask of the same kernel again and
    again.
    """

    def __init__(self, search: ScheduleSearch) -> None:
        self._search = search
        self._known: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._resized: dict[tuple[tuple[int, ...], str, int], ScheduleSearch] = {}

    def flips(self, together: tuple[int, ...], apart: Groups) -> tuple[str, ...]:
        """Exact to one element where the answer changes once on a side; see `flips_of_size`."""
        key = (together, *apart)
        if key not in self._known:
            self._known[key] = self._found(together, apart)
        return self._known[key]

    def _found(self, together: tuple[int, ...], apart: Groups) -> tuple[str, ...]:
        part = part_of(self._search.graph, together)
        place = {op: i for i, op in enumerate(together)}
        groups = [tuple(place[i] for i in group) for group in apart]
        whole = tuple(range(len(together)))
        flips: list[str] = []
        for name in free_axes(part)[:AXES]:
            now = next(op.sizes[name] for op in part.ops if name in op.sizes)

            def winner_at(size: int, name: str = name) -> str:
                return _winner(self._at(together, part, name, size), whole, groups)

            found = flips_of_size(
                name, now, max(1, now // SIZE_FACTOR), now * SIZE_FACTOR, winner_at(now), winner_at
            )
            flips += [flip.sentence for flip in found]
        return tuple(flips)

    def _at(self, together: tuple[int, ...], part: Graph, name: str, size: int) -> ScheduleSearch:
        """The search of these ops at another size of an axis."""
        found = self._resized.get((together, name, size))
        if found is None:
            given = self._search
            graph = resized(part, {name: size})
            found = ScheduleSearch(graph, given.device, given.clock, given.objective)
            self._resized[together, name, size] = found
        return found


def _winner(search: ScheduleSearch, whole: tuple[int, ...], groups: Groups) -> str:
    one = search.choose(whole)
    if not one.usable:
        return "cut"
    return "fused" if not _is_less(search, groups, one.cost) else "cut"


def _is_less(search: ScheduleSearch, groups: Groups, cost: float) -> bool:
    """Whether kernels cost less than that together, told from what none can beat where it can be.

    A kernel that is not usable counts with what it would cost.
    """
    least = [search.cost_below(group, TINY) for group in groups]
    if None not in least and sum(each or 0.0 for each in least) >= cost:
        return False
    return sum(search.choose(group).cost for group in groups) < cost
