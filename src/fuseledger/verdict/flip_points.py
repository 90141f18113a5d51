"""Flip points: the value of a figure at which a verdict changes.

The rule compares grids with SMs, bytes on chip with their limit, and bytes with bytes, so its
verdict can change only where two of those figures meet: those values are its breakpoints. A size
or a split factor moves several figures at once: there the change is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.devices import Device, replace_figures
from fuseledger.ledger.account import format_bytes, format_kib

if TYPE_CHECKING:
    from fuseledger.verdict.rule import Option

NEITHER = "neither"
BANDWIDTH_MAX_GBS = 100_000
"""Where the search for a bandwidth that changes the clock's choice ends."""
Winner = str | None
"""Name of the winning option; None: neither."""
Rule = Callable[[Sequence["Option"], int | None], Winner]


class Flip(Struct, frozen=True, kw_only=True):
    """A figure, and the nearest value of it at which another option wins."""

    figure: str
    """`SMs`, `room on chip`, `bytes of fused`, `m` …"""
    value: float
    """The first value at which the verdict is another one."""
    unit: str
    now: float
    """The figure as it is."""
    becomes: str
    """Who wins there: an option's name or `neither`."""
    sentence: str


def flips_of_options(
    options: Sequence[Option], sm_count: int | None, winner: Winner, rule: Rule
) -> tuple[Flip, ...]:
    """The nearest flips, on either side, along SMs, room on chip, and an option's bytes."""
    flips: list[Flip] = []
    if sm_count is not None:
        meets = {value for option in options for value in (option.grid, option.grid + 1)}
        flips += _along(
            "SMs", "SMs", sm_count, meets, winner, lambda sms: rule(options, int(sms)),
            lambda value: f"{value:,.0f} SMs",
        )  # fmt: skip
    limits = {option.capacity_limit_bytes for option in options}
    if len(limits) == 1 and (limit := limits.pop()) is not None:
        meets = {value for o in options for value in (o.on_chip_bytes, o.on_chip_bytes - 1)}

        def with_room(room: float) -> Winner:
            changed = [replace(option, capacity_limit_bytes=int(room)) for option in options]
            return rule(changed, sm_count)

        flips += _along(
            "room on chip", "bytes", limit, meets, winner, with_room,
            lambda value: f"{format_kib(value)} of room on chip",
        )  # fmt: skip
    for option in options:
        flips += _along_bytes(options, option, sm_count, winner, rule)
        flips += _along_grid(options, option, sm_count, winner, rule)
    return tuple(flips)


def flips_of_size(
    figure: str, now: int, low: int, high: int, winner: Winner, winner_at: Callable[[int], Winner],
    *, verb: str = "wins",
) -> tuple[Flip, ...]:  # fmt: skip
    """The nearest flips of an integer size within [low, high], by doubling steps and bisection.

    Exact where the verdict changes once on each side; where it changes back within one doubling
    step, that pair of changes can be missed.
    """
    found: list[Flip] = []
    for bound in (low, high):
        value = _first_change(now, bound, winner, winner_at)
        if value is None:
            continue
        becomes = winner_at(value) or NEITHER
        last, side = (value - 1, "up to") if bound == high else (value + 1, "down to")
        holds = "neither is usable" if winner in (None, NEITHER) else f"{winner} {verb}"
        found.append(
            Flip(
                figure=figure, value=value, unit="", now=now, becomes=becomes,
                sentence=f"{holds} {side} {figure} = {last:,}; at {figure} = {value:,}: {becomes}",
            )
        )  # fmt: skip
    return tuple(found)


def bandwidth_flips(device: Device, fastest_on: Callable[[Device], str]) -> tuple[Flip, ...]:
    """Bandwidths at which another option is fastest: they move the clock, and never the rule."""
    now = device.stream_gbs
    if now is None:
        return ()

    def fastest_at(bandwidth_gbs: int) -> str:
        return fastest_on(replace_figures(device, dram_bandwidth_gbs=bandwidth_gbs))

    start = min(max(round(now), 1), BANDWIDTH_MAX_GBS)
    return flips_of_size(
        "GB/s", start, 1, BANDWIDTH_MAX_GBS, fastest_at(start), fastest_at, verb="is fastest"
    )


def _first_change(
    now: int, bound: int, winner: Winner, winner_at: Callable[[int], Winner]
) -> int | None:
    """The value nearest to `now`, towards `bound`, at which the winner is another one."""
    direction = 1 if bound > now else -1
    same, step = now, 1
    while True:
        if same == bound:
            return None
        other = same + direction * step
        other = min(other, bound) if direction > 0 else max(other, bound)
        if winner_at(other) != winner:
            break
        same, step = other, step * 2
    while abs(other - same) > 1:
        middle = (same + other) // 2
        if winner_at(middle) == winner:
            same = middle
        else:
            other = middle
    return other


def _along(
    figure: str, unit: str, now: float, breakpoints: set[int], winner: Winner,
    winner_at: Callable[[float], Winner], show: Callable[[float], str],
) -> list[Flip]:  # fmt: skip
    """The nearest breakpoint below and above at which the winner is another one."""
    flips: list[Flip] = []
    below = sorted((value for value in breakpoints if 0 < value < now), reverse=True)
    above = sorted(value for value in breakpoints if value > now)
    for values in (below, above):
        value = next((value for value in values if winner_at(value) != winner), None)
        if value is None:
            continue
        words = f"from {show(value)}" if value > now else f"below {show(value + 1)}"
        becomes = winner_at(value) or NEITHER
        flips.append(
            Flip(
                figure=figure, value=value, unit=unit, now=now, becomes=becomes,
                sentence=f"{words}: {becomes}",
            )
        )  # fmt: skip
    return flips


def _along_bytes(
    options: Sequence[Option], option: Option, sm_count: int | None, winner: Winner, rule: Rule
) -> list[Flip]:
    """Where an option's own bytes, going up or down past another's, change the winner."""
    if option.name != winner:
        return []
    others = [o for o in options if o is not option]
    meets = {value for o in others for value in (o.bytes, o.bytes + 1)}

    def moving(count: float) -> Winner:
        changed = [replace(o, bytes=int(count)) if o is option else o for o in options]
        return rule(changed, sm_count)

    return _along(
        f"bytes of {option.name}", "bytes", option.bytes, meets, winner, moving,
        lambda value: f"{format_bytes(value)} moved by {option.name}",
    )  # fmt: skip


def _along_grid(
    options: Sequence[Option], option: Option, sm_count: int | None, winner: Winner, rule: Rule
) -> list[Flip]:
    """Where a short grid, grown to cover the machine, would change the winner."""
    if sm_count is None or option.grid >= sm_count:
        return []

    def growing(blocks: float) -> Winner:
        changed = [replace(o, grid=int(blocks)) if o is option else o for o in options]
        return rule(changed, sm_count)

    return _along(
        f"grid of {option.name}", "blocks", option.grid, {sm_count}, winner, growing,
        lambda value: f"a grid of {value:,.0f} blocks of {option.name}",
    )  # fmt: skip
