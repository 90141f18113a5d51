"""A peer's kernels in our ledger: the ops of each, and its time by our clock."""

from __future__ import annotations

import math

from msgspec import Struct

from fuseledger.ledger.account import format_bytes
from fuseledger.peers.align import ops_by_kernel, ops_by_name
from fuseledger.peers.peer import CHANNELS_LAST, PeerKernel, PeerPlan
from fuseledger.peers.program import Program
from fuseledger.planner.plan import Planned

NOTICEABLE = 0.01
"""Share of a kernel's bytes below which a difference in counting is not mentioned."""


class PricedKernel(Struct, frozen=True, kw_only=True):
    """A kernel of a peer, priced."""

    kernel: PeerKernel
    ops: tuple[int, ...]
    """Positions of our ops that it computes; empty for a copy or an update of state."""
    time_us: float
    provenance: str
    """How the time was come by."""


class PricedPlan(Struct, frozen=True, kw_only=True):
    """A peer's plan, priced; no kernels where the peer gave none."""

    plan: PeerPlan
    kernels: tuple[PricedKernel, ...]

    @property
    def time_us(self) -> float:
        """Sum over its kernels."""
        return sum(kernel.time_us for kernel in self.kernels)

    @property
    def home(self) -> dict[int, int]:
        """Op → position of the kernel that computes it."""
        return {op: at for at, kernel in enumerate(self.kernels) for op in kernel.ops}


def price(program: Program, plan: PeerPlan, ours: Planned) -> PricedPlan:
    """The plan with each kernel's ops and time.

    Time of a kernel whose ops are known and may share a kernel in our model: theirs by our clock,
    and bytes that the peer moves beyond the clock's at stream bandwidth, those of a second walk as
    far as L2 does not hold them. Of any other: all its bytes at stream bandwidth, and its launches.
    """
    if plan.origins_are == "ops":
        groups = ops_by_name(program.graph, plan.kernels)
    else:
        groups = ops_by_kernel(program, plan.kernels)
    return PricedPlan(
        plan=plan,
        kernels=tuple(
            _price(kernel, group, ours) for kernel, group in zip(plan.kernels, groups, strict=True)
        ),
    )


def _price(kernel: PeerKernel, group: tuple[int, ...], ours: Planned) -> PricedKernel:
    device = ours.device
    stream_us = 1e-3 / device.require("stream_gbs")
    launch_us = device.launch_us(ours.options.launch) * kernel.launches
    if group:
        choice = ours.search.choose(group)
        vetoed = any(account in ("legality", "capacity") for account, _ in choice.vetoes)
        if math.isfinite(choice.time_us) and not (vetoed and len(group) > 1):
            time_us, beyond = choice.time_us, max(0, kernel.bytes - choice.bytes)
            if kernel.config == CHANNELS_LAST:  # the peer turns the operands in kernels of its own
                time_us -= ours.search.time(group, ours.search.price(group)).layout_us
            words, held = "our clock on its ops", 0.0
            if beyond > NOTICEABLE * max(1, choice.bytes):
                held = ours.search.rewalked_share(group)
                words += f", and {format_bytes(beyond)} more"
                words += f", {held:.0%} of it from L2" if held else " at stream bandwidth"
            return PricedKernel(
                kernel=kernel, ops=group, time_us=time_us + beyond * (1 - held) * stream_us,
                provenance=words,
            )  # fmt: skip
    return PricedKernel(
        kernel=kernel, ops=group, time_us=kernel.bytes * stream_us + launch_us,
        provenance="its bytes at stream bandwidth and its launch",
    )  # fmt: skip
