"""One kernel unsplit or with a reduced axis in parts, both with schedules of the real planner.

A GEMM and decode attention are questions of this kind: what differs is the graph, the names, and
the tiles that are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.clock.roofline import Roofline
from fuseledger.clock.time import GENERATED
from fuseledger.devices import Device, LaunchMode
from fuseledger.graph.graph import Graph
from fuseledger.ledger.account import format_time
from fuseledger.ledger.kernel import MERGES
from fuseledger.ledger.ledger import KernelLedger, kernel_ledger
from fuseledger.planner.plan import PlanOptions, new_search
from fuseledger.planner.schedules import Objective
from fuseledger.planner.splits import Parted, Parts
from fuseledger.verdict.flip_points import Flip, bandwidth_flips, flips_of_size
from fuseledger.verdict.options import Decision, is_small
from fuseledger.verdict.rule import WAITS_FOR, Option, apply_rule, decide

SIZE_MAX = 1 << 24
Realise = Literal["best", "library", "generated"]


class Split(Struct, frozen=True, kw_only=True):
    """A kernel whose reduced axis may be split: its graph, names, and the tiles that are given."""

    graph: Graph
    title: str
    whole: str
    """Name of the option without a split."""
    prefix: str
    """`split-K`, `split-KV`."""
    tiles: Mapping[str, int]
    """Tiles of axes that every option has; the others are searched for each."""


class Pricing(Struct, frozen=True, dict=True):
    """Prices a split's options on one device."""

    split: Split
    device: Device
    launch: LaunchMode = "queued"
    realise: Realise = "best"

    @cached_property
    def clock(self) -> Roofline:
        """The clock that all options are priced by."""
        return Roofline(self.device, self.launch, realise=self.realise)

    @cached_property
    def parts(self) -> Parts:
        """The kernel by its number of parts."""
        return Parts(self.split.graph, self.device, self.clock, self.split.tiles)

    def best(self) -> int:
        """The fastest factor of those that fit and cover the machine, where any does."""

        def key(parted: Parted) -> tuple[bool, ...]:
            option = self.option(parted)
            return not option.fits, not option.fills(self.device.sm_count)

        return self.parts.best(key)

    def name(self, parts: int) -> str:
        """The option's name."""
        return self.split.whole if parts == 1 else f"{self.split.prefix}={parts}"

    def option(self, parted: Parted) -> Option:
        """The kernel as one option: its ledger, its time, and what vetoes it."""
        price = parted.price
        ledger = self.ledger(parted)
        held, limit, holder = self._fullest(parted)
        return Option(
            name=self.name(parted.parts), bytes=price.dram_bytes, grid=price.blocks,
            on_chip_bytes=held, capacity_limit_bytes=limit, launches=price.launches,
            time_us=parted.time.total_us, choice=None if parted.parts == 1 else "split",
            capacity_veto=dict(price.vetoes).get("capacity"), provenance="modelled",
            is_small=is_small(price.dram_bytes, self.device),
            accounts=ledger.accounts | {
                "capacity": replace(
                    ledger.accounts["capacity"], value=held, limit=limit,
                    unit=f"bytes of {holder} per block",
                )
            },
        )  # fmt: skip

    def ledger(self, parted: Parted) -> KernelLedger:
        """The accounts of one option."""
        graph, nest = self.split.graph, self.parts.nest
        price, sms = parted.price, self.device.sm_count
        if sms is not None and price.blocks < sms and not is_small(price.dram_bytes, self.device):
            veto = ("parallelism", f"a grid of {price.blocks:,} on {sms:,} SMs")
            price = replace(price, vetoes=(*price.vetoes, veto))
        return kernel_ledger(graph, parted.kernel, nest, price, parted.time, self.device, "k1")

    def _fullest(self, parted: Parted) -> tuple[int, int | None, str]:
        """(bytes, room, name) of the holder with the least room to spare."""
        price, device = parted.price, self.device
        holders = (
            (price.shared_bytes, device.shared_memory_per_block_bytes, "shared memory"),
            (price.register_bytes, device.accumulator_bytes_per_block, "registers"),
        )
        return max(holders, key=lambda h: h[0] / h[1] if h[1] else 0.0)


def decide_split(
    question: Question, device: Device, splits: Sequence[int], *,
    realise: Realise = "best",
) -> Decision:  # fmt: skip
    """The verdict between no split and the given factors, else the best one."""
    pricing = Pricing(question.split(), device, realise=realise)
    factors = tuple(dict.fromkeys(splits)) or (max(2, pricing.best()),)
    found = [pricing.parts.at(parts) for parts in (1, *factors)]
    options = [pricing.option(each) for each in found]
    verdict = decide(
        options, sm_count=device.sm_count, bandwidth_gbs=device.stream_gbs,
        propose=lambda: searched(pricing, "bytes"),
    )  # fmt: skip
    flips = _flips(question, pricing, found, verdict.choice)
    notes = [f"{o.name}: {_how(each)}" for o, each in zip(options, found, strict=True)]
    taken = searched(pricing, "time")
    if taken is not None:
        notes.append(f"with tiles and split both free the search takes {taken}")
    return Decision(
        title=pricing.split.title, device=device, options=tuple(options),
        verdict=replace(verdict, flips=(*verdict.flips, *flips)), notes=tuple(notes),
    )  # fmt: skip


def _how(parted: Parted) -> str:
    """Schedule, realisation and what it waits for."""
    time = parted.time
    by = time.realised if time.realised == GENERATED else f"library: {time.realised}"
    words = f"{parted.schedule}; {by}, waits for {WAITS_FOR.get(time.bound, time.bound)}"
    merge = parted.schedule.merge
    return f"{words}; parts are {MERGES[merge]}" if merge else words


class Question(Protocol):
    """A kernel of some sizes that may be split; sizes by the names that flips speak of."""

    def split(self) -> Split:
        """The kernel."""
        ...

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Size → (now, least) of those along which flips are sought."""
        ...

    def resized(self, name: str, value: int) -> Question:
        """The same kernel with another size."""
        ...


def _flips(
    question: Question, pricing: Pricing, found: Sequence[Parted], choice: str
) -> list[Flip]:
    """Where another size, factor or bandwidth changes the choice; each option keeps its tiles."""
    device, axis = pricing.device, pricing.parts.axis
    tiles = {each.parts: {n: t for n, t in each.price.tiles.items() if n != axis} for each in found}

    def options(kernel: Split, machine: Device, factors: Sequence[int]) -> list[Option]:
        made: list[Option] = []
        for parts in factors:
            own = tiles.get(parts, tiles[found[-1].parts])
            priced = Pricing(replace(kernel, tiles=own), machine, realise=pricing.realise)
            made.append(priced.option(priced.parts.at(parts)))
        return made

    def winner(kernel: Split, factors: Sequence[int]) -> str:
        priced = options(kernel, device, factors)
        return apply_rule(priced, device.sm_count, device.stream_gbs).choice

    factors = [each.parts for each in found]
    flips: list[Flip] = []
    for name, (now, low) in question.sizes().items():
        flips += flips_of_size(
            name, now, low, SIZE_MAX, choice,
            lambda value, name=name: winner(question.resized(name, value).split(), factors),
        )  # fmt: skip
    if len(factors) == 2:
        flips += flips_of_size(
            "split", factors[1], 2, max(2, pricing.parts.most()), choice,
            lambda parts: winner(pricing.split, (1, parts)),
        )  # fmt: skip

    def fastest(machine: Device) -> str:
        priced = options(pricing.split, machine, factors)
        return min(priced, key=lambda option: option.time_us or 0.0).name

    return [*flips, *bandwidth_flips(device, fastest)]


def searched(pricing: Pricing, objective: Objective) -> str | None:
    """What the schedule search takes, in words; None where it finds nothing usable for bytes."""
    graph = pricing.split.graph
    search = new_search(graph, pricing.device, PlanOptions(objective=objective))
    ops = tuple(range(len(graph.ops)))
    if objective == "bytes" and not search.choose(ops).usable:
        return None
    price = search.price(ops)
    time = search.time(ops, price)
    return (
        f"{search.kernel(ops).schedule}: a grid of {price.blocks:,}, {format_time(time.total_us)}"
    )
