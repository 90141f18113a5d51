"""The first clock: launch + the slowest of DRAM, L2 and the pipes + a latency per wave.

`time = launches·launch + max(DRAM, L2, matrix, lanes, special)/fill + waves·latency + spills`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fuseledger.clock.time import Time
from fuseledger.devices import Device
from fuseledger.ledger.price import WARP_THREADS, Price

LaunchMode = Literal["eager", "queued", "graph"]

BLOCK_LATENCY_US = 0.8
"""Start of a block, one round trip to DRAM and its write-back: about 600 ns of DRAM latency
(Hopper and Ampere microbenchmarks: 470–690 ns) and a block's launch."""
BYTES_PER_CLOCK_PER_SM = 32
"""What one SM can pull from DRAM: it takes blocks to saturate it."""


@dataclass(frozen=True)
class Roofline:
    """The roofline clock of one device; `launch` says how kernels are launched."""

    device: Device
    launch: LaunchMode = "queued"
    tf32: bool = False

    def time(self, price: Price) -> Time:
        """Time of a kernel from its price, in µs."""
        device = self.device
        stream = device.stream_gbs or device.require("dram_bandwidth_gbs")
        sms = device.sm_count or 1
        resident = sms * price.blocks_per_sm
        waves = -(-price.blocks // resident)
        fill = _fill(price.blocks, sms, price.blocks_per_sm)
        dram_gbs = stream
        if device.clock_mhz and device.sm_count:
            busy = min(price.blocks, sms)
            dram_gbs = min(stream, busy * BYTES_PER_CLOCK_PER_SM * device.clock_mhz * 1e6 / 1e9)
        terms = [("dram", (price.dram_bytes + self._spilled_over(price)) / dram_gbs / 1e3)]
        if device.l2_bandwidth_gbs:
            terms.append(
                (
                    "l2",
                    price.l2_bytes / device.l2_bandwidth_gbs / 1e3 / min(1.0, price.blocks / sms),
                )
            )
        for key, flops in price.flops.items():
            unit, dtype = key.split(":")
            peak = self._peak(dtype, matrix=unit == "matrix")
            terms.append((unit, flops / peak * 1e6 / fill))
        special = device.special_ops_per_s
        if special and price.special_ops:
            terms.append(("special", price.special_ops / special * 1e6 / fill))
        launch = price.launches * device.launch_us(self.launch)
        latency = BLOCK_LATENCY_US * (1 + 0.1 * (waves - 1)) if device.sm_count else 0.0
        spill = 2 * price.spill_bytes * price.blocks * price.warps * WARP_THREADS / stream / 1e3
        total = launch + max(us for _, us in terms) + latency + spill
        return Time(total, launch, tuple(terms), latency, spill)

    def _spilled_over(self, price: Price) -> float:
        """Re-reads that L2 does not absorb: none while the kernel's operands fit it.

        Else blocks of one wave, run as a square of tiles, share what they load, so a re-read
        factor R costs R/√(blocks in flight) reads of DRAM.
        """
        cache = self.device.l2_bytes
        reads = price.read_bytes
        if cache is None or reads <= cache or not reads:
            return 0.0
        again = (price.l2_bytes - price.write_bytes) / reads
        in_flight = (self.device.sm_count or 1) * price.blocks_per_sm
        return reads * max(0.0, again / max(1.0, in_flight**0.5) - 1.0)

    def _peak(self, dtype: str, *, matrix: bool) -> float:
        return _peak(self.device, dtype, matrix, self.tf32)


_PEAKS: dict[tuple[str, str, bool, bool], float] = {}


def _peak(device: Device, dtype: str, matrix: bool, tf32: bool) -> float:
    from fuseledger.errors import DeviceError

    key = (device.name, dtype, matrix, tf32)
    if key not in _PEAKS:
        try:
            peak = device.peak_for(dtype, matrix=matrix, tf32=tf32)
        except DeviceError:
            peak = device.peak_for("fp32", matrix=False)
        _PEAKS[key] = peak
    return _PEAKS[key]


def _fill(blocks: int, sms: int, per_sm: int) -> float:
    """Share of the SMs' time that blocks use: the tail wave leaves some idle."""
    if blocks <= sms:
        return max(blocks, 1) / sms
    full = -(-blocks // sms)
    return blocks / (full * sms)
