"""Options whose accounts were declared: each is a one-kernel plan in the ordinary ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from fuseledger.devices import Device
from fuseledger.graph.declared import declared_graph, declared_op, flat_tensor
from fuseledger.graph.graph import Graph
from fuseledger.graph.tensor import Tensor
from fuseledger.graph.validate import validate
from fuseledger.ledger.account import format_kib
from fuseledger.planner.plan import Planned, plan_of_groups
from fuseledger.verdict.flip_points import bandwidth_flips
from fuseledger.verdict.rule import Option, Verdict, decide

BANDWIDTH_MAX_GBS = 100_000
"""Where the search for a bandwidth that changes the clock's choice ends."""


class Part(Struct, frozen=True):
    """A tensor that an option reads or writes whole."""

    name: str
    elements: int
    dtype: str


class Derived(Struct, frozen=True):
    """A whole figure and how it comes about; figures add up with their words."""

    value: int
    words: str

    def __add__(self, other: Derived) -> Derived:
        return Derived(self.value + other.value, f"{self.words} + {other.words}")


def product(*factors: int, of: str) -> Derived:
    """The product of the factors; `of` says what they are: `32·64 = heads × parts`."""
    return Derived(prod(factors), f"{'·'.join(f'{factor:,}' for factor in factors)} = {of}")


class DeclaredOption(Struct, frozen=True, kw_only=True):
    """One way of doing the work, as its author writes it down."""

    name: str
    reads: tuple[Part, ...] = ()
    writes: tuple[Part, ...] = ()
    grid: Derived
    on_chip: Derived
    """In bytes."""
    budget_bytes: int | None = None
    """Room on chip for a block; None: the device's shared memory per block."""
    launches: int = 1
    flops: float = 0.0
    choice: str | None = None
    time_us: float | None = None
    """A time that its author knows; None: the clock's."""
    traffic_words: str | None = None
    """How the bytes come about, where the parts do not say it."""


class Decision(Struct, frozen=True, kw_only=True):
    """Options, the device they are for, and the verdict on them."""

    title: str
    device: Device
    options: tuple[Option, ...]
    verdict: Verdict
    notes: tuple[str, ...] = ()


def option_graph(declared: DeclaredOption) -> Graph:
    """The option as a graph of one declared op."""
    reads = [flat_tensor(p.name, p.elements, p.dtype, "input") for p in declared.reads]
    writes = [flat_tensor(p.name, p.elements, p.dtype, "output") for p in declared.writes]
    attributes = {
        "grid": declared.grid.value, "grid_words": declared.grid.words,
        "on_chip_bytes": declared.on_chip.value, "on_chip_words": declared.on_chip.words,
        "budget_bytes": declared.budget_bytes, "launches": declared.launches,
        "flops": declared.flops,
    }  # fmt: skip
    op = declared_op(declared.name, declared.name, reads, writes, attributes)
    tensors: list[Tensor] = [*reads, *writes]
    return validate(declared_graph(declared.name, [op], tensors))


def plan_option(declared: DeclaredOption, device: Device) -> Planned:
    """The option's one-kernel plan with its ledger."""
    return plan_of_groups(option_graph(declared), device, [(0,)])


def priced_option(declared: DeclaredOption, device: Device, *, warn_small: bool = False) -> Option:
    """The option in the figures of its ledger; with `warn_small` R6 holds, else the plain rule."""
    (kernel,) = plan_option(declared, device).kernels
    accounts = dict(kernel.accounts)
    if declared.traffic_words is not None:
        accounts["traffic"] = replace(accounts["traffic"], derivation=declared.traffic_words)
    limit = accounts["capacity"].limit
    known = declared.time_us is not None
    return Option(
        name=declared.name, bytes=kernel.bytes, grid=int(accounts["parallelism"].value),
        on_chip_bytes=int(accounts["capacity"].value),
        capacity_limit_bytes=None if limit is None else int(limit), launches=kernel.launches,
        time_us=declared.time_us if known else kernel.time.total_us, choice=declared.choice,
        is_small=warn_small and is_small(kernel.bytes, device),
        time_provenance="declared" if known else "modelled", accounts=accounts,
    )  # fmt: skip


def is_small(moved: int, device: Device) -> bool:
    """R6: whether a kernel moves less than the device does in the time of a launch."""
    stream = device.stream_gbs
    return stream is not None and moved <= device.launch_us("queued") * stream * 1e3


def decide_declared(
    title: str, declared: Sequence[DeclaredOption], device: Device, *,
    notes: Sequence[str] = (), warn_small: bool = False,
    propose: Callable[[], str | None] | None = None,
) -> Decision:  # fmt: skip
    """The rule on declared options of one device; `propose` as in `decide`."""
    options = tuple(priced_option(o, device, warn_small=warn_small) for o in declared)
    verdict = decide(
        options, sm_count=device.sm_count, bandwidth_gbs=device.stream_gbs,
        propose=propose or (lambda: _suggestion(options, device)),
    )  # fmt: skip
    if all(option.time_us is None for option in declared):
        flips = bandwidth_flips(device, lambda machine: _fastest(declared, machine))
        verdict = replace(verdict, flips=(*verdict.flips, *flips))
    return Decision(
        title=title, device=device, options=options, verdict=verdict, notes=tuple(notes)
    )


def _fastest(declared: Sequence[DeclaredOption], device: Device) -> str:
    """Name of the option that the clock prefers on a device."""
    times = [priced_option(option, device).time_us or 0.0 for option in declared]
    return declared[times.index(min(times))].name


def _suggestion(options: Sequence[Option], device: Device) -> str | None:
    """Tiles or a split that would make the option with the fewest bytes usable."""
    best = min(options, key=lambda option: (not option.fits, option.bytes))
    sms, room = device.sm_count or 1, best.capacity_limit_bytes
    if not best.fits and room is not None:
        times = -(-best.on_chip_bytes // room)
        held = format_kib(-(-best.on_chip_bytes // times))
        return (
            f"{best.name} with tiles {times} times smaller: {held} a block fit {format_kib(room)}"
        )
    split = -(-sms // best.grid)
    grid = f"a grid of {split * best.grid:,} on {sms:,} SMs"
    return f"{best.name} with its work split in {split:,}: {grid}"
