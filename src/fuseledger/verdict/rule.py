"""The rule: two or more ways of doing the same work, three accounts, one verdict.

1. an option is usable if it fits on chip and its grid covers the machine;
2. if exactly one fits, it wins (capacity veto); if none fits: neither, and re-tile;
3. of those that fit, if exactly one fills the machine, it wins (parallelism veto), and the bytes
   it pays are named;
4. if none fills it: neither;
5. several usable: fewer bytes win; on equal bytes fewer launches, then fewer bytes on chip.

Beside it stands the clock's opinion, where the options have times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from fuseledger.errors import DecisionError
from fuseledger.ledger.account import Account, Provenance, format_bytes, format_kib, format_time
from fuseledger.verdict.flip_points import NEITHER, Flip, flips_of_options

WAITS_FOR = {
    "dram": "DRAM", "l2": "L2", "pipeline": "trips to memory", "matrix": "matrix units",
    "lanes": "arithmetic", "special": "special functions", "launch": "launches",
}  # fmt: skip
"""Term of the clock → what a kernel bound by it waits for, in words."""


class Option(Struct, frozen=True, kw_only=True):
    """One way of doing the work, in the figures that the rule looks at."""

    name: str
    bytes: int
    """DRAM bytes read and written."""
    grid: int
    """Blocks of the launch that must cover the machine."""
    on_chip_bytes: int
    """Held by a block at once."""
    capacity_limit_bytes: int | None = None
    """Room for that; None where nothing limits it."""
    launches: int = 1
    time_us: float | None = None
    """The clock's time, or a measured one."""
    choice: str | None = None
    """What choosing it means: `fuse` or `split`; None: its own name."""
    is_small: bool = False
    """Too little work to fill any machine: a short grid is warned about, not vetoed (R6)."""
    capacity_veto: str | None = None
    """Why it does not fit although the bytes say so: a second holder that is full."""
    waits_for: str | None = None
    """What its time is spent on, by the clock."""
    provenance: Provenance = "declared"
    time_provenance: Provenance = "modelled"
    accounts: dict[str, Account] = field(default_factory=dict[str, Account])
    """The ledger's accounts, with their derivations."""

    @property
    def fits(self) -> bool:
        """Whether a block has room for what it holds."""
        limit = self.capacity_limit_bytes
        return self.capacity_veto is None and (limit is None or self.on_chip_bytes <= limit)

    def fills(self, sm_count: int | None) -> bool:
        """Whether its grid gives every SM a block."""
        return sm_count is None or self.is_small or self.grid >= sm_count


class Verdict(Struct, frozen=True, kw_only=True):
    """Which option, by which account, in a sentence, and where it would flip."""

    choice: str
    """`fuse`, `split`, the winner's name where it is neither of them, or `neither`."""
    winner: str | None
    """The winning option's name; None: neither."""
    account: str
    """The account that decided: `traffic`, `capacity`, `parallelism`, on equal bytes `launches`."""
    reason: str
    saved_bytes: int = 0
    """Against the next best usable option."""
    saved_us: float = 0.0
    """The saved bytes at the stream bandwidth."""
    paid_bytes: int = 0
    """What the winner of a veto moves more than the option with the fewest bytes."""
    paid_us: float = 0.0
    clock_choice: str | None = None
    """The fastest option's name, where every option has a time."""
    disagreement: str | None = None
    """Why rule and clock differ, where they do."""
    flips: tuple[Flip, ...] = ()
    proposal: str | None = None
    """For `neither`: tiles or a split that would make an option usable."""
    warnings: tuple[str, ...] = ()


def decide(
    options: Sequence[Option],
    *,
    sm_count: int | None,
    bandwidth_gbs: float | None,
    propose: Callable[[], str | None] | None = None,
) -> Verdict:
    """The rule's verdict on two or more options of one device.

    `sm_count` and `bandwidth_gbs` (None where unknown) are the device's; `propose` is asked for a
    schedule that would be usable where neither option is. Raises DecisionError on fewer than two
    options or a name used twice.
    """
    if len(options) < 2:
        raise DecisionError(f"a decision needs two options or more, not {len(options)}")
    names = [option.name for option in options]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DecisionError(f"two options are named {twice!r}: each needs a name of its own")
    verdict = with_clock(apply_rule(options, sm_count, bandwidth_gbs), options, sm_count)
    proposal = propose() if verdict.winner is None and propose is not None else None
    flips = flips_of_options(
        options, sm_count, verdict.winner,
        lambda changed, sms: apply_rule(changed, sms, bandwidth_gbs).winner,
    )  # fmt: skip
    return replace(
        verdict, flips=flips, proposal=proposal, warnings=_warnings(options, sm_count, verdict)
    )


def apply_rule(
    options: Sequence[Option], sm_count: int | None, bandwidth_gbs: float | None
) -> Verdict:
    """The five steps alone: no clock, no flips."""
    fitting = [option for option in options if option.fits]
    filling = [option for option in fitting if option.fills(sm_count)]
    if not fitting:
        return _neither("capacity", "neither fits on chip: re-tile", [_over(o) for o in options])
    if len(fitting) == 1:
        losers = [option for option in options if not option.fits]
        why = f"it alone fits on chip: {'; '.join(_over(o) for o in losers)}"
        return _by_veto("capacity", fitting[0], losers, why, bandwidth_gbs)
    if not filling:
        short = [_short(option, sm_count) for option in fitting]
        return _neither("parallelism", "none fills the machine", short)
    if len(filling) == 1:
        losers = [option for option in fitting if option is not filling[0]]
        why = f"it alone fills the machine: {'; '.join(_short(o, sm_count) for o in losers)}"
        return _by_veto("parallelism", filling[0], losers, why, bandwidth_gbs)
    verdict = _by_bytes(filling, bandwidth_gbs)
    return _with_vetoed(verdict, filling, options, sm_count, bandwidth_gbs)


def _with_vetoed(
    verdict: Verdict, usable: Sequence[Option], options: Sequence[Option], sm_count: int | None,
    bandwidth_gbs: float | None,
) -> Verdict:  # fmt: skip
    """The verdict between usable options, naming a vetoed one that would move fewer bytes."""
    vetoed = [option for option in options if option not in usable]
    least = min(vetoed, key=lambda option: option.bytes, default=None)
    moved = next(option.bytes for option in usable if option.name == verdict.winner)
    if least is None or least.bytes >= moved:
        return verdict
    paid = moved - least.bytes
    aside = f"{least.name} would move {format_bytes(paid)} less but is vetoed"
    return replace(
        verdict, reason=f"{verdict.reason}; {aside} ({_flaw(least, sm_count)})",
        paid_bytes=paid, paid_us=_microseconds(paid, bandwidth_gbs),
    )  # fmt: skip


def _by_bytes(usable: Sequence[Option], bandwidth_gbs: float | None) -> Verdict:
    best, second = sorted(usable, key=lambda o: (o.bytes, o.launches, o.on_chip_bytes))[:2]
    saved = second.bytes - best.bytes
    if saved:
        saved_us = _microseconds(saved, bandwidth_gbs)
        time = f" = {saved_us:.2f} µs" if bandwidth_gbs else ""
        reason = f"{best.name} saves {format_bytes(saved)}{time} against {second.name}"
        return Verdict(
            choice=_choice(best), winner=best.name, account="traffic", reason=reason,
            saved_bytes=saved, saved_us=saved_us,
        )  # fmt: skip
    account, why = _tie(best, second)
    reason = f"{best.name} and {second.name} move the same {format_bytes(best.bytes)}: {why}"
    return Verdict(choice=_choice(best), winner=best.name, account=account, reason=reason)


def _tie(best: Option, second: Option) -> tuple[str, str]:
    if best.launches != second.launches:
        return (
            "launches",
            f"{best.name} has fewer launches ({best.launches} against {second.launches})",
        )
    if best.on_chip_bytes != second.on_chip_bytes:
        held = f"{format_kib(best.on_chip_bytes)} against {format_kib(second.on_chip_bytes)}"
        return "capacity", f"{best.name} holds less on chip ({held})"
    return "traffic", f"no account tells them apart, {best.name} is listed first"


def _by_veto(
    account: str, winner: Option, losers: Sequence[Option], why: str, bandwidth_gbs: float | None
) -> Verdict:
    least = min(losers, key=lambda option: option.bytes)
    difference = winner.bytes - least.bytes
    paid, saved = max(difference, 0), max(-difference, 0)
    paid_us, saved_us = (_microseconds(count, bandwidth_gbs) for count in (paid, saved))
    ending = ""
    if difference:
        us = f" ({paid_us + saved_us:.2f} µs)" if bandwidth_gbs else ""
        ending = f"; it {'pays' if paid else 'saves'} {format_bytes(paid or saved)}{us}"
    return Verdict(
        choice=_choice(winner), winner=winner.name, account=account,
        reason=f"{winner.name} wins, {why}{ending}", saved_bytes=saved, saved_us=saved_us,
        paid_bytes=paid, paid_us=paid_us,
    )  # fmt: skip


def _neither(account: str, headline: str, causes: Sequence[str]) -> Verdict:
    return Verdict(
        choice=NEITHER, winner=None, account=account, reason=f"{headline}: {'; '.join(causes)}"
    )


def with_clock(verdict: Verdict, options: Sequence[Option], sm_count: int | None) -> Verdict:
    """The verdict with the clock's choice, and why it differs from the rule's."""
    times = {option.name: option.time_us for option in options if option.time_us is not None}
    if len(times) != len(options):
        return verdict
    fastest = min(options, key=lambda option: times[option.name])
    verdict = replace(verdict, clock_choice=fastest.name)
    if fastest.name == verdict.winner:
        return verdict
    by_name = {option.name: option for option in options}
    least = format_time(times[fastest.name])
    if verdict.winner is None:
        why = f"of options that the rule vetoes, {fastest.name} would be fastest ({least})"
        return replace(verdict, disagreement=f"{why}: {_flaw(fastest, sm_count)}")
    winner = by_name[verdict.winner]
    mine = times[winner.name]
    if times[fastest.name] == mine:
        return replace(verdict, clock_choice=winner.name)
    lead = f"the clock prefers {fastest.name}, {least} against {format_time(mine)}"
    flaw = _flaw(fastest, sm_count)
    if flaw:
        extra = winner.bytes - fastest.bytes
        more = f", and {winner.name} moves {format_bytes(extra)} more" if extra > 0 else ""
        return replace(verdict, disagreement=f"{lead}: the rule vetoes it ({flaw}){more}")
    saved = fastest.bytes - winner.bytes
    cause = f"the rule counts the {format_bytes(saved)} that {winner.name} saves"
    if not saved:
        cause = "the rule sees equal bytes"
    other = winner.waits_for or "something else"
    return replace(verdict, disagreement=f"{lead}: {cause}, the clock waits for {other}")


def _flaw(option: Option, sm_count: int | None) -> str:
    if not option.fits:
        return _over(option)
    return "" if option.fills(sm_count) else _short(option, sm_count)


def _warnings(options: Sequence[Option], sm_count: int | None, verdict: Verdict) -> tuple[str, ...]:
    found: list[str] = []
    for option in options:
        if sm_count is None or option.grid >= sm_count:
            continue
        if option.is_small:
            found.append(f"{_short(option, sm_count)}, and is too small to fill any machine")
        elif option.name == verdict.winner:
            idle = sm_count - option.grid
            found.append(f"{option.name}: its grid of {option.grid:,} leaves {idle:,} SMs idle")
    return tuple(found)


def _over(option: Option) -> str:
    if option.capacity_veto is not None:
        return f"{option.name}: {option.capacity_veto}"
    held, limit = option.on_chip_bytes, option.capacity_limit_bytes
    return f"{option.name} holds {format_kib(held)}, {format_kib(limit or 0)} are there"


def _short(option: Option, sm_count: int | None) -> str:
    return f"{option.name} has a grid of {option.grid:,} on {sm_count:,} SMs"


def _choice(option: Option) -> str:
    return option.choice or option.name


def _microseconds(count: int, bandwidth_gbs: float | None) -> float:
    return count / bandwidth_gbs / 1e3 if bandwidth_gbs else 0.0
