"""The roofline clock: launch + the slowest of DRAM, L2, the pipeline and the pipes + latency.

`time = launches·launch + max(DRAM, L2, pipeline, matrix, lanes, special) + latency + combine
+ layout + spills`, DRAM and L2 as fast as the grid can draw, the pipes over the fill of the last
wave. A kernel with a product of tensors is realised by a library call, where one computes it, or by
generated code, whichever is quicker: they differ in the share of the peak that they sustain. That
of a convolution on matrix units goes by its shape (`convolution.py`).

A term whose figures the device does not state is left out.
"""

from __future__ import annotations

from functools import cached_property
from math import inf, prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from fuseledger.clock.residency import resident_shares
from fuseledger.clock.time import GENERATED, Time
from fuseledger.devices import Device, LaunchMode
from fuseledger.errors import DeviceError
from fuseledger.ledger.convolution import Convolution
from fuseledger.ledger.footprint import ACCUMULATOR_BYTES
from fuseledger.ledger.library_calls import ATTENTION_TILE
from fuseledger.ledger.price import WARP_THREADS, Price

if TYPE_CHECKING:
    from fuseledger.clock.convolution import ConvolutionRate

WAVE_LATENCY_SHARE = 0.1
"""Of a block's latency, what each wave after the first adds: blocks that end let others start, so
the rest is hidden by blocks in flight (assumed). A second walk waits for the first."""
PIPELINE_BYTES = 1280
"""Bytes along the reduced axis that a library's product has in flight of each row, where shared
memory has room: five stages of 128 elements of two bytes, the deepest of TorchInductor's
configurations for tiles of 64 and more (torch/_inductor/template_heuristics/triton.py, torch 2.13).
A generated one has what its schedule's pipeline says."""
PAIR_LOADS = 0.75
"""Share of its loads that a library's product makes where one load serves blocks of a cluster: two
neighbours of square tiles load three tiles' sides in place of four (cuBLAS on Hopper and B200 names
such kernels `2x1` and `2cta`: github.com/triton-lang/triton/pull/9044). Triton does not share
loads."""
COMBINE_TILE = 1024
"""Results that a block of the combine kernel folds: 4 warps × 8 elements."""
TICKET_TRIPS = 3
"""Trips to L2 that follow each other before the last block of a tile has parts to add: its own are
seen by others (a fence), its ticket comes back (an atomic addition), the first part is loaded
(github.com/NVIDIA/cuda-samples, threadFenceReduction)."""
L2_TRIP_SHARE = 0.73
"""A trip to L2 over one to memory: 475 of 650 clocks on H100 PCIe, over all of L2, as parts come
from any SM (github.com/te42kyfo/gpu-benches@a7dc559 gpu-latency/h100_pcie.txt, at 35 MB and beyond
125 MB). Taken for every device."""
_AFTERWARDS = ("launch", "last block")
"""Ways of merging parts that read them when all are written."""


class _Rates(Struct, frozen=True, kw_only=True):
    """What the clock needs of a device, read once."""

    sms: int
    stream_gbs: float
    sm_gbs: float | None
    """DRAM bandwidth that one SM can draw."""
    l2_gbs: float | None
    l2_bytes: int | None
    shared_bytes: int | None
    special_ops_per_s: float | None
    launch_us: float
    latency_us: float
    library_loads: float
    """Share of its loads that a library's product makes."""


class _Realised(NamedTuple):
    """A realisation with the terms that it decides, in µs."""

    name: str
    share: float
    """Of the pipe's dense peak."""
    l2_us: float
    matrix_us: float
    pipeline_us: float = 0.0
    spill_us: float = 0.0
    """None of a library's: its registers are not those of the schedule."""
    computed: float = 1.0
    """Share of the points that it computes: the others are masked."""
    padding: float = 1.0
    """Matrix work of the tiles over that of the elements they hold; in `matrix_us`."""


class _Pipes(NamedTuple):
    """Time of the pipes at their peak, in µs."""

    matrix_us: float
    lanes_us: float
    special_us: float
    on_lanes: bool
    """Whether lanes compute the products."""


class Roofline(Struct, frozen=True, dict=True):
    """The roofline clock of one device; `launch` says how kernels are launched."""

    device: Device
    launch: LaunchMode = "queued"
    tf32: bool = False
    realise: Literal["best", "library", "generated"] = "best"
    """Which realisation is priced; `library` where there is a call, else generated."""

    def time(self, price: Price) -> Time:
        """Time of a kernel from its price, in µs, by the cheaper realisation that it has.

        Raises DeviceError where the device states no DRAM bandwidth, launch cost or fp32 peak.
        """
        rates = self._rates
        waves = -(-price.blocks // (rates.sms * price.blocks_per_sm))
        fill = _fill(price.blocks, rates.sms)
        resident = self._resident(price) if price.partial_bytes else 0.0
        dram_us = self._dram_us(price, resident)
        pipes = self._pipes_us(price, fill)
        rate = self._convolution_rate(price) if pipes.matrix_us and not pipes.on_lanes else None
        realised = self._realised(price, dram_us, pipes, rate, fill, waves)
        terms = [("dram", dram_us)]
        if rates.l2_gbs is not None:
            terms.append(("l2", realised.l2_us))
        if realised.pipeline_us:
            terms.append(("pipeline", realised.pipeline_us))
        if pipes.lanes_us:
            terms.append(("lanes", pipes.lanes_us * realised.computed))
        if pipes.special_us:
            terms.append(("special", pipes.special_us * realised.computed))
        if realised.matrix_us:
            terms.append(("matrix", realised.matrix_us))
        launch_us = price.launches * rates.launch_us
        latency_us = price.walks * rates.latency_us * (1 + WAVE_LATENCY_SHARE * (waves - 1))
        combine_us = self._combine_us(price, resident) if price.merge in _AFTERWARDS else 0.0
        if price.merge == "last block":
            latency_us += TICKET_TRIPS * L2_TRIP_SHARE * rates.latency_us / 2
        slowest = max([us for _, us in terms])
        layout_us = rate.layout_us if rate is not None else 0.0
        total_us = launch_us + slowest + latency_us + combine_us + layout_us + realised.spill_us
        return Time(
            total_us, launch_us, tuple(terms), latency_us, realised.spill_us, combine_us, layout_us,
            realised.name, realised.share, realised.padding,
        )  # fmt: skip

    def _dram_us(self, price: Price, resident: float) -> float:
        """Time of DRAM: what L2 does not serve, as fast as the grid draws it."""
        moved = price.dram_bytes - resident + self.reread_bytes(price)
        if price.rewalked_bytes:
            moved -= price.rewalked_bytes * self.rewalked_share(price)
        if price.merge in _AFTERWARDS:
            moved -= (price.partial_bytes - resident) / 2
        return moved / self._drawn_gbs(min(price.blocks, self._rates.sms)) / 1e3

    def _pipes_us(self, price: Price, fill: float) -> _Pipes:
        """Time of the pipes at their peak."""
        matrix_us, lanes_us, on_lanes = 0.0, 0.0, False
        for pipe, flops in price.flops.items():
            unit, flops_per_s = self._pipe(pipe)
            us = flops / flops_per_s * 1e6 / fill
            if unit == "matrix":
                matrix_us += us
                on_lanes = on_lanes or pipe in self._lane_products
            else:
                lanes_us += us
        special_per_s = self._rates.special_ops_per_s
        special_us = price.special_ops / special_per_s * 1e6 / fill if special_per_s else 0.0
        return _Pipes(matrix_us, lanes_us, special_us, on_lanes)

    def _realised(
        self, price: Price, dram_us: float, pipes: _Pipes, rate: ConvolutionRate | None,
        fill: float, waves: int,
    ) -> _Realised:  # fmt: skip
        """The cheaper realisation; a library call where it is no slower."""
        calls, matrix_us = price.calls, pipes.matrix_us
        l2_us = self._l2_us(price, 1.0)
        own_trips_us, trips_us = self._pipelines_us(price, waves)
        spilled = 2 * price.spill_bytes * price.blocks * price.warps * WARP_THREADS
        spill_us = spilled / self._rates.stream_gbs / 1e3
        if calls.core is None:
            return _Realised(GENERATED, 1.0, l2_us, matrix_us, own_trips_us, spill_us)
        library, generated = self._shares("lanes" if pipes.on_lanes else calls.core)
        idle = 1.0
        if rate is not None:
            library, generated = rate.share, rate.share * generated / library
            idle = fill * rate.idle
        padding = price.padding.generated
        own = _Realised(
            GENERATED, generated, l2_us, padding * matrix_us / generated, own_trips_us, spill_us,
            padding=padding,
        )  # fmt: skip
        if calls.call is None:
            return own
        padding = 1.0
        if calls.rows:
            padding = max(1.0, ATTENTION_TILE / prod([price.tiles.get(n, 1) for n in calls.rows]))
        elif calls.core == "gemm":
            padding = price.padding.library
        if padding == inf:
            return own
        if price.merge == "last block" and price.merge not in calls.call.merges:
            return own
        loads, computed = self._rates.library_loads * calls.unmasked, calls.unmasked
        theirs = _Realised(
            calls.call.name, library, self._l2_us(price, loads),
            idle * padding * matrix_us * computed / library, trips_us, computed=computed,
            padding=padding,
        )  # fmt: skip
        if self.realise != "best":
            return theirs if self.realise == "library" else own
        lanes_us = max(pipes.lanes_us, pipes.special_us)
        slower = max(own.l2_us, own.matrix_us, own_trips_us, dram_us, lanes_us) + spill_us
        quicker = max(theirs.l2_us, theirs.matrix_us, trips_us, dram_us, lanes_us * computed)
        return theirs if quicker <= slower else own

    def _l2_us(self, price: Price, loads: float) -> float:
        """Time of L2, of what blocks load the given share; 0 where its bandwidth is unknown."""
        rates = self._rates
        if rates.l2_gbs is None:
            return 0.0
        loaded = loads * (price.l2_bytes - price.write_bytes) + price.write_bytes
        drawn = min(1.0, price.blocks / rates.sms)
        return (loaded + price.partial_bytes / 2) / rates.l2_gbs / 1e3 / drawn

    def _shares(self, core: str) -> tuple[float, float]:
        """Shares of the peak that a library and a generated kernel of a class sustain."""
        found = self._known_shares.get(core)
        if found is None:
            library = self.device.library_share(core)
            found = library, library * self.device.template_share(core)
            self._known_shares[core] = found
        return found

    def _convolution_rate(self, price: Price) -> ConvolutionRate | None:
        """How fast the library runs the price's convolution; None where the fit knows none such."""
        shape = price.calls.convolution
        if shape is None or self.device.vendor != "nvidia":
            return None
        if shape not in self._known_rates:
            from fuseledger.clock.convolution import convolution_rate

            self._known_rates[shape] = convolution_rate(shape, self.device)
        return self._known_rates[shape]

    @cached_property
    def _known_rates(self) -> dict[Convolution, ConvolutionRate]:
        return {}

    @cached_property
    def _known_shares(self) -> dict[str, tuple[float, float]]:
        return {}

    @cached_property
    def _rates(self) -> _Rates:
        device = self.device
        sms, per_clock = device.sm_count, device.dram_bytes_per_clock_per_sm
        sm_gbs = None
        if sms is not None and per_clock is not None and device.clock_mhz is not None:
            sm_gbs = per_clock * device.clock_mhz / 1e3
        return _Rates(
            sms=sms or 1,
            stream_gbs=device.stream_gbs or device.require("dram_bandwidth_gbs"),
            sm_gbs=sm_gbs,
            l2_gbs=device.l2_bandwidth_gbs,
            l2_bytes=device.l2_bytes,
            shared_bytes=device.shared_memory_per_sm_bytes,
            special_ops_per_s=device.special_ops_per_s,
            launch_us=device.launch_us(self.launch),
            latency_us=(device.block_latency_us or 0.0) if sms else 0.0,
            library_loads=PAIR_LOADS if (device.multicast_blocks or 1) > 1 else 1.0,
        )

    def _drawn_gbs(self, sms: int) -> float:
        """DRAM bandwidth that so many SMs can draw."""
        rates = self._rates
        if rates.sm_gbs is None:
            return rates.stream_gbs
        return min(rates.stream_gbs, sms * rates.sm_gbs)

    @cached_property
    def _lane_products(self) -> set[str]:
        """Keys of products that the lanes compute, of those met so far."""
        return set()

    @cached_property
    def _pipes(self) -> dict[str, tuple[str, float]]:
        return {}

    def _pipe(self, key: str) -> tuple[str, float]:
        """(matrix or lanes, FLOP/s) of `matrix:fp16`; the fp32 lanes where it has no such."""
        found = self._pipes.get(key)
        if found is None:
            unit, dtype = key.split(":")
            try:
                peak = self.device.peak_for(dtype, matrix=unit == "matrix", tf32=self.tf32)
            except DeviceError:
                peak = self.device.peak_for("fp32", matrix=False)
            if unit == "matrix" and not self._has_units(dtype):
                self._lane_products.add(key)
            found = self._pipes[key] = (unit, peak)
        return found

    def _has_units(self, dtype: str) -> bool:
        """Whether matrix units compute products of a dtype."""
        try:
            return self.device.pipe_for(dtype, matrix=True, tf32=self.tf32).startswith("tensor_")
        except DeviceError:
            return False

    def _pipelines_us(self, price: Price, waves: int) -> tuple[float, float]:
        """Time of the walk along a reduced axis, of generated code and of a library: trips to
        memory that depend on each other.

        A block has so much in flight, and waits one trip for it: what its pipeline loads ahead; a
        library `PIPELINE_BYTES` of each row, or what shared memory has room for. This is what a
        long walk on a short grid pays, and splits save.
        """
        rates, staged = self._rates, price.staged
        if staged is None or not rates.latency_us:
            return 0.0, 0.0
        loaded = max(0, price.l2_bytes - price.write_bytes) / price.blocks
        trip_us = waves * loaded * rates.latency_us / 2
        theirs = float(PIPELINE_BYTES * staged.rows)
        if rates.shared_bytes is not None:
            blocks = min(price.blocks_per_sm, -(-price.blocks // rates.sms))
            theirs = min(theirs, rates.shared_bytes / blocks)
        own = staged.in_flight(price.pipeline.ahead)
        return trip_us / own if own else 0.0, trip_us / theirs

    def _resident(self, price: Price) -> float:
        """Of the partials' bytes, written and read, those that stay in L2 in between."""
        if not price.partial_bytes or self._rates.l2_bytes is None:
            return 0.0
        share = resident_shares(price.partial_bytes / 2, self._rates.l2_bytes)
        return price.partial_bytes * share

    def rewalked_share(self, price: Price) -> float:
        """Of the bytes of further walks, the share that L2 still holds from the walk before: what
        the blocks in flight have read is all that came since."""
        if not price.rewalked_bytes or self._rates.l2_bytes is None:
            return 0.0
        in_flight = min(price.blocks, self._rates.sms * price.blocks_per_sm)
        return resident_shares(price.rewalked_per_block * in_flight, self._rates.l2_bytes)

    def _combine_us(self, price: Price, resident: float) -> float:
        """Time to read all partials when they are made: in a second kernel, on a grid of its
        results, or by one block a tile, of each of which the parts are read by one SM."""
        rates = self._rates
        read = price.partial_bytes / 2
        results = read / (max(1, price.parts) * ACCUMULATOR_BYTES)
        blocks = -(-int(results) // COMBINE_TILE)
        if price.merge == "last block":
            blocks = price.merging_blocks
        drawn_gbs = self._drawn_gbs(min(rates.sms, blocks or 1))
        share = resident / price.partial_bytes if price.partial_bytes else 0.0
        l2_gbs = min(rates.l2_gbs or rates.stream_gbs, drawn_gbs * 2)
        return read * (share / l2_gbs + (1 - share) / drawn_gbs) / 1e3

    def reread_bytes(self, price: Price) -> float:
        """Re-reads that L2 does not absorb: none while the kernel's operands fit it.

        Else blocks of one wave, run as a square of tiles, share what they load, so a re-read
        factor R costs R/√(blocks in flight) reads of DRAM.
        """
        rates = self._rates
        reads = price.read_bytes
        if rates.l2_bytes is None or reads <= rates.l2_bytes:
            return 0.0
        again = (price.l2_bytes - price.write_bytes) / reads
        in_flight = rates.sms * price.blocks_per_sm
        return reads * max(0.0, again / max(1.0, in_flight**0.5) - 1.0)


def _fill(blocks: int, sms: int) -> float:
    """Share of the SMs' time that blocks use: the tail wave leaves some idle."""
    if blocks <= sms:
        return max(blocks, 1) / sms
    return blocks / (-(-blocks // sms) * sms)
