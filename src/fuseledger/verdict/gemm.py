"""A GEMM unsplit or split-K, both with schedules of the real planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuseledger.clock.roofline import Roofline
from fuseledger.devices import Device
from fuseledger.errors import DecisionError
from fuseledger.graph.builder import GraphBuilder
from fuseledger.graph.graph import Graph
from fuseledger.graph.tensor import DTYPE_BITS, is_float
from fuseledger.ledger.account import format_time
from fuseledger.ledger.kernel import AxisSchedule, Kernel, Schedule
from fuseledger.ledger.ledger import KernelLedger, kernel_ledger
from fuseledger.ledger.nest import analyse
from fuseledger.ledger.price import Price
from fuseledger.ledger.pricer import Pricer
from fuseledger.planner.plan import PlanOptions, new_search
from fuseledger.planner.schedules import Objective
from fuseledger.verdict.flip_points import Flip, bandwidth_flips, flips_of_size
from fuseledger.verdict.options import Decision, is_small
from fuseledger.verdict.rule import Option, apply_rule, decide

TILE = (128, 128)
"""Rows and columns of a block, where none are given."""
LEAST_PART = 16
"""Least elements of K in a part: one step of a matrix unit."""
MAX_SPLIT = 256
SIZE_MAX = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """C[m,n] = Σk A[m,k]·B[k,n], and the tile that every option uses."""

    M: int
    N: int
    K: int
    dtype: str = "fp16"
    tile: tuple[int, int] = TILE

    def __post_init__(self) -> None:
        for name, size in (("M", self.M), ("N", self.N), ("K", self.K)):
            if not 1 <= size <= SIZE_MAX:
                raise DecisionError(f"gemm: {name} is {size}, and must be from 1 to {SIZE_MAX:,}")
        if min(self.tile) < 1:
            raise DecisionError(f"gemm: a tile of {self.tile[0]}x{self.tile[1]} holds nothing")
        if self.dtype not in DTYPE_BITS or not is_float(self.dtype):
            raise DecisionError(f"gemm: {self.dtype!r} is no floating-point dtype")

    def graph(self) -> Graph:
        """The graph of the one op."""
        builder = GraphBuilder("gemm")
        a = builder.input("A", (self.M, self.K), self.dtype)
        b = builder.weight("B", (self.K, self.N), self.dtype)
        builder.output(builder.contract("gemm", "mk,kn->mn", [a, b]), "C")
        return builder.finish()

    @property
    def title(self) -> str:
        """Shape, dtype and tile."""
        rows, columns = self.tile
        return f"gemm {self.M}×{self.N}×{self.K}, {self.dtype}, {rows}×{columns} tiles"


def decide_gemm(gemm: Gemm, device: Device, *, splits: Sequence[int] = ()) -> Decision:
    """The verdict between no split and split-K; without `splits`, by the best factor.

    Every option has the same tile, so that only the split differs; what the schedule search
    would take, free to choose both, is noted beside the verdict. Raises DecisionError on a factor
    that K cannot be split by.
    """
    pricing = _Pricing(gemm, device)
    for split in splits:
        if not 2 <= split <= gemm.K:
            raise DecisionError(f"gemm: a split of {split} must be from 2 to K = {gemm.K}")
    if gemm.K < 2:
        raise DecisionError("gemm: K = 1 leaves nothing to split")
    factors = tuple(dict.fromkeys(splits)) or (best_split(gemm, device),)
    options = [pricing.option(split) for split in (1, *factors)]
    verdict = decide(
        options, sm_count=device.sm_count, bandwidth_gbs=device.stream_gbs,
        propose=lambda: _searched(gemm, device, "bytes"),
    )  # fmt: skip
    flips = [
        *_size_flips(gemm, device, factors, verdict.choice),
        *bandwidth_flips(device, lambda machine: _fastest(gemm, machine, factors)),
    ]
    note = _searched(gemm, device, "time")
    return Decision(
        title=gemm.title, device=device, options=tuple(options),
        verdict=replace(verdict, flips=(*verdict.flips, *flips)),
        notes=() if note is None else (f"free to choose tile and split, the search takes {note}",),
    )  # fmt: skip


def _fastest(gemm: Gemm, device: Device, factors: Sequence[int]) -> str:
    pricing = _Pricing(gemm, device)
    options = [pricing.option(split) for split in (1, *factors)]
    return min(options, key=lambda option: option.time_us or 0.0).name


def best_split(gemm: Gemm, device: Device) -> int:
    """The fastest factor by the clock, of those that fit and fill the machine where any does."""
    pricing = _Pricing(gemm, device)
    longest = max(2, min(MAX_SPLIT, gemm.K // LEAST_PART))

    def key(split: int) -> tuple[bool, bool, float, int]:
        option = pricing.option(split)
        return not option.fits, not option.fills(device.sm_count), option.time_us or 0.0, split

    exact = [s for s in range(2, longest + 1) if _parts(gemm.K, s) == s]
    return min(exact, key=key)


class _Pricing:
    """Prices one GEMM under forced tiles and splits."""

    def __init__(self, gemm: Gemm, device: Device) -> None:
        self.gemm = gemm
        self.device = device
        self.graph = gemm.graph()
        self.nest = analyse(self.graph, (0,))
        self.pricer = Pricer(self.nest, device)
        self.clock = Roofline(device)
        row, column = (access.axes for access in self.graph.ops[0].reads)
        reduced = self.graph.ops[0].reduces
        self.sides = (
            [name for name in row if name not in reduced],
            [name for name in column if name not in reduced],
        )

    def option(self, split: int) -> Option:
        """The GEMM as one option: its ledger, its time, and what vetoes it."""
        price = self.price(split)
        ledger = self.ledger(price)
        held, limit, holder = self._fullest(price)
        vetoes = dict(price.vetoes)
        return Option(
            name="no split" if split == 1 else f"split-K={split}", bytes=price.dram_bytes,
            grid=price.blocks, on_chip_bytes=held, capacity_limit_bytes=limit,
            launches=price.launches, time_us=ledger.time.total_us,
            choice=None if split == 1 else "split", capacity_veto=vetoes.get("capacity"),
            provenance="modelled", is_small=is_small(price.dram_bytes, self.device),
            accounts=ledger.accounts | {
                "capacity": replace(
                    ledger.accounts["capacity"], value=held, limit=limit,
                    unit=f"bytes of {holder} per block",
                )
            },
        )  # fmt: skip

    def price(self, split: int) -> Price:
        """The price with the gemm's tile, K in `split` parts."""
        tiles: dict[str, int] = {}
        for names, tile in zip(self.sides, self.gemm.tile, strict=True):
            tiles |= dict.fromkeys(names, tile)
        if split > 1:
            tiles |= dict.fromkeys(self.nest.split_axes, -(-self.gemm.K // split))
        price = self.pricer.price(tiles)
        sms = self.device.sm_count
        if sms is not None and price.blocks < sms and not is_small(price.dram_bytes, self.device):
            price.vetoes += (("parallelism", f"a grid of {price.blocks:,} on {sms:,} SMs"),)
        return price

    def ledger(self, price: Price) -> KernelLedger:
        """The accounts of a price."""
        axes = tuple(
            (name, AxisSchedule("split", -(-self.nest.sizes[name] // tile)))
            if name in self.nest.split_axes
            else (name, AxisSchedule("grid", tile))
            for name, tile in price.tiles.items()
        )
        schedule = Schedule(axes=axes, warps=price.warps, stages=price.stages)
        kernel = Kernel(ops=(0,), schedule=schedule)
        time = self.clock.time(price)
        return kernel_ledger(self.graph, kernel, self.nest, price, time, self.device, "k1")

    def _fullest(self, price: Price) -> tuple[int, int | None, str]:
        """(bytes, room, name) of the holder with the least room to spare."""
        holders = (
            (price.shared_bytes, self.device.shared_memory_per_block_bytes, "shared memory"),
            (price.register_bytes, self.device.accumulator_bytes_per_block, "registers"),
        )
        return max(holders, key=lambda h: h[0] / h[1] if h[1] else 0.0)


def _size_flips(gemm: Gemm, device: Device, factors: Sequence[int], choice: str) -> list[Flip]:
    """Where another M, N, K or split factor changes the choice, everything else as it is."""

    def at(parts: Sequence[int], **sizes: int) -> str:
        pricing = _Pricing(replace(gemm, **sizes), device)
        options = [pricing.option(split) for split in (1, *parts)]
        return apply_rule(options, device.sm_count, device.stream_gbs).choice

    flips: list[Flip] = []
    for size, low in (("M", 1), ("N", 1), ("K", max(factors))):
        flips += flips_of_size(
            size, getattr(gemm, size), low, SIZE_MAX, choice,
            lambda value, size=size: at(factors, **{size: value}),
        )  # fmt: skip
    if len(factors) == 1:
        longest = max(2, min(MAX_SPLIT, gemm.K // LEAST_PART))
        flips += flips_of_size("split", factors[0], 2, longest, choice, lambda parts: at((parts,)))
    return flips


def _searched(gemm: Gemm, device: Device, objective: Objective) -> str | None:
    """What the schedule search takes, in words; None where it finds nothing usable for bytes."""
    search = new_search(gemm.graph(), device, PlanOptions(objective=objective))
    if objective == "bytes" and not search.choose((0,)).usable:
        return None
    price = search.price((0,))
    schedule = search.kernel((0,)).schedule
    time = format_time(search.time((0,), price).total_us)
    return f"{schedule}: a grid of {price.blocks:,}, {time}"


def _parts(size: int, split: int) -> int:
    """Parts that a size falls into when cut for `split` of them."""
    return -(-size // -(-size // split))
