"""The roofline clock: launch + the slowest of DRAM, L2 and the pipes + a latency per wave.

`time = launches·launch + max(DRAM, L2, matrix, lanes, special)/fill + waves·latency + spills`, and
a combine kernel's stream where partial results have one: it waits for all of them.

A term whose figures the device does not state is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fuseledger.clock.time import Time
from fuseledger.devices import Device, LaunchMode
from fuseledger.errors import DeviceError
from fuseledger.ledger.price import WARP_THREADS, Price

WAVE_LATENCY_SHARE = 0.1
"""Of a block's latency, what each wave after the first adds: blocks that end let others start, so
the rest is hidden by blocks in flight (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What the clock needs of a device, read once."""

    sms: int
    stream_gbs: float
    sm_gbs: float | None
    """DRAM bandwidth that one SM can draw."""
    l2_gbs: float | None
    l2_bytes: int | None
    special_ops_per_s: float | None
    launch_us: float
    latency_us: float


@dataclass(frozen=True)
class Roofline:
    """The roofline clock of one device; `launch` says how kernels are launched."""

    device: Device
    launch: LaunchMode = "queued"
    tf32: bool = False

    def time(self, price: Price) -> Time:
        """Time of a kernel from its price, in µs.

        Raises DeviceError where the device states no DRAM bandwidth, launch cost or fp32 peak.
        """
        rates = self._rates
        blocks, sms = price.blocks, rates.sms
        waves = -(-blocks // (sms * price.blocks_per_sm))
        fill = _fill(blocks, sms)
        dram_gbs = rates.stream_gbs
        if rates.sm_gbs is not None:
            dram_gbs = min(dram_gbs, min(blocks, sms) * rates.sm_gbs)
        moved = price.dram_bytes - price.combine_bytes + self._spilled_over(price)
        terms = [("dram", moved / dram_gbs / 1e3)]
        if rates.l2_gbs is not None:
            drawn = min(1.0, blocks / sms)
            terms.append(("l2", price.l2_bytes / rates.l2_gbs / 1e3 / drawn))
        for pipe, flops in price.flops.items():
            unit, flops_per_s = self._pipe(pipe)
            terms.append((unit, flops / flops_per_s * 1e6 / fill))
        if rates.special_ops_per_s is not None and price.special_ops:
            terms.append(("special", price.special_ops / rates.special_ops_per_s * 1e6 / fill))
        launch_us = price.launches * rates.launch_us
        latency_us = rates.latency_us * (price.launches + WAVE_LATENCY_SHARE * (waves - 1))
        combine_us = price.combine_bytes / rates.stream_gbs / 1e3
        spilled = 2 * price.spill_bytes * blocks * price.warps * WARP_THREADS
        spill_us = spilled / rates.stream_gbs / 1e3
        slowest = max([us for _, us in terms])
        total_us = launch_us + slowest + latency_us + spill_us + combine_us
        return Time(total_us, launch_us, tuple(terms), latency_us, spill_us, combine_us)

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
            special_ops_per_s=device.special_ops_per_s,
            launch_us=device.launch_us(self.launch),
            latency_us=(device.block_latency_us or 0.0) if sms else 0.0,
        )

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
            found = self._pipes[key] = (unit, peak)
        return found

    def _spilled_over(self, price: Price) -> float:
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
